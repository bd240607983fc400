"""Writes the tables and the figure of acdc.md from the kept score tables of `calibseg benchmark cpu/acdc`.

calibseg benchmark cpu/acdc --root acdc=ACDC/database --kept docs/results/acdc    trains and keeps
python docs/results/acdc.py RUNS       keeps what the papers of mL1-ACE print, of the finished runs in a folder
python docs/results/acdc.py            writes tables and figure
python docs/results/acdc.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
import tempfile
from math import isnan, nan
from pathlib import Path

import pandas as pd
import result_pages as pages
from scipy.stats import kendalltau

from calibseg.analysis import table
from calibseg.analysis.paired import difference
from calibseg.analysis.paper_values import paper_values
from calibseg.api import score
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.kept import reduced, write_reduced

HERE = Path(__file__).parent
PAGE, FIGURE, KEPT = HERE / "acdc.md", HERE / "acdc.png", HERE / "acdc"
ANCHORS = KEPT / "anchors.csv.gz"
CALIBRATION = ("signed_gap@predicted", "ece@predicted", "ece@truth", "nll@all")
SHAPE = ("dsc", "dsc RV", "dsc MYO", "dsc LV", "hd95")
DRAWN = ("signed_gap@predicted", "ece@predicted", "nll@all", "dsc")
AGAINST = "ce_dice+none"
PAPERS = {"NACL Table 1": "nacl-table1", "CRaC Table 1": "crac-table1"}
PRINTED = ("dsc", "hd95", "ece@truth", "cece@truth", "tcece@truth")
ML1_ACE = {  # Barfoot et al., 50 test patients of the challenge, mean over images and foreground classes: DSC, ACE
    "ce_dice": ("0.880", "0.131"),
    "ml1-ace-hard": ("0.880", "0.102"),
    "ml1-ace-soft": ("0.871", "0.078"),
}


def values() -> pd.DataFrame:
    """One row per loss, calibrator, training (seed) and test case; DSC by class too, and as their mean."""
    parts = []
    for cell, rows in pages.kept_cells("cpu/acdc", KEPT):
        by_class = rows[rows["metric"] == "dsc"].assign(metric=lambda part: part["metric"] + " " + part["class"])
        rows = pd.concat([rows, by_class])
        parts.append(rows.assign(loss=cell.label, training=f"seed {cell.recipe.seed}"))
    wide = pages.by_case(pd.concat(parts), ["loss", "calibrator", "training", "patient", "case"])
    return wide.assign(method=wide["loss"] + "+" + wide["calibrator"])


def tables() -> dict[str, str]:
    """The tables of the page by their name, methods in the order of the grid."""
    scores = values()
    titles = dict.fromkeys(scores[["method", "loss", "calibrator"]].itertuples(index=False, name=None))
    every = {method: [loss, calibrator] for method, loss, calibrator in titles}
    plain = {method: cells[:1] for method, cells in every.items() if cells[1] == "none"}
    against = {method: cells for method, cells in every.items() if method != AGAINST}
    of_ce = {method: cells for method, cells in plain.items() if method != "ce+none"}
    made = {
        "shape": [["loss", "trainings", *SHAPE], *pages.comparison(scores, plain, SHAPE)],
        "calibration": [
            ["loss", "calibrator", "trainings", *CALIBRATION],
            *pages.comparison(scores, every, CALIBRATION),
        ],
        "differences": [
            ["loss", "calibrator", "trainings", "dsc", *CALIBRATION],
            *pages.comparison(scores, against, ("dsc", *CALIBRATION), AGAINST),
        ],
        "losses": [
            ["loss", "trainings", "dsc", *CALIBRATION],
            *pages.comparison(scores, of_ce, ("dsc", *CALIBRATION), "ce+none"),
        ],
        "papers": printed_beside(scores, [cells[0] for cells in plain.values()]),
        "orders": orders_beside(scores, [cells[0] for cells in plain.values()]),
        "anchors": anchors(),
    }
    return {name: pages.markdown(rows) for name, rows in made.items()}


def printed_beside(scores: pd.DataFrame, losses: list[str]) -> list[list[str]]:
    """Ours (mean over cases) and what two papers print; empty where a paper has no such number."""
    rows = [["loss", "whose", *PRINTED]]
    own, papers = own_values(scores, losses), printed_values()
    for loss in losses:
        for whose, values in {"here": own, **papers}.items():
            if loss in values.index:
                cells = [values[name].get(loss, nan) if name in values else nan for name in PRINTED]
                rows.append([loss, whose, *("" if isnan(value) else f"{value:.3f}" for value in cells)])
    return rows


def orders_beside(scores: pd.DataFrame, losses: list[str]) -> list[list[str]]:
    """Places of the losses that a paper prints and that were trained here, ours / theirs; Kendall's tau of both."""
    rows = [["paper", "loss", *PRINTED, "sum of ranks"]]
    own = own_values(scores, losses)
    for title, printed in printed_values().items():
        both = [loss for loss in losses if loss in printed.index]
        metrics = [name for name in PRINTED if name in printed]
        places = [_places(values.loc[both, metrics]) for values in (own, printed)]
        for loss in both:
            pairs = {name: " / ".join(f"{part.loc[loss, name]:g}" for part in places) for name in places[0]}
            rows.append([title, loss, *(pairs.get(name, "") for name in rows[0][2:])])
        taus = {name: f"{kendalltau(*(part[name] for part in places)).statistic:+.2f}" for name in places[0]}
        rows.append([title, "Kendall's tau", *(taus.get(name, "") for name in rows[0][2:])])
    return rows


def own_values(scores: pd.DataFrame, losses: list[str]) -> pd.DataFrame:
    """Our means over cases of what the papers print, a row for each loss, uncalibrated."""
    own = {loss: difference(scores, f"{loss}+none", None, PRINTED) for loss in losses}
    return pd.DataFrame({loss: {name: one[name].mean for name in PRINTED} for loss, one in own.items()}).T


def printed_values() -> dict[str, pd.DataFrame]:
    """What each paper prints of ACDC, a row for each loss by our name for it."""
    printed = {}
    for title, name in PAPERS.items():
        rows = paper_values(name)
        rows = rows[(rows["dataset"] == "acdc") & rows["metric"].isin(PRINTED)]
        printed[title] = rows.pivot_table(index="loss", columns="metric", values="value").rename(
            index={"mbls": "mbls-m5"}
        )
    return printed


def _places(values: pd.DataFrame) -> pd.DataFrame:
    """The place of each loss by each metric, 1 the best, and the place of the sum of these, as the papers rank."""
    places = pd.DataFrame({name: values[name].rank(ascending=name != "dsc") for name in values})
    return places.assign(**{"sum of ranks": places.sum(axis=1).rank()})


def anchors() -> list[list[str]]:
    """The class-wise average calibration error of mL1-ACE's papers beside the published one; DSC as here."""
    scores = pages.by_case(table.read(ANCHORS).rows, ["variant", "seed", "patient", "case"])
    scores = scores.rename(columns={"variant": "method", "seed": "training"})
    rows = [["loss", "dsc", "cace@all", "published DSC", "published ACE"]]
    for loss in dict.fromkeys(scores["method"]):
        own = difference(scores, loss, None, ("dsc", "cace@all"))
        rows.append([loss, *(pages.interval(one) for one in own.values()), *ML1_ACE[loss]])
    return rows


def keep(runs: Path) -> None:
    """Score the finished runs of mL1-ACE's comparison once more, by its papers' rules."""
    slugs = {cell.label: cell.slug for cell in read_grid("cpu/acdc").cells if cell.recipe.seed == 0}
    rules = {"bins": 20, "voxels": ("all",), "metrics": ("dsc", "cace"), "options": {"cace.classes": "foreground"}}
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for loss in ML1_ACE:
            path, run = Path(folder) / f"{loss}.csv", runs / slugs[loss]
            if run.is_dir():
                score(run, output=path, **rules)
                scored = table.read(path)
                parts.append(reduced(scored.rows, {"dsc", "cace"}).assign(variant=loss))
        write_reduced(ANCHORS, parts, {"rules": scored.rules})


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        keep(Path(words[0]))
    if words != ["--check"]:
        scores = values()
        methods = scores.groupby("loss", sort=False)["method"].unique().to_dict()
        pages.draw_means(FIGURE, scores, methods, DRAWN)
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
