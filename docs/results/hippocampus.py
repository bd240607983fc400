"""Keeps the scores of `calibseg benchmark cpu/hippocampus` and writes the tables of hippocampus.md from what is kept.

python docs/results/hippocampus.py OUT        keeps what the benchmark folder OUT has finished, then writes the tables
python docs/results/hippocampus.py            writes the tables
python docs/results/hippocampus.py --check    only says whether they are up to date (exit code 1 if not)

Kept is a score table like any other (`calibseg rank docs/results/hippocampus-scores.csv.gz`), reduced to the rows that
the page is about: one value per case, of all classes together where a metric has that, to six digits.
"""

import csv
import sys
from pathlib import Path

import pandas as pd
import result_pages as pages

from calibseg.analysis import table
from calibseg.analysis.paired import difference
from calibseg.analysis.paper_values import paper_values, plain_method
from calibseg.benchmark.kept import reduced, write_reduced
from calibseg.core import registry

HERE = Path(__file__).parent
PAGE, SCORES = HERE / "hippocampus.md", HERE / "hippocampus-scores.csv.gz"
KEPT = {"dsc", "hd95", "ece", "cece", "tcece", "nll", "brier"}
SHOWN = ("dsc", "hd95", "ece@truth", "ece@predicted", "ece@all", "cece@all", "nll@all", "brier@all")
TABLE3 = ("none", "temperature", "local_temperature")
NOT_IN_PAPER = ("mbls-m10",)  # the paper's margin is the best of 5, 8 and 10, and is not printed
FEW = (*TABLE3, "region_temperature")


def keep(out: Path) -> None:
    """Reduce the score tables of the finished cells to one small file."""
    with (out / "cells.csv").open(encoding="utf-8") as file:
        labels = {row["cell"]: row["label"] for row in csv.DictReader(file)}
    parts, rules = [], None
    for cell, label in labels.items():
        for path in sorted((out / "runs" / cell).glob("scores-test*.csv")):
            if not path.name.endswith(".bins.csv"):
                one = table.read(path)
                parts.append(reduced(one.rows, KEPT).assign(loss=label))
                rules = rules or one.rules
    write_reduced(SCORES, parts, {"rules": rules, "reduced": __doc__.splitlines()[-2:]})


def named_rows() -> pd.DataFrame:
    return pages.with_names(table.read(SCORES).rows)


def means() -> pd.DataFrame:
    """Mean over cases, then over seeds: one line per loss and calibrator, in the order of the recipe."""
    rows = named_rows()
    by_case = rows.groupby(["loss", "calibrator", "seed", "case", "name"], sort=False)["value"].mean()
    by_seed = by_case.groupby(level=["loss", "calibrator", "seed", "name"], sort=False).mean()
    scores = by_seed.groupby(level=["loss", "calibrator", "name"], sort=False).mean().unstack("name")
    spread = by_seed.groupby(level=["loss", "calibrator", "name"], sort=False).std().unstack("name")
    scores["seeds"] = by_seed.unstack("name").groupby(level=["loss", "calibrator"]).size()
    scores.attrs["spread"] = spread
    order = {loss: place for place, loss in enumerate(dict.fromkeys(rows["loss"]))}
    calibrators = {name: place for place, name in enumerate(("none", *registry.members("calibrators")))}
    return scores.sort_index(key=lambda level: level.map(order if level.name == "loss" else calibrators))


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    scores = means()
    few = scores[scores.index.get_level_values("calibrator").isin(FEW)]
    return {
        "differences": differences(),
        "losses": lines(scores.xs("none", level="calibrator", drop_level=False), spread=True),
        "table 3": table3(scores),
        "calibrators": lines(few),
        "everything": lines(scores),
    }


def differences() -> str:
    """Every loss minus CE on the same cases and seeds, without a calibrator and with region_temperature."""
    rows = named_rows()
    rows = rows.assign(method=rows["loss"] + "+" + rows["calibrator"], training=rows["seed"])
    values = pages.by_case(rows, ["method", "training", "patient", "case"])
    plain, after = ("dsc", "ece@truth", "ece@predicted", "nll@all"), ("ece@predicted", "nll@all")
    head = ["loss", *plain, *(f"{name}, region_temperature" for name in after)]
    lines = [head]
    for loss in dict.fromkeys(rows["loss"]):
        if loss != "ce":
            one = difference(values, f"{loss}+none", "ce+none", plain)
            two = difference(values, f"{loss}+region_temperature", "ce+region_temperature", after)
            gaps = [*(one[name] for name in plain), *(two[name] for name in after)]
            lines.append([loss, *(pages.interval(gap, sign=True, digits=4) for gap in gaps)])
    return pages.markdown(lines)


def lines(scores: pd.DataFrame, spread: bool = False) -> str:
    """One line per method. With several seeds: the mean, and on demand the standard deviation between seeds."""
    head = ["loss", "calibrator", "seeds", *SHOWN]
    rows = [head]
    between = scores.attrs["spread"]
    for (loss, calibrator), row in scores.iterrows():
        cells = []
        for name in SHOWN:
            digits = {"dsc": 3, "hd95": 2}.get(name, 4)
            text = f"{row[name]:.{digits}f}"
            if spread and row["seeds"] > 1:
                text += f" ± {between.loc[(loss, calibrator), name]:.{digits}f}"
            cells.append(text)
        rows.append([loss, calibrator, str(int(row["seeds"])), *cells])
    return pages.markdown(rows)


def table3(scores: pd.DataFrame) -> str:
    """ECE / CECE on the truth's foreground, and the MbLS paper's values in brackets."""
    paper = paper_values("mbls-table3").query("dataset == 'hippocampus'")
    paper = paper.pivot(index=["loss", "calibrator"], columns="metric", values="value")
    rows = [["loss", "none", "TS", "LTS"]]
    for loss in dict.fromkeys(scores.index.get_level_values("loss")):
        cells = []
        for calibrator in TABLE3:
            ours = scores.loc[(loss, calibrator)] if (loss, calibrator) in scores.index else None
            text = "-" if ours is None else f"{ours['ece@truth']:.3f} / {ours['cece@truth']:.3f}"
            theirs = (plain_method(loss), calibrator)
            if theirs in paper.index and loss not in NOT_IN_PAPER:
                text += f" ({paper.loc[theirs, 'ece@truth']:.3f} / {paper.loc[theirs, 'cece@truth']:.3f})"
            cells.append(text)
        rows.append([loss, *cells])
    return pages.markdown(rows)


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        keep(Path(words[0]))
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
