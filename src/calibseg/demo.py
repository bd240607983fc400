"""The demonstration: the whole road on the embedded phantom, whose true probabilities are known.

Prepare, split, then for every loss train, predict and score; then draw how sure each network is beside how sure one can
be. Raters disagree about the phantom's borders in a known way, so confidence is compared with the truth itself.
"""

from collections.abc import Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from calibseg import registry, store
from calibseg.binning import CalibrationStatistics, calibration_statistics
from calibseg.logits import open_logits
from calibseg.metrics import ECE, SignedGap
from calibseg.types import Prediction

if TYPE_CHECKING:
    from rich.console import Console

CASES, SIZE, WIDTH = 24, [8, 48, 48], 8


def run(folder: Path, losses: list[str], epochs: int, seed: int, console: "Console") -> None:
    """Walk the road once per loss; write runs, scores and demo.png into `folder`, and print what matters."""
    from calibseg.predict import predict
    from calibseg.prepare import make_splits, prepare
    from calibseg.progress import Bar
    from calibseg.recipe import read_recipe
    from calibseg.score import score_run
    from calibseg.train import train

    for name in losses:
        registry.find("losses", name)  # a misspelling is found before anything is made
    work, rows = folder / "work", {}
    prepare("phantom", None, work, options={"cases": CASES, "size": SIZE, "seed": seed})
    split = make_splits(work, overwrite=True)["default"]
    parts = f"{len(split.train)} cases to train, {len(split.validation)} to select, {len(split.test)} to test"
    console.print(f"phantom: {parts}")
    for name in losses:
        recipe = read_recipe(
            {
                "data": {"dataset": "phantom", "work": str(work)},
                "network": {"name": "unet", "width": WIDTH, "norm": "batch"},
                "loss": {"name": name},
                "train": {"epochs": epochs, "batch_size": 4, "learning_rate": 3e-3},
                "seed": seed,
            }
        )
        where = folder / "runs" / recipe.slug
        if not (where / "run.json").exists() or store.read_run(where).get("status") != "finished":
            with Bar(console) as bar:
                train(recipe, where, resume=where.exists(), watcher=bar)
        predict([where], cases="test")
        rows[where] = {"loss": Path(name).stem, **_measured(where, work, score_run(where).summary)}
        console.print(f"{Path(name).stem}: trained, predicted, scored: {where}", soft_wrap=True)
    draw(work, rows, split.test[0], folder / "demo.png")
    _say(list(rows.values()), console)
    console.print(f"\npicture: {folder / 'demo.png'}", soft_wrap=True)


def _measured(run: Path, work: Path, scores: Any) -> dict[str, float]:
    """The scores that matter, and the calibration error against the true probabilities in place of drawn labels."""
    together = scores[scores["class"] == "all"].set_index(["metric", "voxels"])["mean"]
    dice = scores[(scores["metric"] == "dsc") & (scores["class"] == "(mean)")]["mean"]
    files = sorted((store.RunFolder(run).logits / "test").glob("*.npz"))
    curves = reduce(add, (_against_truth(open_logits(path), work) for path in files)).on("all")
    return {
        "dsc": float(dice.iloc[0]),
        "ece_truth": float(together["ece", "truth"]),
        "ece_predicted": float(together["ece", "predicted"]),
        "ece_all": float(together["ece", "all"]),
        "nll": float(together["nll", "all"]),
        "ece_true_p": ECE().value(curves)[None],
        "too_sure_by": SignedGap().value(curves)[None],
    }


def _against_truth(prediction: Prediction, work: Path) -> CalibrationStatistics:
    return calibration_statistics(prediction.scores, _true_p(work, prediction.case_id), kind="logits")


def _true_p(work: Path, case: str) -> Array:
    true_p = store.open_case(work, case).case().true_p
    assert true_p is not None
    return true_p


def draw(work: Path, rows: Mapping[Path, Mapping[str, Any]], case: str, path: Path) -> None:
    """One line per loss: image, how sure one can be, how sure it is, its excess, and its reliability diagram."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 2.7 * len(rows) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), 5, squeeze=False)
    true_p, middle = _true_p(work, case), SIZE[0] // 2
    image = store.open_case(work, case).case().image[0, middle]
    for line, (run, row) in zip(axes, rows.items(), strict=True):
        prediction = open_logits(store.RunFolder(run).logits / "test" / f"{case}.npz")
        scores = np.exp(prediction.scores[:, middle].astype(np.float64))
        s = scores / scores.sum(0)
        deserved = np.take_along_axis(true_p[:, middle], s.argmax(0)[None], 0)[0]
        shown = [
            (image, "image", "gray", (0, 1)),
            (true_p[:, middle].max(0), "how sure one can be", "viridis", (0.4, 1)),
            (s.max(0), f"how sure {row['loss']} is", "viridis", (0.4, 1)),
            (s.max(0) - deserved, "too sure (red), not sure enough (blue)", "RdBu_r", (-0.5, 0.5)),
        ]
        for axis, (values, title, colours, limits) in zip(line, shown, strict=False):
            axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1])
            axis.set_title(title, fontsize=9)
            axis.set_axis_off()
        bins = [
            bin for bin in _against_truth(prediction, work).on("all").rows() if bin["class"] is None and bin["count"]
        ]
        line[4].plot([0.3, 1], [0.3, 1], color="gray", linestyle=":")
        line[4].plot([bin["confidence"] for bin in bins], [bin["accuracy"] for bin in bins], marker="o", markersize=3)
        line[4].set_title(f"{row['loss']}: ECE {row['ece_true_p']:.3f}", fontsize=9)
        line[4].set_xlabel("confidence", fontsize=8)
        line[4].set_ylabel("true probability", fontsize=8)
    figure.savefig(path, dpi=110)


def _say(rows: list[dict[str, Any]], console: "Console") -> None:
    from rich.table import Table

    titles = ("loss", "DSC", "ECE truth*", "ECE predicted", "ECE all", "NLL", "ECE against p", "too sure by")
    table = Table(*titles, box=None)
    for row in rows:
        table.add_row(row["loss"], *(f"{value:.3f}" for value in list(row.values())[1:]))
    console.print(table)
    console.print("* the papers' rule; even a perfect predictor does not score 0 there", style="dim")
    best = min(rows, key=lambda row: row["nll"])
    nearest = min(rows, key=lambda row: row["ece_true_p"])
    console.print(f"\nbest NLL: [bold]{best['loss']}[/]; nearest to the true probabilities: [bold]{nearest['loss']}[/]")
