"""A paragraph for the Methods section of a paper, and BibTeX for what it names: made from recipes and score tables."""

import re
from collections.abc import Iterable, Mapping

from calibseg import __version__
from calibseg.analysis import bootstrap
from calibseg.analysis.evidence import Evidence
from calibseg.analysis.headline import headline
from calibseg.analysis.ranking import Ranked
from calibseg.core import registry
from calibseg.report.html.groups import ComparisonGroup
from calibseg.report.html.tables import label
from calibseg.report.palette import shown_method

CITED = re.compile(r"^Paper: (.*?)(?=^\S+:|^$|^>>>|\Z)", re.M | re.S)


def paragraph(evidence: Evidence, groups: Iterable[ComparisonGroup], ranked: Mapping[str, Ranked]) -> dict[str, str]:
    """`text`, in the third person and ready to edit, and `bibtex`; metrics that nobody measured are not named."""
    rows = evidence.test.rows
    measured = {key for group in groups for key in group.keys}
    compared = [key for key in headline() if key in measured]
    tested = dict.fromkeys(metric for one in ranked.values() for metric in one.tests)
    cases = rows[rows["scope"] == "case"]
    datasets = [str(name) for name in dict.fromkeys(cases["dataset"]) if name]
    sentences = [_data(evidence, datasets), _training(evidence)]
    calibrators = sorted({str(name) for name in cases["calibrator"].unique()} - {"", "none"})
    if calibrators:
        fitted = "on the validation cases" if evidence.runs else "on held-out cases"
        sentences.append(f"Post-hoc calibration ({', '.join(calibrators)}) was fitted {fitted}, never on test cases.")
    patients = cases[["dataset", "patient"]].drop_duplicates()
    by = f" by {', '.join(map(label, compared))}" if compared else ""
    sentences.append(
        f"Methods were compared on {len(cases[['dataset', 'case']].drop_duplicates())} test cases of"
        f" {len(patients)} patients{by}; each value is the mean over cases, averaged"
        f" over seeds, with a {bootstrap.LEVEL:.0%} percentile interval of {bootstrap.REPEATS} bootstrap draws of"
        " patients. An undefined value that other methods have takes the worst value of its column."
    )
    if tested:
        sentences.append(
            f"Ranks ({', '.join(map(label, tested))}) were compared by Friedman's test over patients with Nemenyi's and"
            " Holm's corrections at 5 %."
        )
    sentences.append(f"All numbers were computed with calibseg {__version__}.")
    used = [("losses", run.info.loss) for run in evidence.runs] or [("losses", str(n)) for n in rows["loss"].unique()]
    used += [("calibrators", name) for name in calibrators] + [("datasets", run.info.dataset) for run in evidence.runs]
    used += [("metrics", key.partition("@")[0]) for key in compared]
    return {"text": " ".join(filter(None, sentences)), "bibtex": bibtex(used)}


def _data(evidence: Evidence, datasets: list[str]) -> str:
    sizes: dict[str, list[str]] = {}
    for run in evidence.runs:
        split = run.info.split
        cases = f"{len(split.train)} training, {len(split.validation)} validation, {len(split.test)} test cases"
        sizes.setdefault(run.dataset, []).append(f"{cases}; split seed {split.split_seed}")
    described = [f"{name} ({_either(sizes[name])})" if name in sizes else name for name in datasets]
    return f"Experiments used {', '.join(described)}; cases were split by patient." if described else ""


def _training(evidence: Evidence) -> str:
    if not evidence.runs:
        return ""
    losses = list(dict.fromkeys(shown_method(run.method) for run in evidence.runs))
    networks = list(dict.fromkeys(run.network for run in evidence.runs))
    trained = [run.info.table("train") for run in evidence.runs]
    epochs = _either(str(train["epochs"]) for train in trained if "epochs" in train)
    batches = _either(str(train["batch_size"]) for train in trained if "batch_size" in train)
    rates = _either(
        f"{train['optimiser']} at {train['learning_rate']:g}" for train in trained if "learning_rate" in train
    )
    how = [f"{epochs} epochs" if epochs else "", f"batches of {batches}" if batches else "", rates]
    length = f" for {', '.join(filter(None, how))}" if any(how) else ""
    seeds: dict[tuple[str, str, str], set[str]] = {}
    for run in evidence.runs:
        seeds.setdefault((run.dataset, run.network, run.method), set()).add(run.seed)
    numbers = sorted({len(some) for some in seeds.values()})
    return (
        f"{', '.join(networks)} was trained with {', '.join(losses)}{length}; the checkpoint was selected by validation"
        f" {_either(train['select'] for train in trained)}, with {_either(map(str, numbers))}"
        f" seed{'s' if numbers != [1] else ''} per method."
    )


def _either(words: Iterable[str]) -> str:
    """What all runs say, once; where they differ, each of it."""
    return " or ".join(dict.fromkeys(words))


def bibtex(used: Iterable[tuple[str, str]]) -> str:
    """An entry for each paper that the members' own files name, and one for this software."""
    about = f"  title = {{calibseg {__version__}}},\n  author = {{{{The calibseg developers}}}}\n"
    entries = [f"@misc{{calibseg,\n{about}}}"]
    for family, key in dict.fromkeys(used):
        member = registry.members(family).get(key)
        cited = CITED.search(member.doc) if member else None
        said = str(member.facts.get("citation", "")) if member and family == "datasets" else cited[1] if cited else ""
        for number, source in enumerate(re.split(r";\s+", " ".join(said.split()).rstrip("."))):
            year = re.search(r"\b(19|20)\d\d\b", source)
            author, _, rest = source.partition(", ")
            if not year or not re.fullmatch(r"[A-Z][^\d(:]*", author):
                continue
            fields = {"author": author.replace(" et al.", " and others"), "howpublished": rest, "year": year[0]}
            body = "".join(f",\n  {name} = {{{_plain(text)}}}" for name, text in fields.items() if text)
            entries.append(f"@misc{{{key}{'abcdef'[number] if number else ''}{body}\n}}")
    return "\n".join(entries)


def _plain(text: str) -> str:
    return re.sub(r"([&%#_$])", r"\\\1", text.replace("{", "").replace("}", ""))
