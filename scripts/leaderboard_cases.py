"""Writes what a leaderboard checks rows against: the test cases of our split, and fingerprints of their labels.

    python scripts/leaderboard_cases.py hippocampus Task04_Hippocampus
    python scripts/leaderboard_cases.py acdc ACDC

Labels are taken as they were downloaded, on their own grid: whoever scores against the same files agrees.
"""

import sys
from pathlib import Path
from typing import Any

from calibseg.analysis.columns import ALL
from calibseg.analysis.leaderboard import HOME, KIND, STATED
from calibseg.core import files, registry
from calibseg.data.splits import three_way
from calibseg.io.label_fingerprint import label_fingerprint
from calibseg.io.predictions import read_labels
from calibseg.stages.score.chosen_metrics import rules_of
from calibseg.stages.score.options import ScoringOptions

METRICS = ("dsc", "hd95", "ece@predicted", "ece@truth", "nll@all", "brier@all")
UNITS = {"hippocampus": "mm", "acdc": "voxel"}  # ACDC is passed on with and without its spacing


def content(name: str, root: Path) -> dict[str, Any]:
    """The benchmark of a dataset, from its folder."""
    dataset = registry.create("datasets", name)
    studies = {study.id: study for study in dataset.find(root)}
    split = three_way({study.id: study.patient for study in studies.values()}, dataset.split["sizes"])
    asked = tuple(dict.fromkeys(key.partition("@")[0] for key in METRICS))
    rules = rules_of(ScoringOptions(metrics=asked, units=UNITS[name])) | {"activation": "softmax"}
    cases = {
        case: {"patient": studies[case].patient, "labels": label_fingerprint(read_labels(studies[case].labels[0])[0])}
        for case in split.test
    }
    units = "" if UNITS[name] == "mm" else f" --units {UNITS[name]}"
    return {
        "title": f"{dataset.title}: the {len(cases)} test cases of our split",
        "dataset": name,
        "labels": "the label maps as they are downloaded",
        "score": f"--predictions DIR --labels DIR --classes {','.join(dataset.classes)}"
        f" --metrics {','.join(asked)}{units}",
        "rules": {key: rules[key] for key in STATED},
        "classes": list(dataset.classes),
        "metrics": {key: _metric(key, rules, dataset.classes) for key in METRICS},
        "cases": cases,
    }


def _metric(key: str, rules: dict[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    name = key.partition("@")[0]
    metric = registry.build("metrics", name, rules["metrics"][name])
    unit = rules["units"] if metric.unit == "mm" else metric.unit
    return {
        "unit": unit,
        "higher_is_better": metric.higher_is_better,
        "classes": [ALL] if "@" in key else list(classes[1:]),
        "options": rules["metrics"][name],
    }


if __name__ == "__main__":
    files.write_json(HOME / f"{sys.argv[1]}.json", KIND, content(sys.argv[1], Path(sys.argv[2])))
