"""The gallery of the site: every kind of figure with the command that makes it, drawn when the site is built.

The runs behind it are trained here, in a minute: two hundred steps each on a small phantom. They show what figures look
like, not which loss is good.
"""

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from calibseg.analysis import table
from calibseg.benchmark import open_bench
from calibseg.benchmark.cell import walk
from calibseg.benchmark.collect import collect_results
from calibseg.benchmark.grid import read_grid
from calibseg.report.matplotlib import KINDS, Request, plot, save

GRID = """title = "A small phantom"

[data]
dataset = "phantom"
options = { cases = 16, size = [6, 32, 32], ambiguity = 0.4, noise = 0.05, seed = 0 }

[network]
name = "unet"
width = 8
depth = 3
norm = "batch"

[train]
epochs = 8
steps_per_epoch = 25
batch_size = 4
learning_rate = 5e-3
select = "last"

[split]
sizes = [6, 4, 6]

[axes]
loss = [
    "ce_dice",
    { name = "nacl", dice_weight = 1.0 },
    { name = "crac", dice_weight = 1.0 },
    { name = "mbls", dice_weight = 1.0, choices = { margin = [2.0, 5.0, 10.0] } },
]
calibrator = ["none", "temperature"]
noise = [0.0, 0.1]

[score]
voxels = "truth,predicted,all,boundary"
metrics = "dsc,hd95,ece,cece,nll,brier,overconfidence,underconfidence,signed_gap,soft_dice_confidence,volume_error"
"""
FEW = ['axes.loss=["ce_dice", "nacl"]', 'axes.calibrator=["none"]', "axes.noise=[0.0]", "train.epochs=6"]
OTHERS = {  # what the figures over datasets and networks need beside it
    "sharp": [*FEW, "data.options={cases=16, size=[6,32,32], ambiguity=0.2, noise=0.05, seed=0}"],
    "blurred": [*FEW, "data.options={cases=16, size=[6,32,32], ambiguity=1.2, noise=0.05, seed=0}"],
    "attention": [*FEW, 'axes.network=[{name="attention_unet", width=8, depth=3}]'],
}
TWO = "bench/runs/*-ce_dice-* bench/runs/*-nacl-*"
PLACES = "bench.csv sharp.csv blurred.csv"
COMMANDS = {  # what is said after `calibseg plot KIND`
    "reliability": TWO,
    "signed": "bench",
    "distance": TWO,
    "means": "bench",
    "ranks": "bench",
    "critical-difference": TWO,
    "radar": TWO,
    "compromise": PLACES,
    "networks": "bench.csv attention.csv",
    "stacked": PLACES,
    "noise": "bench",
    "risk-coverage": TWO,
    "sensitivity": "bench/runs/*-mbls-* --option loss.margin",
    "training": "bench",
    "multipliers": "bench/runs/*-crac-*",
    "interior": "bench/runs/*-crac-*",
    "logits": TWO,
    "slices": TWO,
    "penalties": "",
    "lagrangians": "",
}


def train(folder: Path, names: Iterable[str]) -> None:
    """The runs of these benches, their scores and their reports."""
    for name in names:
        grid = folder / f"{name}.toml"
        grid.write_text(GRID, encoding="utf-8")
        bench = open_bench(read_grid(str(grid), OTHERS.get(name, [])), folder / name, {})
        for cell in bench.grid.cells:
            outcome = walk(bench, cell)
            if outcome.error:
                raise SystemExit(f"{name}: {outcome.error}")
        collect_results(bench)
        _named(folder, name)


def _named(folder: Path, name: str) -> None:
    """The scores of ce_dice and nacl as one table, under the dataset's own name."""
    merged = table.read(folder / name / "scores.parquet")
    rows = table.plain(merged.rows)
    rows = rows[rows["loss"].isin(["ce_dice", "nacl"]) & (rows["calibrator"] == "") & (rows["variant"] == "")]
    dataset = {"bench": "phantom", "attention": "phantom"}.get(name, name)
    rules = {**(merged.rules or {}), "datasets": {dataset: (merged.rules or {})["datasets"]["phantom"]}}
    made = replace(merged, rows=table.categorical(rows.assign(dataset=dataset)), rules=rules)
    table.write(made, folder / f"{name}.csv")


def draw(folder: Path, pictures: Path) -> None:
    """Every kind of figure."""
    for kind in KINDS:
        sources, option = [], ""
        words = shlex.split(COMMANDS[kind])
        for before, word in zip(["", *words], words, strict=False):
            if before == "--option":
                option = word
            elif not word.startswith("--"):
                sources += sorted(folder.glob(word)) if "*" in word else [folder / word]
        save(plot(kind, Request(tuple(sources), option=option)), pictures / f"{kind}.svg")


def page() -> str:
    """What the site adds to docs/gallery.md, for pictures that lie in gallery/."""
    parts = ["\n[The report of the runs below](gallery/report.html), as `calibseg report` writes it.\n"]
    for kind, known in KINDS.items():
        words = " ".join(filter(None, ["calibseg plot", kind, COMMANDS[kind], f"-o {kind}.svg"]))
        parts += [f"\n## {kind}\n", f"{known.summary[0].upper()}{known.summary[1:]}. Needs: {known.needs}.\n"]
        parts += [f"```bash\n{words}\n```\n", f"![{kind}](gallery/{kind}.svg)\n"]
    parts += [
        "\n## The runs behind them\n",
        "`calibseg benchmark grid.toml -o bench` trains, predicts, calibrates and scores them:\n",
        f"```toml\n{GRID}```\n",
        "The tables `sharp.csv` and `blurred.csv` come from the same grid with another `ambiguity`, `attention.csv`"
        " from one with another network.\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2:])
