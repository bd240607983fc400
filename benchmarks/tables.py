"""How long the score tables of a large benchmark take to put together, and how much memory.

    python benchmarks/tables.py            12 cells x 10 calibrators: about 150 MB of CSV, in 120 files
    python benchmarks/tables.py 2 3        2 cells x 3 calibrators

The folder is made of random numbers under the names that a real benchmark writes: a run folder for each cell with a
score table and reliability rows for each calibrator. `collect` merges them into one Parquet file, ranks the methods and
writes the report; `merge` is its first part. Each is timed in a process of its own, which also says how much memory it
took at its peak; the same tables read by pandas and written as one CSV stand beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from calibseg.analysis import table
from calibseg.benchmark import open_bench
from calibseg.benchmark.cell_stages import Bench
from calibseg.benchmark.grid import read_grid
from calibseg.core import registry
from calibseg.core.types import Split
from calibseg.runs import folders
from calibseg.runs.info import RunInfo, write_run

CASES, CLASSES, BINS = 72, ("background", "anterior", "posterior"), 15
RULES = ("truth", "predicted", "all")
DATASET = {"classes": list(CLASSES), "regions": {}, "ignore_label": None}

PHASES = {
    "merge": "collect.merge_scores(bench_of(sys.argv[1]))",
    "collect": "collect.collect_results(bench_of(sys.argv[1]))",
    "pandas": "pd.concat([pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths(sys.argv[1])])"
    ".to_csv(sys.argv[1] + '/by-pandas.csv', index=False)",
}
# The peak is the kernel's own count for this program (VmHWM): getrusage's begins with what the parent process took.
MEASURE = """
import re, sys, time
sys.path.insert(0, {here!r})
import pandas as pd
from calibseg.benchmark import collect
from tables import bench_of, paths

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

idle, begin = peak(), time.perf_counter()
{command}
print(f"{{time.perf_counter() - begin:.2f}} {{peak()}} {{idle}}")
"""


def bench_of(folder: str | Path, cells: int = 12, calibrators: int = 10) -> Bench:
    """A benchmark of 6 losses with several seeds; it is only a plan until `fill` writes its tables."""
    known = ["none", *registry.members("calibrators")]
    names = [known[number] if number < len(known) else f"made{number}" for number in range(calibrators)]
    size = Path(folder) / "size.json"
    if size.is_file():
        cells, names = json.loads(size.read_text())
    losses = ["ce", "ls", "mbls", "nacl", "svls", "crac"][: max(1, cells // 2)]
    seeds = list(range(-(-cells // len(losses))))
    changes = [f"axes.loss={json.dumps(losses)}", f"axes.seed={seeds}", f"axes.calibrator={json.dumps(names)}"]
    bench = open_bench(read_grid("cpu/phantom", changes), Path(folder), {})
    size.write_text(json.dumps([cells, names]))
    return bench


def fill(bench: Bench) -> int:
    """Write what scoring leaves in each cell; returns the bytes of the score tables."""
    written = 0
    for number, cell in enumerate(bench.grid.cells):
        run = bench.run(cell)
        recipe = {"data": {"dataset": "phantom"}, "network": {"name": "unet"}, "loss": {"name": cell.label},
                  "train": {"select": "miou"}, "seed": cell.recipe.seed}  # fmt: skip
        split = Split(("t",), ("v",), tuple(f"case_{case:03d}" for case in range(CASES)), 0)
        info = RunInfo(cell.slug, recipe, CLASSES, ("grey",), split, status="finished")
        write_run(folders.RunFolder(run), info)
        for turn, calibrator in enumerate(cell.calibrators):
            path = folders.RunFolder(run).scores("test", calibrator)
            experiment = {"dataset": "phantom", "network": "unet", "loss": cell.label, "calibrator": calibrator,
                          "seed": str(cell.recipe.seed), "variant": "", "subset": "test"}  # fmt: skip
            rng = np.random.default_rng([number, turn])
            rules = {"bins": BINS, "units": "mm", "datasets": {"phantom": DATASET}}
            table.write(table.ScoreTable(_rows(experiment, rng), rules, {}, str(path)), path, _bins(experiment, rng))
            written += path.stat().st_size
    return written


def _rows(experiment: dict[str, str], rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for key, member in registry.members("metrics").items():
        better, needs = bool(member.facts.get("higher_is_better")), member.facts["needs"]
        if needs in ("votes", "members") or needs.startswith("rater_"):  # of several raters, or of an ensemble
            continue
        shape = needs not in ("calibration", "equal_mass")  # which has no rule of voxels
        for case in range(-1, CASES):
            name = {"patient": "", "case": "", "scope": "pooled"}
            if case >= 0:
                name = {"patient": f"patient_{case:03d}", "case": f"case_{case:03d}", "scope": "case"}
            who = {**experiment, **name, "metric": key, "unit": "mm" if shape else "", "higher_is_better": better}
            for voxels in ("",) if shape else RULES:
                labels = (*CLASSES[1:], *(() if shape else ("all",)))
                rows += [{**who, "class": label, "voxels": voxels, "value": rng.random()} for label in labels]
    return table.frame(rows)


def _bins(experiment: dict[str, str], rng: np.random.Generator) -> pd.DataFrame:
    from calibseg.stages.score.rows import BIN_COLUMNS  # brings torch, which must not count for what is measured

    rows = []
    for case in range(-1, CASES):
        name = {"patient": "", "case": "", "scope": "pooled"}
        if case >= 0:
            name = {"patient": f"patient_{case:03d}", "case": f"case_{case:03d}", "scope": "case"}
        for voxels in RULES:
            for label in ("all", *CLASSES):
                for number in range(BINS):
                    ends = {"bin": number, "low": number / BINS, "high": (number + 1) / BINS}
                    values = {"count": 100 + number, "confidence": rng.random(), "accuracy": rng.random()}
                    rows.append({**experiment, **name, "class": label, "voxels": voxels, **ends, **values})
    return pd.DataFrame(rows, columns=list(BIN_COLUMNS))


def paths(folder: str | Path) -> list[Path]:
    """The score tables of all cells."""
    found = Path(folder).glob("runs/*/scores-test*.csv")
    return sorted(path for path in found if not path.name.endswith(".bins.csv"))


def measure(name: str, folder: Path) -> None:
    """Seconds and memory of one phase, in a process of its own."""
    script = MEASURE.format(here=str(Path(__file__).parent), command=PHASES[name])
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True, text=True)
    seconds, peak, idle = done.stdout.split()[-3:]
    print(f"{name:10} {seconds:>8} s   peak {peak:>6} MiB, of which {idle} MiB before it began", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cells", type=int, nargs="?", default=12)
    parser.add_argument("calibrators", type=int, nargs="?", default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        begin = time.perf_counter()
        size = fill(bench_of(name, options.cells, options.calibrators))
        number = len(paths(name))
        print(f"{number} tables, {size / 1e6:.0f} MB of CSV, made in {time.perf_counter() - begin:.0f} s", flush=True)
        for phase in PHASES:
            measure(phase, Path(name))


if __name__ == "__main__":
    main()
