"""Several raters in a report: every method against each of them, against their mean, and where they agree.

Shown where a score table holds values of several raters (docs/raters.md); what each says, and which to read, stands
beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibseg.analysis.columns import Frame, metric_key, split_key
from calibseg.analysis.headline import metric_name
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import means
from calibseg.report.html.charts import figure, interval_point
from calibseg.report.html.groups import ComparisonGroup, available
from calibseg.report.html.tables import Head, Section, label, rows_of

RULES = ("all", "predicted")  # of a rater's ECE; the table has the first that was scored
OF_RATERS = {  # what stands below a column's name; plain metrics are shown beside the raters' own
    "dsc": "with the label of most",
    "rater_dsc": "mean over raters",
    "consensus_dsc": "where all agree",
    "thresholded_dsc": "at equal levels",
    "ece": "against their share",
    "rater_ece": "mean over raters",
    "consensus_confidence": "where all agree",
    "volume_crps": "of their volumes",
}
PLAIN = ("dsc", "ece")
CAPTION = (
    "Each rater's labels as the truth, one rater after the other; the mean of these values; and the raters together:"
    " for DSC the label that most of them gave, for ECE the share of them (2 of 4 is a label of 0.5). A method that"
    " took one rater's side is better there than at the others. A mean over raters counts their disagreement as an"
    " error, so that its ECE is never below that against their share. Bars are 95 % intervals over patients."
)


def raters(groups: Sequence[ComparisonGroup]) -> Section:
    """The values of each group with several raters: a table, and a panel for DSC and each ECE."""
    tables = {group.name: table for group in groups if (table := _means(group)) is not None}
    present = {key for table in tables.values() for key in table["metric"]}
    columns = [key for name in OF_RATERS for key in ([f"{name}@{rule}" for rule in RULES] if "ece" in name else [name])]
    keys = [key for key in columns if key in present]
    seen = [key for key in keys if key.startswith("rater_ece@")][:1]
    rule = split_key(seen[0])[1] if seen else ""
    keys = [key for key in keys if "@" not in key or key.endswith(f"@{rule}")]
    panels, rows = [], []
    for group in groups:
        if group.name in tables:
            rows += rows_of(group.name, group.methods, tables[group.name], keys)
            panels += _panels(group, tables[group.name], several=len(groups) > 1)
    made = figure(
        "lines", "raters", "Each rater and all of them", CAPTION, panels, x={"label": ""}, y={"label": ""}, dodge=True,
        own_scales=True, best=True,
    )  # fmt: skip
    return Section(made, tuple(_head(key, tables) for key in keys), tuple(rows))


def _means(group: ComparisonGroup) -> Frame | None:
    """The means of everything that several raters are judged by; None where it was not measured or does not compare."""
    rows = group.table.rows
    rows = rows[(rows["scope"] == "case") & rows["metric"].isin(list(OF_RATERS))]
    pairs = rows[["metric", "voxels"]].drop_duplicates().itertuples(index=False, name=None)
    own = [metric_key(*pair) for pair in pairs if pair[0] not in PLAIN]
    if not own:
        return None
    try:
        return means(replace(group.table, rows=rows), [*own, *available(rows, ("dsc", *(f"ece@{r}" for r in RULES)))])
    except BadInput:  # methods that were scored on different cases do not compare
        return None


def _head(key: str, tables: Mapping[str, Frame]) -> Head:
    metric, voxels = split_key(key)
    up = next(bool(table.loc[table["metric"] == key, "higher_is_better"].iloc[0]) for table in tables.values()
              if key in set(table["metric"]))  # fmt: skip
    where = OF_RATERS[metric] + (f", {'all voxels' if voxels == 'all' else 'predicted foreground'}" if voxels else "")
    return Head(metric_name(metric), where, "ml" if metric == "volume_crps" else "", up)


def _panels(group: ComparisonGroup, table: Frame, several: bool) -> list[dict[str, Any]]:
    """DSC and ECE with each rater, their mean, and with the raters together."""
    panels = []
    for name, mean, together, last in (
        ("dsc", "rater_dsc", "dsc", "most of them"),
        *((f"ece@{rule}", f"rater_ece@{rule}", f"ece@{rule}", "their share") for rule in reversed(RULES)),
    ):
        start = f"{mean} rater " if "@" in mean else f"{mean}@rater "
        single = [key for key in dict.fromkeys(table["metric"]) if str(key).startswith(start)]
        single.sort(key=lambda key: int(str(key).removeprefix(start)))
        keys = [key for key in (*single, mean, together) if key in set(table["metric"])]
        if not single:
            continue
        ticks = [f"rater {str(key).removeprefix(start)}" if key in single else
                 "mean of them" if key == mean else last for key in keys]  # fmt: skip
        part = table[table["metric"].isin(keys)].set_index(["method", "metric"])
        order = part.xs(mean, level="metric").sort_values("place").index
        series = [
            {"method": method, "points": [interval_point(x, part.loc[(method, key)]) for x, key in enumerate(keys)]}
            for method in order
        ]
        title = label(name) + (f" · {group.name}" if several else "")
        panels.append({"place": group.name, "title": title, "series": series, "ticks": ticks})
    return panels
