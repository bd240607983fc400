"""Writes tables and figure of few-cases.md from the kept score tables of `calibseg benchmark cpu/hippocampus-few`.

calibseg benchmark cpu/hippocampus-few --root hippocampus=Task04_Hippocampus --kept docs/results/few    trains and keeps
python docs/results/few_cases.py            writes tables and figure
python docs/results/few_cases.py --check    only says whether the tables are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import Difference, difference
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.kept import kept_path
from calibseg.report import palette

HERE = Path(__file__).parent
PAGE, FIGURE, KEPT = HERE / "few-cases.md", HERE / "few-cases.png", HERE / "few"
COLUMNS = ("dsc", "signed_gap@predicted", "ece@predicted", "ece@truth", "ece@all", "nll@all")
AGAINST = "ce_dice"
FIRST_TRIAL = [
    "train.learning_rate=0.001",
    "train.drop_at=0.5",
]  # what is kept was trained so, not as the grid is now
KEYS = ["cases", "loss", "calibrator", "training", "patient", "case"]


def values() -> pd.DataFrame:
    """One row per number of training cases, loss, calibrator, training (draw and seed) and test case."""
    parts = []
    for cell in read_grid("cpu/hippocampus-few", FIRST_TRIAL).cells:
        path = kept_path(KEPT, cell.slug)
        if path.is_file():
            rows = table.plain(table.read(path).rows)
            rows = rows[rows["subset"] == "test"]
            names = rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", "")
            training = f"{cell.recipe.data.split.partition('-')[2]} seed {cell.recipe.seed}"
            number = int(cell.dataset.rpartition("-")[2])
            parts.append(rows.assign(name=names, loss=cell.label, training=training, cases=number))
    rows = pd.concat(parts)
    rows = rows.assign(calibrator=rows["calibrator"].replace("", "none"))
    wide = rows.groupby([*KEYS, "name"], sort=False)["value"].mean().unstack("name").reset_index()
    return wide.assign(method=wide["loss"] + "+" + wide["calibrator"])


def groups(found: pd.DataFrame) -> list[tuple[int, str, str]]:
    """Numbers of cases, losses and calibrators that there are, in the order of the grid."""
    return list(dict.fromkeys(found[["cases", "loss", "calibrator"]].itertuples(index=False, name=None)))


def tables(found: pd.DataFrame) -> dict[str, str]:
    """The tables of the page by their name."""
    means = [["training cases", "loss", "calibrator", "trainings", *COLUMNS]]
    against = [["training cases", "loss", "calibrator", "trainings", *COLUMNS]]
    for cases, loss, calibrator in groups(found):
        here = found[found["cases"] == cases]
        method = f"{loss}+{calibrator}"
        own = difference(here, method, None, COLUMNS)
        means.append([str(cases), loss, calibrator, str(own["dsc"].trainings), *(text(own[name]) for name in COLUMNS)])
        if method != f"{AGAINST}+none" and f"{AGAINST}+none" in set(here["method"]):
            gap = difference(here, method, f"{AGAINST}+none", COLUMNS)
            shown = [text(gap[name], sign=True) for name in COLUMNS]
            against.append([str(cases), loss, calibrator, str(gap["dsc"].trainings), *shown])
    return {"means": _table(means), "differences": _table(against)}


def text(one: Difference, sign: bool = False) -> str:
    """A mean or a difference with its interval; a difference in round brackets where the interval holds 0."""
    form = "+.3f" if sign else ".3f"
    said = f"{one.mean:{form}} [{one.low:{form}}, {one.high:{form}}]"
    return said if one.is_clear or not sign else f"({said})"


def _table(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(found: pd.DataFrame, path: Path) -> None:
    """Signed gap and DSC against the number of training cases, a line per loss, with intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    losses = list(dict.fromkeys(found["loss"]))
    styles = palette.method_styles({loss: (loss, "") for loss in losses})
    panels = (("signed_gap@predicted", "none"), ("signed_gap@predicted", "region_temperature"), ("dsc", "none"))
    for axis, (name, calibrator) in zip(axes, panels, strict=True):
        for place, loss in enumerate(losses):
            part = found[(found["loss"] == loss) & (found["calibrator"] == calibrator)]
            sizes = sorted(set(part["cases"]))
            own = [difference(part[part["cases"] == n], f"{loss}+{calibrator}", None, [name])[name] for n in sizes]
            x = [n * 2 ** (0.06 * (place - (len(losses) - 1) / 2)) for n in sizes]
            mean = [one.mean for one in own]
            ends = [[one.mean - one.low for one in own], [one.high - one.mean for one in own]]
            style = styles[loss]
            axis.errorbar(x, mean, yerr=ends, color=style.colour, marker=style.marker, capsize=2, label=style.label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(set(found["cases"])), [str(n) for n in sorted(set(found["cases"]))])
        axis.minorticks_off()
        axis.set_xlabel("training cases")
        axis.set_title(f"{name}, {'uncalibrated' if calibrator == 'none' else calibrator}", fontsize=10)
        if name != "dsc":
            axis.axhline(0, color="gray", linestyle=":")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    axes[1].sharey(axes[0])
    figure.savefig(path, dpi=110, metadata={"Software": None})


def page(found: pd.DataFrame) -> str:
    """The page with its tables as they are now; the words between them are kept."""
    content = PAGE.read_text(encoding="utf-8")
    for name, lines in tables(found).items():
        begin, end = f"<!-- {name}: begin (written by docs/results/few_cases.py) -->", f"<!-- {name}: end -->"
        before, rest = content.split(begin)
        content = f"{before}{begin}\n{lines}\n{end}{rest.split(end)[1]}"
    return content


def main() -> int:
    found = values()
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page(found))
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found, FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
