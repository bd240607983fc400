"""Keeps what decisions promised and what was observed on real data, and writes the tables of decisions.md.

python docs/results/decisions.py acdc RUN keeps what random splits of the run's predicted test cases give
python docs/results/decisions.py          writes the tables
python docs/results/decisions.py --check  only says whether they are up to date (exit code 1 if not)

RUN has predicted its test cases as they are, and with noise (`calibseg predict RUN --subset test --noise 0.05`). In
every split some patients are labelled, and the promise is judged on the others, with and without noise.
"""

import csv
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import result_pages as pages

from calibseg.decisions import FNR, Evidence, Inner, Margin, Volume, cell_of
from calibseg.decisions.fitted.rules import parts_of
from calibseg.decisions.maths.findings import pass_over
from calibseg.stages.decide.cases import CaseSource, open_cases

HERE = Path(__file__).parent
PAGE = HERE / "decisions.md"
LABELLED, SPLITS = {"hippocampus": 50, "acdc": 30}, {"hippocampus": 200, "acdc": 2000}
DECISIONS = [
    FNR(0.05), FNR(0.1), FNR(0.1, 0.9), Margin(0.95, 0.9), Margin(1.0, 0.9), Inner(1.0, 0.9),
    Volume(0.9), Volume(0.9, "relative"), Volume(0.9, "spread"),
]  # fmt: skip


def kept(dataset: str) -> Path:
    return HERE / f"decisions-{dataset}.csv"


def scores(run: Path, subset: str) -> dict[tuple[str, str], list]:
    """(decision, structure) -> what each patient's cases say together, in the order of the patients."""
    cases = open_cases(CaseSource(run=run, subset=subset), to_fit=False)
    structures = cases.structures(cases.open(cases.cases[0]))
    by_patient = {}
    for one in cases.cases:
        passed = pass_over(cases.open(one), structures, parts_of(DECISIONS), cases.names.ignore_label)
        for number, decision in enumerate(DECISIONS):
            for structure in structures:
                score = decision.score(passed.findings[structure.name])
                score = score.astype(np.float32) if isinstance(score, np.ndarray) else score
                patients = by_patient.setdefault((number, structure.name), {})
                patients.setdefault(one.patient, []).append(score)
    return {
        (DECISIONS[number].label, structure): [DECISIONS[number].of_patient(said) for said in patients.values()]
        for (number, structure), patients in by_patient.items()
    }


def loss(decision, rule, score) -> float:
    if decision.makes == "threshold":
        return float(score[cell_of(rule["threshold"])])
    return float(decision.size(score) > rule["quantile"] * (1 + 1e-9))


def keep(dataset: str, run: Path) -> None:
    """Fit on some patients, judge on the others, again and again."""
    noises = sorted(path.name for path in (run / "logits").glob("test-noise*"))
    by_subset = {subset: scores(run, subset) for subset in ("test", *noises)}
    labelled, rows = LABELLED[dataset], []
    for decision in DECISIONS:
        for label, structure in [key for key in by_subset["test"] if key[0] == decision.label]:
            clean, rng = by_subset["test"][label, structure], np.random.default_rng(0)
            observed, rules = {subset: [] for subset in by_subset}, []
            for _ in range(SPLITS[dataset]):
                order = rng.permutation(len(clean))
                evidence = Evidence(structure, Fraction(repr(decision.alpha)), present=True)
                for patient in order[:labelled]:
                    decision.add(evidence, [clean[patient]])
                rule = decision.choose(evidence)
                rules.append(rule.get("threshold", rule.get("quantile")))
                for subset, by_key in by_subset.items():
                    losses = [loss(decision, rule, by_key[label, structure][patient]) for patient in order[labelled:]]
                    observed[subset].append(np.mean(losses))
            for subset, values in observed.items():
                row = {"decision": label, "structure": structure, "subset": subset, "patients": len(clean)}
                numbers = {"promised": decision.alpha, "rule": np.mean(rules), "mean": np.mean(values)}
                numbers |= {"sd": np.std(values), "above": np.mean(np.array(values) > decision.alpha)}
                rows.append({**row, **{name: f"{value:.4g}" for name, value in numbers.items()}})
    with kept(dataset).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table(dataset: str) -> str:
    """One line for each decision and structure: promised, observed, and observed under noise."""
    with kept(dataset).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    subsets = list(dict.fromkeys(row["subset"] for row in rows))
    shifted = [name for name in subsets if name != "test"]
    head = ["decision", "structure", "mean rule", "promised", "observed", "splits above",
            *(f"noise {name.split('noise')[1].split('-')[0]}" for name in shifted)]  # fmt: skip
    lines = [head]
    for decision, structure in dict.fromkeys((row["decision"], row["structure"]) for row in rows):
        own = {row["subset"]: row for row in rows if (row["decision"], row["structure"]) == (decision, structure)}
        clean = own["test"]
        cells = [decision, structure, clean["rule"], clean["promised"], f"{float(clean['mean']):.3f} ± {clean['sd']}"]
        cells += [f"{100 * float(clean['above']):.0f} %", *(f"{float(own[name]['mean']):.3f}" for name in shifted)]
        lines.append(cells)
    return pages.markdown(lines)


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        keep(words[0], Path(words[1]))
    tables = {dataset: table(dataset) for dataset in LABELLED}
    return pages.write_tables(PAGE, tables, check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
