"""Score tables in short: means over cases with their intervals, and of how many cases how many are defined."""

from collections.abc import Sequence

import pandas as pd

from calibseg.analysis import bootstrap
from calibseg.analysis.columns import ALL, EXPERIMENT, MEAN, Frame
from calibseg.analysis.table import plain


def summary(rows: Frame, repeats: int = bootstrap.REPEATS) -> Frame:
    """Mean over cases, 95 % patient-bootstrap interval, and of how many cases how many are defined (`18 of 20`)."""
    cases = plain(rows[rows["scope"] == "case"])
    group = [*EXPERIMENT, "metric", "voxels", "class", "unit", "higher_is_better"]
    blocks = []
    for _, experiment in cases.groupby(list(EXPERIMENT), sort=False):
        present = experiment.groupby(group, sort=False)["value"].size()
        wide = experiment.pivot(index=["patient", "case"], columns=group, values="value")[list(present.index)]
        low, high = bootstrap.interval(wide.to_numpy(), list(wide.index.get_level_values("patient")), repeats)
        block = present.index.to_frame(index=False)
        block["mean"] = wide.mean().to_numpy()
        block["low"], block["high"] = low, high
        block["defined"] = wide.notna().sum().to_numpy()
        block["cases"] = present.to_numpy()
        blocks.append(block)
    columns = [*group, "mean", "low", "high", "defined", "cases"]
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=columns)


def class_means(rows: Frame, classes: Sequence[str]) -> Frame:
    """The same summary over cases and the named classes together, for metrics that have no value for all classes.

    Every defined value counts once, as in the papers' tables, so `defined` and `cases` count cases times classes.
    """
    cases = plain(rows[rows["scope"] == "case"])
    together = cases.loc[cases["class"] == ALL, "metric"].unique()
    chosen = cases[cases["class"].isin(list(classes)) & ~cases["metric"].isin(together)]
    group = [*EXPERIMENT, "metric", "voxels", "unit", "higher_is_better"]
    means = []
    for key, part in chosen.groupby(group, sort=False):
        values = part["value"].to_numpy()
        low, high = bootstrap.interval(values[:, None], part["patient"].tolist())
        counts = {"defined": int(part["value"].notna().sum()), "cases": len(part)}
        keys = dict(zip(group, key, strict=True))
        means.append({**keys, "class": MEAN, "mean": part["value"].mean(), "low": low[0], "high": high[0], **counts})
    return pd.DataFrame(means, columns=[*group[:-2], "class", *group[-2:], "mean", "low", "high", "defined", "cases"])
