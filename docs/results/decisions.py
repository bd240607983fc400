"""Keeps what decisions promised and what was observed on the hippocampus, and writes the table of decisions.md.

python docs/results/decisions.py RUN      keeps what 200 random splits of the run's predicted test cases give
python docs/results/decisions.py          writes the tables
python docs/results/decisions.py --check  only says whether they are up to date (exit code 1 if not)

RUN has predicted its test cases as they are, and with noise (`calibseg predict RUN --subset test --noise 0.05`). In
every split 50 patients are labelled, and the promise is judged on the others, with and without noise.
"""

import csv
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pages

from calibseg.decisions import FNR, Evidence, Inner, Margin, Volume, cell_of
from calibseg.decisions.fitted.rules import parts_of
from calibseg.decisions.maths.findings import pass_over
from calibseg.stages.decide.cases import CaseSource, open_cases

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "decisions.md", HERE / "decisions.csv"
SPLITS, LABELLED = 200, 50
DECISIONS = [
    FNR(0.05), FNR(0.1), FNR(0.1, 0.9), Margin(0.95, 0.9), Margin(1.0, 0.9), Inner(1.0, 0.9),
    Volume(0.9), Volume(0.9, "relative"), Volume(0.9, "spread"),
]  # fmt: skip


def scores(run: Path, subset: str) -> dict[tuple[str, str], list]:
    """(decision, structure) -> what each case says, in the order of the cases."""
    cases = open_cases(CaseSource(run=run, subset=subset), to_fit=False)
    structures = cases.structures(cases.open(cases.cases[0]))
    by_decision = {}
    for one in cases.cases:
        passed = pass_over(cases.open(one), structures, parts_of(DECISIONS), cases.names.ignore_label)
        for decision in DECISIONS:
            for structure in structures:
                score = decision.score(passed.findings[structure.name])
                score = score.astype(np.float32) if isinstance(score, np.ndarray) else score
                by_decision.setdefault((decision.label, structure.name), []).append(score)
    return by_decision


def loss(decision, rule, score) -> float:
    if decision.makes == "threshold":
        return float(score[cell_of(rule["threshold"])])
    return float(decision.size(score) > rule["quantile"] * (1 + 1e-9))


def keep(run: Path) -> None:
    """Fit on 50 patients, judge on the others, 200 times."""
    noises = sorted(path.name for path in (run / "logits").glob("test-noise*"))
    by_subset = {subset: scores(run, subset) for subset in ("test", *noises)}
    rows = []
    for decision in DECISIONS:
        for label, structure in [key for key in by_subset["test"] if key[0] == decision.label]:
            clean, rng = by_subset["test"][label, structure], np.random.default_rng(0)
            observed, rules = {subset: [] for subset in by_subset}, []
            for _ in range(SPLITS):
                order = rng.permutation(len(clean))
                evidence = Evidence(structure, Fraction(repr(decision.alpha)), present=True)
                for place in order[:LABELLED]:
                    decision.add(evidence, [clean[place]])
                rule = decision.choose(evidence)
                rules.append(rule.get("threshold", rule.get("quantile")))
                for subset, all_scores in by_subset.items():
                    own = all_scores[label, structure]
                    observed[subset].append(np.mean([loss(decision, rule, own[place]) for place in order[LABELLED:]]))
            for subset, values in observed.items():
                row = {"decision": label, "structure": structure, "subset": subset, "patients": len(clean)}
                numbers = {"promised": decision.alpha, "rule": np.mean(rules), "mean": np.mean(values)}
                numbers |= {"sd": np.std(values), "above": np.mean(np.array(values) > decision.alpha)}
                rows.append({**row, **{name: f"{value:.4g}" for name, value in numbers.items()}})
    with KEPT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def tables() -> dict[str, str]:
    """One line for each decision and structure: promised, observed, and observed under noise."""
    with KEPT.open(encoding="utf-8") as file:
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
    return {"observed": pages.markdown(lines)}


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        keep(Path(words[0]))
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
