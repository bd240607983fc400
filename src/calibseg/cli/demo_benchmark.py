"""The demonstration: a whole benchmark on the embedded phantom, whose true probabilities are known.

The grid cpu/phantom: prepare, split, then for every loss train, predict, calibrate and score; ranks; a report. Raters
disagree about the phantom's borders in a known way, so here confidence is also compared with the truth itself, and a
picture shows where each network is surer than one can be.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis import table
from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.benchmark import Finished, benchmark, open_bench
from calibseg.benchmark.cell_stages import Bench
from calibseg.benchmark.grid import Cell, read_grid
from calibseg.benchmark.workers import budget, run_here, this_command
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core.types import BadInput, Prediction
from calibseg.data import prepared
from calibseg.io.stored_logits import open_logits
from calibseg.metrics import ECE, SignedGap
from calibseg.metrics.statistics.binning import CalibrationStatistics, calibration_statistics
from calibseg.runs import folders

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = {"dsc": "DSC", "ece@truth": "ECE truth*", "ece@predicted": "predicted", "ece@all": "all", "nll": "NLL"}


def run(
    folder: Path, losses: Sequence[str], epochs: int | None, seed: int, console: "Console", changes: Sequence[str] = ()
) -> Finished:
    """Walk the grid; write runs, scores, report and demo.png into `folder`, and print what matters."""
    wanted = [f"axes.loss={json.dumps(list(losses))}"] if losses else []
    wanted += [f"train.epochs={epochs}"] if epochs else []
    bench = open_bench(read_grid("cpu/phantom", [*wanted, f"axes.seed=[{seed}]", *changes]), folder, {})
    words = ("benchmark", str(bench.folder.grid), "-o", str(folder), "--cell")
    share = budget(len(bench.grid.cells), None, None)
    done = benchmark(
        bench, bench.grid.cells, partial(run_here, share=share), lambda slug: this_command(*words, slug), console
    )
    failed = done.those("failed")
    if failed:
        raise BadInput(f"{bench.cell(failed[0]).title} failed: {done.outcomes[failed[0]].error}")
    if not done.those("stopped"):
        rows = {
            (cell.slug, name): _measured(bench, cell, name) for cell in bench.grid.cells for name in cell.calibrators
        }
        draw(bench, rows, folder / "demo.png")
        _say(list(rows.values()), console)
        console.print(f"\npicture: {folder / 'demo.png'}", soft_wrap=True)
        if done.collected.report:
            console.print(f"report:  [bold]{done.collected.report}[/]", soft_wrap=True)
    return done


def _measured(bench: Bench, cell: Cell, calibrator: str) -> dict[str, Any]:
    """The scores that matter, and the calibration error against the true probabilities in place of drawn labels."""
    scored = table.read(folders.RunFolder(bench.run(cell)).scores("test", calibrator))
    found = case_values(scored.rows, SHOWN, classes=evaluated_classes(scored.rules))
    values = {name: float(np.nanmean(block)) for name, block in zip(SHOWN, found.values, strict=True)}
    predictions = _predictions(bench, cell, calibrator)
    curves = reduce(add, (_against_truth(one, bench.work(cell)) for one in predictions)).on("all")
    method = cell.label if calibrator == "none" else f"{cell.label}+{calibrator}"
    return {"method": method, **values, "ece_p": ECE().value(curves)[None], "gap": SignedGap().value(curves)[None]}


def _predictions(bench: Bench, cell: Cell, calibrator: str) -> list[Prediction]:
    """What a network says about the test cases, or a calibrator makes of it."""
    run = bench.run(cell)
    found = [open_logits(path) for path in sorted((folders.RunFolder(run).logits / "test").glob("*.npz"))]
    if calibrator == "none":
        return found
    fitted = load_calibrator(folders.RunFolder(run).calibrator(calibrator).path)
    return [_replaced(one, fitted.transform_prediction(one)) for one in found]


def _replaced(prediction: Prediction, p: Array) -> Prediction:
    return Prediction(prediction.case_id, prediction.patient, p, "probabilities", prediction.spacing_mm)


def _against_truth(prediction: Prediction, work: Path) -> CalibrationStatistics:
    return calibration_statistics(prediction.scores, _true_p(work, prediction.case_id), kind=prediction.kind)


def _true_p(work: Path, case: str) -> Array:
    true_p = prepared.open_case(work, case).case().true_p
    assert true_p is not None
    return true_p


def draw(bench: Bench, rows: Mapping[tuple[str, str], Mapping[str, Any]], path: Path) -> None:
    """One line per loss: image, how sure one can be, how sure it is, its excess, and its reliability diagram."""
    from matplotlib.figure import Figure

    cells = bench.grid.cells
    figure = Figure(figsize=(13, 2.7 * len(cells) + 0.3), layout="constrained")
    axes = figure.subplots(len(cells), 5, squeeze=False)
    for line, cell in zip(axes, cells, strict=True):
        work, prediction = bench.work(cell), _predictions(bench, cell, "none")[0]
        true_p = _true_p(work, prediction.case_id)
        middle = true_p.shape[1] // 2
        image = prepared.open_case(work, prediction.case_id).case().image[0, middle]
        likely = np.exp(prediction.scores[:, middle].astype(np.float64))
        s = likely / likely.sum(0)
        deserved = np.take_along_axis(true_p[:, middle], s.argmax(0)[None], 0)[0]
        shown = [
            (image, "image", "gray", (0, 1)),
            (true_p[:, middle].max(0), "how sure one can be", "viridis", (0.4, 1)),
            (s.max(0), f"how sure {cell.label} is", "viridis", (0.4, 1)),
            (s.max(0) - deserved, "too sure (red), not sure enough (blue)", "RdBu_r", (-0.5, 0.5)),
        ]
        for axis, (values, title, colours, limits) in zip(line, shown, strict=False):
            axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1])
            axis.set_title(title, fontsize=9)
            axis.set_axis_off()
        line[4].plot([0.3, 1], [0.3, 1], color="gray", linestyle=":")
        for name in cell.calibrators:
            curves = reduce(add, (_against_truth(one, work) for one in _predictions(bench, cell, name))).on("all")
            bins = [bin for bin in curves.rows() if bin["class"] is None and bin["count"]]
            heights = [bin["confidence"] for bin in bins], [bin["accuracy"] for bin in bins]
            row = rows[cell.slug, name]
            line[4].plot(*heights, marker="o", markersize=3, label=f"{row['method']}: {row['ece_p']:.3f}")
        line[4].legend(fontsize=7, title="ECE against the truth", title_fontsize=7)
        line[4].set_xlabel("confidence", fontsize=8)
        line[4].set_ylabel("true probability", fontsize=8)
    figure.savefig(path, dpi=110)


def _say(rows: list[dict[str, Any]], console: "Console") -> None:
    """A table, and the three lines that matter."""
    from rich.table import Column, Table

    found = Table(Column("method", no_wrap=True), *SHOWN.values(), "ECE p**", "too sure", box=None)
    for row in rows:
        found.add_row(row["method"], *(f"{value:.3f}" for value in list(row.values())[1:]))
    console.print(found)
    console.print("*  the papers' rule; even a perfect predictor does not score 0 there", style="dim")
    console.print("** against the true probabilities, known for the phantom only", style="dim")
    best, nearest = min(rows, key=lambda row: row["nll"]), min(rows, key=lambda row: row["ece_p"])
    first = rows[0]
    word = "surer" if first["gap"] > 0 else "less sure"
    console.print(
        f"\n1. [bold]{first['method']}[/] is on average {abs(first['gap']):.1%} {word} than it should be "
        f"(ECE against the true probabilities {first['ece_p']:.3f})"
        f"\n2. best NLL on unseen cases: [bold]{best['method']}[/] ({best['nll']:.3f}, "
        f"{first['method']} {first['nll']:.3f})"
        f"\n3. nearest to the true probabilities: [bold]{nearest['method']}[/] (ECE {nearest['ece_p']:.3f})",
        soft_wrap=True,
    )
