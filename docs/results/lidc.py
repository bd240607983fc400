"""Writes the tables of lidc.md from the kept score tables of `calibseg benchmark cpu/lidc`.

calibseg benchmark cpu/lidc --root lidc4=FOLDER --kept docs/results/lidc    trains and keeps
python docs/results/lidc.py            writes the tables
python docs/results/lidc.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import Difference, difference
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.kept import kept_path

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "lidc.md", HERE / "lidc"
SOFT = ("signed_gap@predicted", "ece@predicted", "ece@all", "nll@all", "brier@all", "thresholded_dsc", "volume_crps")
RATERS = ("rater_dsc", "rater_dsc@rater 1", "rater_dsc@rater 2", "rater_dsc@rater 3", "rater_dsc@rater 4",
          "consensus_dsc", "rater_ece@predicted", "rater_ece@all")  # fmt: skip
AGAINST = "ce target=first+none"


def values() -> pd.DataFrame:
    """One row per method, training (seed) and test case; empty where nothing is kept."""
    parts = []
    for cell in read_grid("cpu/lidc").cells:
        path = kept_path(KEPT, cell.slug)
        if path.is_file():
            rows = table.plain(table.read(path).rows)
            rows = rows[rows["subset"] == "test"]
            names = rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", "")
            method = cell.label + "+" + rows["calibrator"].replace("", "none")
            parts.append(rows.assign(name=names, method=method, training=f"seed {cell.recipe.seed}"))
    if not parts:
        return pd.DataFrame(columns=["method", "training", "patient", "case", *SOFT, *RATERS])
    keys = ["method", "training", "patient", "case"]
    rows = pd.concat(parts)
    return rows.groupby([*keys, "name"], sort=False)["value"].mean().unstack("name").reset_index()


def tables(found: pd.DataFrame) -> dict[str, str]:
    """The tables of the page by their name."""
    methods = list(dict.fromkeys(found["method"]))
    made = {}
    for name, columns in (("soft", SOFT), ("raters", RATERS)):
        rows = [["method", "trainings", *columns]]
        for method in methods:
            own = difference(found, method, None, columns)
            rows.append([method, str(own[columns[0]].trainings), *(text(own[column]) for column in columns)])
        made[name] = _table(rows)
    rows = [["method", "trainings", *SOFT]]
    for method in methods:
        if method != AGAINST and AGAINST in methods:
            gap = difference(found, method, AGAINST, SOFT)
            rows.append([method, str(gap[SOFT[0]].trainings), *(text(gap[column], sign=True) for column in SOFT)])
    return {**made, "differences": _table(rows)}


def text(one: Difference, sign: bool = False) -> str:
    """A mean or a difference with its interval; a difference in round brackets where the interval holds 0."""
    form = "+.3f" if sign else ".3f"
    said = f"{one.mean:{form}} [{one.low:{form}}, {one.high:{form}}]"
    return said if one.is_clear or not sign else f"({said})"


def _table(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(found: pd.DataFrame) -> str:
    """The page with its tables as they are now; the words between them are kept."""
    content = PAGE.read_text(encoding="utf-8")
    for name, lines in tables(found).items():
        begin, end = f"<!-- {name}: begin (written by docs/results/lidc.py) -->", f"<!-- {name}: end -->"
        before, rest = content.split(begin)
        content = f"{before}{begin}\n{lines}\n{end}{rest.split(end)[1]}"
    return content


def main() -> int:
    found = values()
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page(found))
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
