"""The demonstration: a whole benchmark on the embedded phantom, whose true probabilities are known.

The grid cpu/phantom: prepare, split, then for every loss train, predict, calibrate and score; ranks; a report. Raters
disagree about the phantom's borders in a known way, so here confidence is also compared with the truth itself: by how
much it exceeds the true probability of what was predicted, on the voxels where a network predicts an organ, mean over
unseen cases with an interval over them. Table, sentences and picture all speak of these voxels (the rule `predicted`),
and every sentence follows what was measured.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis import table
from calibseg.analysis.bootstrap import interval
from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.benchmark import Finished, benchmark, open_bench
from calibseg.benchmark.cell_stages import Bench
from calibseg.benchmark.grid import Cell, read_grid
from calibseg.benchmark.workers import budget, run_here
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core.types import BadInput, Prediction
from calibseg.data import prepared
from calibseg.io.stored_logits import open_logits
from calibseg.metrics import SignedGap
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.runs import folders

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = {"dsc": "DSC", "ece@predicted": "ECE", "nll": "NLL"}
VOXELS = "predicted"


@dataclass(frozen=True)
class Row:
    """What a method reached on the test cases.

    values: as `calibseg score` has them, by SHOWN
    found: every class in every case that has it
    gap: confidence minus the true probability, on predicted voxels; low, high: its 95 % interval over cases
    curve: confidence and true probability there, bin by bin
    """

    method: str
    values: Mapping[str, float]
    found: bool
    gap: float
    low: float
    high: float
    curve: tuple[list[float], list[float]] = ([], [])

    @property
    def said(self) -> str:
        """`5.2 % [4.1, 6.3] surer than it should be`; neither, where the interval holds 0."""
        ends = sorted(abs(end) for end in (self.low, self.high))
        if self.low <= 0 <= self.high:
            return f"about as sure as it should be ({self.gap:+.1%} [{self.low:+.1%}, {self.high:+.1%}])"
        word = "surer" if self.gap > 0 else "less sure"
        return f"{abs(self.gap):.1%} [{ends[0]:.1%}, {ends[1]:.1%}] {word} than it should be"


def run(
    folder: Path, losses: Sequence[str], epochs: int | None, seed: int, console: "Console", changes: Sequence[str] = ()
) -> Finished:
    """Walk the grid; write runs, scores, report and demo.png into `folder`, and print what matters."""
    settings = [f"axes.loss={json.dumps(list(losses))}"] if losses else []
    settings += [f"train.epochs={epochs}"] if epochs else []
    bench = open_bench(read_grid("cpu/phantom", [*settings, f"axes.seed=[{seed}]", *changes]), folder, {})
    share = budget(len(bench.grid.cells), None, None)
    finished = benchmark(bench, bench.grid.cells, partial(run_here, share=share), console)
    failed = finished.those("failed")
    if failed:
        raise BadInput(f"{bench.cell(failed[0]).title} failed: {finished.outcomes[failed[0]].error}")
    if not finished.those("stopped"):
        rows = {
            (cell.slug, name): _measured(bench, cell, name) for cell in bench.grid.cells for name in cell.calibrators
        }
        draw(bench, rows, folder / "demo.png")
        say(list(rows.values()), console)
        console.print(f"\npicture: {folder / 'demo.png'}", soft_wrap=True)
        if finished.collected.report:
            console.print(f"report:  [bold]{finished.collected.report}[/]", soft_wrap=True)
        else:
            console.print("\n".join(finished.collected.notes), soft_wrap=True)
    return finished


def _measured(bench: Bench, cell: Cell, calibrator: str) -> Row:
    """The scores that matter, and the calibration error against the true probabilities in place of drawn labels."""
    scored = table.read(folders.RunFolder(bench.run(cell)).scores("test", calibrator))
    scores = case_values(scored.rows, SHOWN, classes=evaluated_classes(scored.rules))
    values = {name: float(np.nanmean(block)) for name, block in zip(SHOWN, scores.values, strict=True)}
    dsc = scored.rows[(scored.rows["metric"] == "dsc") & (scored.rows["scope"] == "case")]["value"]
    statistics = [
        calibration_statistics(case.scores, _true_p(bench.work(cell), case.case_id), kind=case.kind)
        for case in _predictions(bench, cell, calibrator)
    ]
    gaps = np.array([SignedGap().value(case.on(VOXELS))[None] for case in statistics])
    low, high = interval(gaps[:, None], [str(number) for number in range(len(gaps))])
    method = cell.label if calibrator == "none" else f"{cell.label}+{calibrator}"
    pooled = reduce(add, statistics).on(VOXELS)
    bins = [bin for bin in pooled.rows() if bin["class"] is None and bin["count"]]
    curve = [bin["confidence"] for bin in bins], [bin["accuracy"] for bin in bins]
    gap = float(np.nanmean(gaps))
    return Row(method, values, bool((dsc > 0).all()), gap, float(low[0]), float(high[0]), curve)


def _predictions(bench: Bench, cell: Cell, calibrator: str) -> list[Prediction]:
    """What a network says about the test cases, or a calibrator makes of it."""
    run = bench.run(cell)
    predictions = [open_logits(path) for path in sorted((folders.RunFolder(run).logits / "test").glob("*.npz"))]
    if calibrator == "none":
        return predictions
    fitted = load_calibrator(folders.RunFolder(run).calibrator(calibrator).path)
    return [
        Prediction(one.case_id, one.patient, fitted.transform_prediction(one), "probabilities", one.spacing_mm)
        for one in predictions
    ]


def _true_p(work: Path, case: str) -> Array:
    true_p = prepared.open_case(work, case).case().true_p
    assert true_p is not None
    return true_p


def draw(bench: Bench, rows: Mapping[tuple[str, str], Row], path: Path) -> None:
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
            (
                np.where(s.argmax(0) > 0, s.max(0) - deserved, 0),
                "over-confident (red), under-confident (blue)",
                "RdBu_r",
                (-0.5, 0.5),
            ),
        ]
        for axis, (values, title, colours, limits) in zip(line, shown, strict=False):
            axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1])
            axis.set_title(title, fontsize=9)
            axis.set_axis_off()
        line[4].plot([0.3, 1], [0.3, 1], color="gray", linestyle=":")
        for name in cell.calibrators:
            row = rows[cell.slug, name]
            line[4].plot(*row.curve, marker="o", markersize=3, label=f"{row.method}: {row.gap:+.3f}")
        line[4].legend(fontsize=7, title="confidence minus true probability", title_fontsize=7)
        line[4].set_xlabel("confidence where an organ is predicted", fontsize=8)
        line[4].set_ylabel("true probability", fontsize=8)
    figure.savefig(path, dpi=110)


def say(rows: Sequence[Row], console: "Console") -> None:
    """A table, and the sentences that matter; each follows what was measured."""
    from rich.table import Column, Table

    summary = Table(Column("method", no_wrap=True), *SHOWN.values(), "gap*", "95 % interval", box=None)
    for row in rows:
        ends = f"{row.low:+.3f} to {row.high:+.3f}"
        summary.add_row(row.method, *(f"{row.values[name]:.3f}" for name in SHOWN), f"{row.gap:+.3f}", ends)
    console.print(summary)
    console.print(
        "*  where an organ is predicted: confidence minus the true probability, known for the phantom only, and ECE",
        style="dim",
    )
    first, best = rows[0], min(rows, key=lambda row: row.values["nll"])
    misses = "finds every organ" if first.found else "misses an organ in some case"
    lines = [f"[bold]{first.method}[/] {misses} (DSC {first.values['dsc']:.3f}) and is {first.said}"]
    halved = [row for row in rows[1:] if abs(row.gap) <= abs(first.gap) / 2]
    if first.low > 0:
        names = ", ".join(f"{row.method} ({row.gap:+.1%})" for row in sorted(halved, key=lambda row: abs(row.gap)))
        lines.append(f"at most half of that: {names}" if halved else "no other method halves that")
    values = f"{best.values['nll']:.3f}, {first.method} {first.values['nll']:.3f}"
    lines.append(f"best NLL on unseen cases: [bold]{best.method}[/] ({values}); it is {best.said}")
    console.print("\n" + "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)), soft_wrap=True)
