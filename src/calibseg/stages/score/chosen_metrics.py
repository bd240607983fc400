"""The metrics that the options of scoring ask for: built and checked before a file is opened, and told in the rules."""

import ast
import json
from functools import cache
from typing import Any

from calibseg.core import registry
from calibseg.core.types import LEAST_PROBABILITY
from calibseg.metrics import Metric
from calibseg.metrics.statistics.calibration import Bins
from calibseg.metrics.statistics.distance_bands import distance_bands
from calibseg.stages.score.options import ScoringOptions


@cache
def metrics(scoring: ScoringOptions) -> dict[str, Metric]:
    """The metrics to compute, by key, built with the options that are stated."""
    return {key: registry.build("metrics", key, options) for key, (_, options) in _chosen(scoring).items()}


def check_scoring(scoring: ScoringOptions) -> ScoringOptions:
    """The options, if everything can be built that they ask for: what is wrong is said before a file is opened."""
    metrics(scoring)
    Bins(scoring.bins)
    distance_bands(scoring.boundary_mm)
    return scoring


def metric_options(scoring: ScoringOptions) -> dict[str, dict[str, Any]]:
    """Every option of every chosen metric with the value it has, for the record."""
    return {
        key: {option.name: _literal(option.default) for option in member.options} | options
        for key, (member, options) in _chosen(scoring).items()
    }


def rules_of(scoring: ScoringOptions) -> dict[str, Any]:
    """The options as a score table's rules hold them. Which voxels and metrics is no rule: rows say it themselves."""
    stated = {name: getattr(scoring, name) for name in ("bins", "units", "empty", "boundary_mm")}
    return {
        **stated,
        "least_probability": LEAST_PROBABILITY,
        "metrics": json.loads(json.dumps(metric_options(scoring))),
    }


def _chosen(scoring: ScoringOptions) -> dict[str, tuple[registry.Member, dict[str, Any]]]:
    """The metrics to compute, each with the options of its constructor that are stated."""
    own: dict[str, dict[str, Any]] = {}
    for path, value in scoring.options.items():
        key, _, name = path.rpartition(".")
        own.setdefault(key, {})[name] = value
    for key in (*scoring.metrics, *own):
        registry.find("metrics", key)
    chosen = {}
    for key, member in registry.members("metrics").items():
        if scoring.metrics and key not in scoring.metrics:
            continue
        has = {option.name for option in member.options}
        chosen[key] = (member, ({"empty": scoring.empty} if "empty" in has else {}) | own.get(key, {}))
    return chosen


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
