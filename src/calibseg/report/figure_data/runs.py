r"""What the figures about training runs show: curves over epochs, multipliers, logits per true class, sensitivity.

Logits are stored relative to the voxel's largest, $d_k = l_k - \max_j l_j$, with that beside them (stored_logits). The
raw means that MbLS Fig. 4 and NACL Fig. 2 show are $\mathrm{raw}_{yk} = \mathrm{mean}_{i: y_i = y} l_{ik}$ and
$\mathrm{magnitude}_{yk}$, that of $|l_{ik}|$; NaN where logits were stored without the largest. An offset of a voxel's
logits has no part in its probabilities; free of it are, with the centred logits $c_k = l_k - \mathrm{mean}_j l_j$,

$$ \mathrm{signed}_{yk} = \mathrm{mean}_{i: y_i = y} c_{ik}, \qquad
   \mathrm{absolute}_{yk} = \mathrm{mean}_{i: y_i = y} |c_{ik}|, \qquad
   \mathrm{distance}_{yk} = \mathrm{mean}_{i: y_i = y} (\max_j l_{ij} - l_{ik}) $$

The last is the distance that MbLS penalises.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.columns import Frame
from calibseg.analysis.merge import merge
from calibseg.analysis.run_names import Runs, named_runs
from calibseg.analysis.run_records import read_log
from calibseg.analysis.sources import score_files
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import IGNORED, BadInput
from calibseg.io.stored_logits import logits_files, open_logits, read_largest, slabs
from calibseg.report.figure_data.scores import means
from calibseg.runs.folders import RunFolder, subset_and_variant
from calibseg.runs.info import read_run

LOGIT_MEANS = ("signed", "absolute", "distance", "raw", "magnitude")
MULTIPLIER = re.compile(r"^(?P<multiplier>lambda|rho)_((?P<region>inner|outer)_)?(?P<id>[0-9]+)$")
SYMBOLS = {"lambda": "λ", "rho": "ρ"}
REGIONS = {"inner": "inside", "outer": "at boundaries", "everywhere": "everywhere"}  # CALS tells no regions apart


def training_log(run: Path | str) -> Frame:
    """One row per epoch, as `calibseg train` wrote it: epoch, learning_rate, train_*, val_*, and what the loss logs."""
    path = RunFolder(Path(run)).log
    if not path.is_file():
        raise BadInput(f"{run}: has no {path.name}: nothing was trained there yet")
    log = read_log(path)
    if "epoch" not in log.columns or not len(log) or log["epoch"].isna().any():
        raise BadInput(f"{path} has no column 'epoch' with numbers: it is no log of a training run")
    return log


def with_training_loss(log: Frame) -> Frame:
    """The log with the column train_loss: the sum of the loss's terms."""
    terms = [column for column in log.columns if column.startswith("train_") and column != "train_s"]
    return log.assign(train_loss=log[terms].sum(axis=1))


class Multiplier(NamedTuple):
    """A column of a log in which a multiplier of one class stands."""

    column: str
    multiplier: str  # of SYMBOLS
    region: str  # of REGIONS
    id: int
    class_name: str


def multiplier_columns(log: Frame, classes: Sequence[str]) -> list[Multiplier]:
    """Those that a log has, in its order."""
    found = [(column, match) for column in log.columns if (match := MULTIPLIER.match(column))]
    return [
        Multiplier(
            column, match["multiplier"], match["region"] or "everywhere", int(match["id"]), classes[int(match["id"])]
        )
        for column, match in found
    ]


def training_curves(runs: Runs, quantities: Sequence[str] = ()) -> Frame:
    """What was logged over epochs: method, epoch, quantity, value, best (the epoch that was kept).

    quantities: columns of log.csv; default: the training loss (sum of its terms), val_dsc, val_nll, val_ece_*.
    """
    parts = []
    for name, run in named_runs(runs).items():
        log = with_training_loss(training_log(run))
        wanted = list(quantities) or [
            column for column in ("train_loss", "val_dsc", "val_nll") if column in log.columns
        ] + [column for column in log.columns if column.startswith("val_ece_")]
        for column in wanted:
            if column not in log.columns:
                raise BadInput(f"{run}: its log has no {column!r}. Known: {', '.join(log.columns)}")
        kept = log["best_epoch"].dropna() if "best_epoch" in log.columns else log["epoch"]
        kept = kept if len(kept) else log["epoch"]
        tidy = log.melt(id_vars="epoch", value_vars=wanted, var_name="quantity", value_name="value")
        parts.append(tidy.assign(method=name, best=int(kept.iloc[-1])))
    return pd.concat(parts, ignore_index=True)[["method", "epoch", "quantity", "value", "best"]]


def multipliers(runs: Runs) -> Frame:
    """lambda and rho over epochs: method, epoch, multiplier, region (inner, outer, everywhere), class, value.

    Runs whose loss has none are left out; there must be one that has.
    """
    parts = []
    for name, run in named_runs(runs).items():
        log = training_log(run)
        for one in multiplier_columns(log, read_run(run).classes):
            about = {"multiplier": one.multiplier, "region": one.region, "class": one.class_name}
            parts.append(pd.DataFrame({"epoch": log["epoch"], "value": log[one.column]}).assign(method=name, **about))
    if not parts:
        raise BadInput(f"none of {', '.join(named_runs(runs))} logs multipliers: only losses such as crac have them")
    return pd.concat(parts, ignore_index=True)[["method", "epoch", "multiplier", "region", "class", "value"]]


def interior_confidence(runs: Runs) -> Frame:
    """How sure and how right the network is where a window holds one class: method, epoch, confidence, accuracy."""
    parts = []
    for name, run in named_runs(runs).items():
        log = training_log(run)
        if {"interior_confidence", "interior_accuracy"} <= set(log.columns):
            both = log[["epoch", "interior_confidence", "interior_accuracy"]]
            parts.append(both.set_axis(["epoch", "confidence", "accuracy"], axis=1).assign(method=name))
    if not parts:
        raise BadInput(f"none of {', '.join(named_runs(runs))} logs interior confidence: only losses such as crac do")
    return pd.concat(parts, ignore_index=True)[["method", "epoch", "confidence", "accuracy"]]


def logit_means(run: Path | str, subset: str = "test") -> Frame:
    """Mean logits of every class in the voxels of each true class, over all stored cases of a subset.

    Columns: true, class, signed, absolute, distance, raw, magnitude (see above), voxels (of the true class; a voxel
    that r raters labelled counts r times).
    """
    run = Path(run)
    classes = list(read_run(run).classes)
    k = len(classes)
    voxels, sums = np.zeros(k), np.zeros((len(LOGIT_MEANS), k, k))  # [which, class, true]
    for path in logits_files(RunFolder(run).logits / subset):
        stored = open_logits(path)
        if stored.labels is None:
            raise BadInput(f"{path}: was stored without labels, and logits are shown per true class")
        raters = stored.labels if stored.labels.ndim == 4 else stored.labels[None]
        largest = read_largest(path)
        for part, scores in slabs(stored.scores):
            slab = scores.astype(np.float64).reshape(k, -1)
            centred = slab - slab.mean(0)
            raw = slab + (math.nan if largest is None else largest[part].reshape(-1).astype(float))
            for labels in raters[:, part]:
                owner = labels.reshape(-1)
                voxels += np.bincount(owner, minlength=IGNORED + 1)[:k]
                for which, values in enumerate((centred, np.abs(centred), -slab, raw, np.abs(raw))):
                    for c in range(k):
                        sums[which, c] += np.bincount(owner, values[c], IGNORED + 1)[:k]
    with np.errstate(invalid="ignore"):
        means = sums / voxels
    rows: list[dict[str, Any]] = [
        {
            "true": classes[y],
            "class": classes[c],
            **{name: mean[c, y] for name, mean in zip(LOGIT_MEANS, means, strict=True)},
            "voxels": int(voxels[y]),
        }
        for y in range(k)
        for c in range(k)
    ]
    return pd.DataFrame(rows)


def sensitivity(
    runs: Sequence[Path], option: str, metrics: Sequence[str] = ("dsc", "ece"), subset: str = "test"
) -> Frame:
    """How a metric moves with an option of the recipe (`loss.margin`): MbLS Fig. 6, CRaC Fig. 1.

    Columns: dataset, network, method (the loss), value (of the option), metric, mean, low, high, cases. Seeds are
    averaged.
    """
    tables = []
    for run in runs:
        recipe = read_run(run).recipe
        value: Any = recipe
        for key in option.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadInput(f"a sensitivity curve needs an option that is a number; {option!r} of {run} is {value!r}")
        for file in score_files(Path(run), subset):
            if "+" in file.stem or subset_and_variant(file.stem.partition("-")[2])[1]:
                continue  # after a calibrator, or with noise added to the images
            scored = table.read(file)
            loss = Path(str(recipe["loss"]["name"])).stem
            rows = scored.rows.assign(loss=loss, variant=f"{option}={value}")
            tables.append((value, ScoreTable(rows, scored.rules, scored.notes, scored.name)))
    values = list(dict.fromkeys(value for value, _ in tables))
    if len(values) < 2:
        present = f"only the value {values[0]}" if values else "no value"
        raise BadInput(f"a sensitivity curve needs runs with several values of {option!r}; these have {present} of it")
    blocks = []
    for value in sorted(values):
        some = [one for at, one in tables if at == value]
        block = means(merge(some), metrics)
        block["method"] = block["method"].str.removesuffix(f" ({option}={value})")
        blocks.append(block.assign(value=value))
    columns = ["dataset", "network", "method", "value", "metric", "mean", "low", "high", "cases", "higher_is_better"]
    return pd.concat(blocks, ignore_index=True)[columns]
