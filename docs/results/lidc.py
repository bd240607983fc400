"""Writes the tables and the figure of lidc.md from the kept score tables of `calibseg benchmark cpu/lidc`.

calibseg benchmark cpu/lidc --root lidc4=FOLDER --kept docs/results/lidc    trains and keeps
python docs/results/lidc.py            writes tables and figure
python docs/results/lidc.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pandas as pd
import result_pages as pages

HERE = Path(__file__).parent
PAGE, FIGURE, KEPT = HERE / "lidc.md", HERE / "lidc.png", HERE / "lidc"
SOFT = ("signed_gap@predicted", "ece@predicted", "ece@all", "nll@all", "brier@all", "thresholded_dsc", "volume_crps")
RATERS = ("rater_dsc", "rater_dsc@rater 1", "rater_dsc@rater 2", "rater_dsc@rater 3", "rater_dsc@rater 4",
          "consensus_dsc", "rater_ece@predicted", "rater_ece@all")  # fmt: skip
DRAWN = ("signed_gap@predicted", "ece@predicted", "nll@all", "thresholded_dsc")
AGAINST = "ce target=first+none"
KEYS = ["method", "training", "patient", "case"]


def values() -> pd.DataFrame:
    """One row per method, training (seed) and test case; empty where nothing is kept."""
    parts = [
        rows.assign(method=cell.label + "+" + rows["calibrator"], training=f"seed {cell.recipe.seed}")
        for cell, rows in pages.kept_cells("cpu/lidc", KEPT)
    ]
    return pages.by_case(pd.concat(parts), KEYS) if parts else pd.DataFrame(columns=[*KEYS, *SOFT, *RATERS])


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    scores = values()
    methods = {method: [method] for method in dict.fromkeys(scores["method"])}
    others = {method: titles for method, titles in methods.items() if method != AGAINST and AGAINST in methods}
    shown = {
        "soft": (SOFT, pages.comparison(scores, methods, SOFT)),
        "raters": (RATERS, pages.comparison(scores, methods, RATERS)),
        "differences": (SOFT, pages.comparison(scores, others, SOFT, AGAINST)),
    }
    made = {name: [["method", "trainings", *columns], *rows] for name, (columns, rows) in shown.items()}
    return {name: pages.markdown(rows) for name, rows in (made | {"seeds": by_seed(scores)}).items()}


def by_seed(scores: pd.DataFrame) -> list[list[str]]:
    """The signed gap of every uncalibrated training where it predicts."""
    plain = scores[scores["method"].str.endswith("+none")]
    gaps = plain.groupby(["method", "training"], sort=False)["signed_gap@predicted"].mean().unstack()
    seeds = sorted(gaps.columns)
    return [["method", *seeds], *([str(method), *_numbers(row[seeds])] for method, row in gaps.iterrows())]


def _numbers(values: pd.Series) -> list[str]:
    return ["" if pd.isna(value) else f"{value:+.3f}" for value in values]


def main(words: list[str]) -> int:
    if words != ["--check"]:
        scores = values()
        methods = scores.groupby(scores["method"].str.partition("+")[0], sort=False)["method"].unique().to_dict()
        pages.draw_means(FIGURE, scores, methods, DRAWN)
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
