"""Writes the table of acdc.md from acdc-scores.csv.gz: two runs on ACDC at 128 pixels, reduced to what the page needs.

python docs/results/acdc.py CE_RUN CRAC_RUN    keeps the test scores of two runs, then writes the table
python docs/results/acdc.py                    writes the table
python docs/results/acdc.py --check            only says whether it is up to date (exit code 1 if not)
"""

import gzip
import json
import sys
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import difference
from calibseg.benchmark.kept import reduced

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
BEGIN, END = "<!-- runs: begin (written by docs/results/acdc.py) -->", "<!-- runs: end -->"


def keep(runs: list[Path]) -> None:
    """Reduce the runs' test scores to one small file."""
    tables = [table.read(run / "scores-test.csv") for run in runs]
    rows = table.as_text(table.concat([reduced(one.rows, METRICS) for one in tables]))
    rows = rows.assign(value=[f"{float(value):.6g}" for value in rows["value"]])
    SCORES.write_bytes(gzip.compress(rows.to_csv(index=False).encode(), mtime=0))
    meta = {"format": table.FORMAT, "rules": tables[0].rules}
    table.meta_path(SCORES).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def values() -> pd.DataFrame:
    """One row per loss and case; DSC by class and as their mean."""
    rows = table.plain(table.read(SCORES).rows)
    rows = rows.assign(name=rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", ""))
    by_class = rows[rows["metric"] == "dsc"].assign(name=lambda part: part["name"] + " " + part["class"])
    keys = ["loss", "seed", "patient", "case", "name"]
    wide = pd.concat([rows, by_class]).groupby(keys, sort=False)["value"].mean().unstack("name").reset_index()
    return wide.rename(columns={"loss": "method", "seed": "training"})


def page() -> str:
    """The page with its table as it is now; the words around it are kept."""
    found = values()
    lines = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for title, method, other in (("CE", "ce", None), ("CRaC", "crac", None), ("CRaC minus CE", "crac", "ce")):
        told = difference(found, method, other, COLUMNS)
        sign = "+" if other else ""
        texts = [f"{one.mean:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]" for one in told.values()]
        clear = [one.is_clear or not other for one in told.values()]
        lines.append([title, *(text if shown else f"({text})" for text, shown in zip(texts, clear, strict=True))])
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(f"| {' | '.join(row)} |" for row in lines) + f"\n{END}{rest.split(END)[1]}"


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    if arguments:
        keep([Path(name) for name in arguments])
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
