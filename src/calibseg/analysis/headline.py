"""What is looked at first, and on which voxels: one home for tables, ranks, figures and the report.

A metric states its place in the headline in its own file (`headline = (1, "predicted")`): calibration where something
is predicted, proper scores on every voxel.

>>> headline()
('ece@predicted', 'nll@all', 'brier@all', 'dsc', 'hd95')
>>> headline_voxels()
{'ece': 'predicted', 'nll': 'all', 'brier': 'all'}
"""

from collections.abc import Sequence
from functools import cache

from calibseg.analysis.columns import Frame, metric_key, split_key
from calibseg.core import registry

PAPER_METRICS = ("dsc", "hd95", "ece", "cece")  # the four of the NACL paper

# What a reader must know before believing a number: conditioning on the truth is no measure of calibration.
VOXEL_RULES = {
    "truth": "paper rule: the truth is foreground; a perfect predictor does not score 0 here",
    "predicted": "the prediction is foreground",
    "union": "truth or prediction is foreground; a perfect predictor does not score 0 here",
    "all": "every voxel",
    "boundary": "near the true surface; a perfect predictor does not score 0 here",
}
EXPLAINED = {  # the same at length, for the three rules that a report sets side by side
    "truth": "The papers' rule: voxels whose true label is foreground. It looks where the organ is, which a user of the"
    " network cannot know; even a perfect predictor does not score 0 here, so small is not always honest.",
    "predicted": "Voxels that the network calls foreground: what it says where it speaks. A perfect predictor scores 0."
    " This is the headline.",
    "all": "Every voxel. A perfect predictor scores 0, but easy background dominates, so all values are small.",
}


@cache
def headline() -> tuple[str, ...]:
    """The metrics of the headline in their order, each with its voxels."""
    facts = {key: member.facts.get("headline") for key, member in registry.members("metrics").items()}
    ordered = sorted((fact, key) for key, fact in facts.items() if fact)
    return tuple(metric_key(key, voxels) for (_, voxels), key in ordered)


@cache
def headline_voxels() -> dict[str, str]:
    """On which voxels a calibration metric of the headline is read when nothing else is asked for."""
    return {metric: voxels for metric, voxels in map(split_key, headline()) if voxels}


def default_metrics(rows: Frame, wanted: Sequence[str] = PAPER_METRICS) -> Sequence[str]:
    """What is ranked and shown unless asked otherwise: those of the wanted metrics that a table has."""
    measured = set(rows["metric"])
    return [metric for metric in wanted if metric in measured] or wanted


@cache
def ranked() -> tuple[str, ...]:
    """What is ranked unless asked otherwise, each with its voxels: the same in `rank`, in a benchmark and a report."""
    shape = [key for key in headline() if "@" not in key]
    return tuple(key if key in shape else f"{key}@{headline_voxels().get(key, 'predicted')}" for key in PAPER_METRICS)


@cache
def shown() -> tuple[str, ...]:
    """What a report looks at: the headline, what is ranked, ECE under every rule explained, CECE by the papers'."""
    rules = (f"ece@{rule}" for rule in EXPLAINED)
    return tuple(dict.fromkeys((*headline(), *ranked(), *rules, "cece@truth")))


def metric_name(key: str) -> str:
    """A metric as papers write it, as its own file says: `volume_error` -> `volume error`."""
    member = registry.members("metrics").get(key)
    return str(member.facts.get("acronym", "") if member else "") or key.replace("_", " ")
