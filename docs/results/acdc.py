"""Writes the tables of acdc.md from the kept score tables of `calibseg benchmark cpu/acdc`.

calibseg benchmark cpu/acdc --root acdc=ACDC/database --kept docs/results/acdc    trains and keeps
python docs/results/acdc.py RUNS       keeps what the papers of mL1-ACE print, of the finished runs in a folder
python docs/results/acdc.py            writes the tables
python docs/results/acdc.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
import result_pages as pages

from calibseg.analysis import table
from calibseg.analysis.paired import difference
from calibseg.analysis.paper_values import paper_values
from calibseg.api import score
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.kept import reduced, write_reduced

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "acdc.md", HERE / "acdc"
ANCHORS = KEPT / "anchors.csv.gz"
CALIBRATION = ("signed_gap@predicted", "ece@predicted", "ece@truth", "nll@all")
SHAPE = ("dsc", "dsc RV", "dsc MYO", "dsc LV", "hd95")
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
        "anchors": anchors(),
    }
    return {name: pages.markdown(rows) for name, rows in made.items()}


def printed_beside(scores: pd.DataFrame, losses: list[str]) -> list[list[str]]:
    """Ours (mean over cases) and what two papers print; empty where a paper has no such number."""
    papers = {title: paper_values(name) for title, name in PAPERS.items()}
    rows = [["loss", "whose", *PRINTED]]
    for loss in losses:
        own = difference(scores, f"{loss}+none", None, PRINTED)
        rows.append([loss, "here", *(f"{own[name].mean:.3f}" for name in PRINTED)])
        for title, paper in papers.items():
            part = paper[(paper["dataset"] == "acdc") & (paper["loss"] == loss.removesuffix("-m5"))]
            said = dict(zip(part["metric"], part["value"], strict=True))
            if said:
                rows.append([loss, title, *(f"{said[name]:.3f}" if name in said else "" for name in PRINTED)])
    return rows


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
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
