"""Writes the table of acdc.md from acdc-scores.csv.gz: two runs on ACDC at 128 pixels, reduced to what the page needs.

python docs/results/acdc.py CE_RUN CRAC_RUN    keeps the test scores of two runs, then writes the table
python docs/results/acdc.py                    writes the table
python docs/results/acdc.py --check            only says whether it is up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pages
import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import difference

HERE = Path(__file__).parent
PAGE, SCORES = HERE / "acdc.md", HERE / "acdc-scores.csv.gz"
METRICS = {"dsc", "hd95", "ece", "signed_gap", "nll"}
COLUMNS = (
    "dsc",
    "dsc RV",
    "dsc MYO",
    "dsc LV",
    "hd95",
    "signed_gap@predicted",
    "ece@predicted",
    "ece@truth",
    "nll@all",
)


def values() -> pd.DataFrame:
    """One row per loss and case; DSC by class and as their mean."""
    rows = table.plain(table.read(SCORES).rows)
    by_class = rows[rows["metric"] == "dsc"].assign(metric=lambda part: part["metric"] + " " + part["class"])
    wide = pages.by_case(pd.concat([rows, by_class]), ["loss", "seed", "patient", "case"])
    return wide.rename(columns={"loss": "method", "seed": "training"})


def tables() -> dict[str, str]:
    scores = values()
    rows = [["", *COLUMNS]]
    for title, method, other in (("CE", "ce", None), ("CRaC", "crac", None), ("CRaC minus CE", "crac", "ce")):
        gaps = difference(scores, method, other, COLUMNS)
        rows.append([title, *(pages.interval(gap, sign=other is not None) for gap in gaps.values())])
    return {"runs": pages.markdown(rows)}


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        pages.keep_scores(SCORES, [Path(run) / "scores-test.csv" for run in words], METRICS)
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
