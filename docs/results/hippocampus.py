"""Keeps the scores of `calibseg benchmark cpu/hippocampus` and writes the tables of hippocampus.md from what is kept.

python docs/results/hippocampus.py OUT        keeps what the benchmark folder OUT has finished, then writes the tables
python docs/results/hippocampus.py            writes the tables
python docs/results/hippocampus.py --check    only says whether they are up to date (exit code 1 if not)

Kept is a score table like any other (`calibseg rank docs/results/hippocampus-scores.csv.gz`), reduced to the rows that
the page is about: one value per case, of all classes together where a metric has that, to six digits.
"""

import csv
import gzip
import json
import sys
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.paired import Difference, difference
from calibseg.analysis.paper_values import paper_values, plain_method
from calibseg.core import registry

HERE = Path(__file__).parent
PAGE, SCORES = HERE / "hippocampus.md", HERE / "hippocampus-scores.csv.gz"
KEPT = ("dsc", "hd95", "ece", "cece", "tcece", "nll", "brier")
SHOWN = ("dsc", "hd95", "ece@truth", "ece@predicted", "ece@all", "cece@all", "nll@all", "brier@all")
TABLE3 = ("none", "temperature", "local_temperature")
NOT_IN_PAPER = ("mbls-m10",)  # the paper's margin is the best of 5, 8 and 10, and is not printed
FEW = (*TABLE3, "region_temperature")


def keep(out: Path) -> None:
    """Reduce the score tables of the finished cells to one small file."""
    with (out / "cells.csv").open(encoding="utf-8") as file:
        labels = {row["cell"]: row["label"] for row in csv.DictReader(file)}
    kept, rules = [], None
    for cell, label in labels.items():
        for path in sorted((out / "runs" / cell).glob("scores-test*.csv")):
            if not path.name.endswith(".bins.csv"):
                one = table.read(path)
                kept.append(reduced(one.rows).assign(loss=label))
                rules = rules or one.rules
    text = pd.concat(kept).assign(value=lambda rows: [f"{value:.6g}" for value in rows["value"]])
    text["higher_is_better"] = text["higher_is_better"].map({True: "true", False: "false"})
    SCORES.write_bytes(gzip.compress(text.to_csv(index=False).encode(), mtime=0))
    meta = {"format": table.FORMAT, "rules": rules, "reduced": __doc__.splitlines()[-2:]}
    table.meta_path(SCORES).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def reduced(rows: Frame) -> Frame:
    """One case's values of the metrics the page is about."""
    rows = rows[(rows["scope"] == "case") & rows["metric"].isin(KEPT)]
    whole = rows.loc[rows["class"] == ALL, "metric"].unique()
    return rows[(rows["class"] == ALL) | ~rows["metric"].isin(whole)]


def named_rows() -> pd.DataFrame:
    """The kept rows with the column's name: `ece@truth`."""
    rows = table.plain(table.read(SCORES).rows)
    names = rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", "")
    return rows.assign(name=names, calibrator=rows["calibrator"].replace("", "none"))


def means() -> pd.DataFrame:
    """Mean over cases, then over seeds: one line per loss and calibrator, in the order of the recipe."""
    rows = named_rows()
    by_case = rows.groupby(["loss", "calibrator", "seed", "case", "name"], sort=False)["value"].mean()
    by_seed = by_case.groupby(level=["loss", "calibrator", "seed", "name"], sort=False).mean()
    found = by_seed.groupby(level=["loss", "calibrator", "name"], sort=False).mean().unstack("name")
    spread = by_seed.groupby(level=["loss", "calibrator", "name"], sort=False).std().unstack("name")
    found["seeds"] = by_seed.unstack("name").groupby(level=["loss", "calibrator"]).size()
    found.attrs["spread"] = spread
    order = {loss: place for place, loss in enumerate(dict.fromkeys(rows["loss"]))}
    calibrators = {name: place for place, name in enumerate(("none", *registry.members("calibrators")))}
    return found.sort_index(key=lambda level: level.map(order if level.name == "loss" else calibrators))


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    found = means()
    few = found[found.index.get_level_values("calibrator").isin(FEW)]
    return {
        "differences": differences(),
        "losses": lines(found.xs("none", level="calibrator", drop_level=False), spread=True),
        "table 3": table3(found),
        "calibrators": lines(few),
        "everything": lines(found),
    }


def differences() -> str:
    """Every loss minus CE on the same cases and seeds, without a calibrator and with region_temperature."""
    rows = named_rows()
    rows = rows.assign(method=rows["loss"] + "+" + rows["calibrator"], training=rows["seed"])
    keys = ["method", "training", "patient", "case"]
    values = rows.groupby([*keys, "name"], sort=False)["value"].mean().unstack("name").reset_index()
    plain, after = ("dsc", "ece@truth", "ece@predicted", "nll@all"), ("ece@predicted", "nll@all")
    head = ["loss", *plain, *(f"{name}, region_temperature" for name in after)]
    found = [head, ["---"] * len(head)]
    for loss in dict.fromkeys(rows["loss"]):
        if loss != "ce":
            one = difference(values, f"{loss}+none", "ce+none", plain)
            two = difference(values, f"{loss}+region_temperature", "ce+region_temperature", after)
            found.append([loss, *(shown(one[name]) for name in plain), *(shown(two[name]) for name in after)])
    return "\n".join(f"| {' | '.join(row)} |" for row in found)


def shown(one: Difference) -> str:
    """A difference with its interval; in brackets where that holds 0."""
    text = f"{one.mean:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
    return text if one.is_clear else f"({text})"


def lines(found: pd.DataFrame, spread: bool = False) -> str:
    """One line per method. With several seeds: the mean, and on demand the standard deviation between seeds."""
    head = ["loss", "calibrator", "seeds", *SHOWN]
    rows = [head, ["---"] * len(head)]
    between = found.attrs["spread"]
    for (loss, calibrator), row in found.iterrows():
        cells = []
        for name in SHOWN:
            digits = {"dsc": 3, "hd95": 2}.get(name, 4)
            text = f"{row[name]:.{digits}f}"
            if spread and row["seeds"] > 1:
                text += f" ± {between.loc[(loss, calibrator), name]:.{digits}f}"
            cells.append(text)
        rows.append([loss, calibrator, str(int(row["seeds"])), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table3(found: pd.DataFrame) -> str:
    """ECE / CECE on the truth's foreground, and the MbLS paper's values in brackets."""
    paper = paper_values("mbls-table3").query("dataset == 'hippocampus'")
    paper = paper.pivot(index=["loss", "calibrator"], columns="metric", values="value")
    rows = [["loss", "none", "TS", "LTS"], ["---"] * 4]
    for loss in dict.fromkeys(found.index.get_level_values("loss")):
        cells = []
        for calibrator in TABLE3:
            ours = found.loc[(loss, calibrator)] if (loss, calibrator) in found.index else None
            text = "-" if ours is None else f"{ours['ece@truth']:.3f} / {ours['cece@truth']:.3f}"
            theirs = (plain_method(loss), calibrator)
            if theirs in paper.index and loss not in NOT_IN_PAPER:
                text += f" ({paper.loc[theirs, 'ece@truth']:.3f} / {paper.loc[theirs, 'cece@truth']:.3f})"
            cells.append(text)
        rows.append([loss, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    """The page with its tables as they are now; the words between them are kept."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines_ in tables().items():
        begin, end = f"<!-- {name}: begin (written by docs/results/hippocampus.py) -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{lines_}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    if arguments:
        keep(Path(arguments[0]))
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
