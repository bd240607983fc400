"""Score tables made of given values."""

from calibseg.analysis import table
from calibseg.analysis.table import ScoreTable


def scores(values, **columns):
    """A score table: values[method][metric] is a list with one value per case; `ece@all` names its voxels."""
    rows = []
    for method, metrics in values.items():
        for metric, cases in metrics.items():
            name, _, voxels = metric.partition("@")
            for number, value in enumerate(cases):
                whose = {"patient": f"p{number}", "case": f"c{number}", "scope": "case"}
                what = {"metric": name, "voxels": voxels, "class": "all", "higher_is_better": name == "dsc"}
                rows.append({"loss": method, "value": value, **whose, **what, **columns})
    return ScoreTable(table.frame(rows), {"datasets": {}}, name="made")
