"""Writes tables and figure of few-cases.md from the kept score tables of `calibseg benchmark cpu/hippocampus-few`.

calibseg benchmark cpu/hippocampus-few --root hippocampus=Task04_Hippocampus --kept docs/results/few    trains and keeps
python docs/results/few_cases.py            writes tables and figure
python docs/results/few_cases.py --check    only says whether the tables are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pandas as pd
import result_pages as pages

from calibseg.analysis.paired import difference
from calibseg.report import palette

HERE = Path(__file__).parent
PAGE, FIGURE, KEPT = HERE / "few-cases.md", HERE / "few-cases.png", HERE / "few"
COLUMNS = ("dsc", "signed_gap@predicted", "ece@predicted", "ece@truth", "ece@all", "nll@all")
AGAINST, CROSS_ENTROPY = "ce_dice+none", "ce+none"
KEYS = ["cases", "loss", "calibrator", "training", "draw", "patient", "case"]


def values() -> pd.DataFrame:
    """One row per number of training cases, loss, calibrator, training (draw and seed) and test case."""
    parts = []
    for cell, rows in pages.kept_cells("cpu/hippocampus-few", KEPT):
        drawn = cell.recipe.data.split.partition("-")[2]
        which = {"training": f"{drawn} seed {cell.recipe.seed}", "draw": drawn}
        number = int(cell.dataset.rpartition("-")[2])
        parts.append(pages.with_worst_class(rows).assign(loss=cell.label, cases=number, **which))
    wide = pages.by_case(pd.concat(parts), KEYS)
    return wide.assign(method=wide["loss"] + "+" + wide["calibrator"])


def worst_classes(scores: pd.DataFrame) -> list[list[str]]:
    """The DSC of the class that is segmented worst, training by training; a draw that was not trained is blank."""
    plain = scores[scores["calibrator"] == "none"]
    worst = (
        plain.groupby(["loss", "cases", "training"], sort=False)["worst class"].mean().unstack(["cases", "training"])
    )
    worst = worst.sort_index(axis=1)
    head = ["loss", *(f"{cases} cases, {training}" for cases, training in worst.columns)]
    return [
        head,
        *([str(loss), *("" if pd.isna(one) else f"{one:.3f}" for one in row)] for loss, row in worst.iterrows()),
    ]


def tables(scores: pd.DataFrame) -> dict[str, str]:
    """The tables of the page by their name; numbers of cases, losses and calibrators in the order of the grid."""
    head = ["training cases", "loss", "calibrator", "trainings", *COLUMNS]
    means, differences, losses = [head], [head], [head]
    for cases in dict.fromkeys(scores["cases"]):
        here = scores[scores["cases"] == cases]
        titles = dict.fromkeys(here[["method", "loss", "calibrator"]].itertuples(index=False, name=None))
        methods = {method: [str(cases), loss, calibrator] for method, loss, calibrator in titles}
        means += pages.comparison(here, methods, COLUMNS)
        if methods.pop(AGAINST, None):
            differences += pages.comparison(here, methods, COLUMNS, AGAINST)
        if methods.pop(CROSS_ENTROPY, None):
            plain = {method: cells for method, cells in methods.items() if cells[2] == "none"}
            losses += pages.comparison(here, plain, COLUMNS, CROSS_ENTROPY)
    made = {"means": means, "differences": differences, "losses": losses, "worst": worst_classes(scores)}
    return {name: pages.markdown(rows) for name, rows in made.items()}


def draw(scores: pd.DataFrame, path: Path) -> None:
    """Signed gap and DSC against the number of training cases, a line per loss, with intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    losses = list(dict.fromkeys(scores["loss"]))
    styles = palette.method_styles({loss: (loss, "") for loss in losses})
    panels = (("signed_gap@predicted", "none"), ("signed_gap@predicted", "region_temperature"), ("dsc", "none"))
    for axis, (name, calibrator) in zip(axes, panels, strict=True):
        for place, loss in enumerate(losses):
            part = scores[(scores["loss"] == loss) & (scores["calibrator"] == calibrator)]
            sizes = sorted(set(part["cases"]))
            own = [difference(part[part["cases"] == n], f"{loss}+{calibrator}", None, [name])[name] for n in sizes]
            x = [n * 2 ** (0.06 * (place - (len(losses) - 1) / 2)) for n in sizes]
            mean = [one.mean for one in own]
            ends = [[one.mean - one.low for one in own], [one.high - one.mean for one in own]]
            style = styles[loss]
            axis.errorbar(x, mean, yerr=ends, color=style.colour, marker=style.marker, capsize=2, label=style.label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(set(scores["cases"])), [str(n) for n in sorted(set(scores["cases"]))])
        axis.minorticks_off()
        axis.set_xlabel("training cases")
        axis.set_title(f"{name}, {'uncalibrated' if calibrator == 'none' else calibrator}", fontsize=10)
        if name != "dsc":
            axis.axhline(0, color="gray", linestyle=":")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    axes[1].sharey(axes[0])
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(words: list[str]) -> int:
    scores = values()
    if words != ["--check"]:
        draw(scores, FIGURE)
    return pages.write_tables(PAGE, tables(scores), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
