"""A picture of what each member does, for its page of the site: made from the member itself on toy data, in seconds.

| family | shows |
| --- | --- |
| losses | the loss over the distance of the true class's logit, and how hard it pulls there, inside and at a boundary |
| priors | a label map, and the prior of one class on it |
| metrics | its value as confidence is too small or too large, and as the shape is shifted |
| calibrators | every voxel's confidence before and after, and the reliability before and after |
| networks | which pixels the middle of the answer looks at, before training |
| decisions | the mask, or the interval, that it makes |
| datasets | how the patients are divided; the phantom itself |
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from calibseg import decisions, measure
from calibseg.core import registry
from calibseg.core.labels import Target
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.members import MemberStatistics
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.votes import VoteStatistics
from calibseg.report.matplotlib.style import GREY, STYLE, save
from calibseg.report.palette import class_colour

BLUE, ORANGE = "#00689d", "#d55e00"
SIZE = (6.2, 2.3)
CASES = 12  # of the toy that calibration metrics are shown on
SHAPES = ("overlap", "surface")  # what metrics of shapes need
SEVERAL = ("rater_overlap", "rater_calibration", "votes", "members")  # of several raters, or of an ensemble's members
FACTORS, SHIFTS = [0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0], [0.0, 1.0, 2.0, 4.0, 6.0]


def draw_all(folder: Path) -> dict[tuple[str, str], Path]:
    """A file for every member; the text below it is `CAPTIONS`."""
    found = {}
    torch.set_num_threads(1)
    with matplotlib.rc_context(STYLE):
        for family, draw in FAMILIES.items():
            for key, member in registry.members(family).items():
                figure = draw(member)
                path = folder / family / f"{key}.svg"
                path.parent.mkdir(parents=True, exist_ok=True)
                save(figure, path)
                found[family, key] = path
    return found


def _disc(size: int = 24, radius: float = 7.5) -> np.ndarray:
    at = np.arange(size) - size / 2 + 0.5
    return (np.hypot(*np.meshgrid(at, at)) < radius).astype(np.int64)


def _loss(member: registry.Member) -> Figure:
    """All voxels at one distance d between the logit of the true class and that of the other."""
    loss, plain = (registry.create("losses", key).setup(2) for key in (member.key, "ce"))
    labels = torch.from_numpy(_disc())[None]
    edge = torch.zeros_like(labels, dtype=torch.bool)
    for axis in (1, 2):
        differs = labels.diff(dim=axis) != 0
        first, second = (differs.new_zeros(labels.shape) for _ in range(2))
        first.narrow(axis, 0, labels.shape[axis] - 1).copy_(differs)
        second.narrow(axis, 1, labels.shape[axis] - 1).copy_(differs)
        edge |= first | second
    distances = np.linspace(-3, 15, 37)
    terms: dict[str, list[float]] = {}
    total, base, slopes = [], [], {"inside": [], "at a boundary": []}
    for d in distances:
        signs = torch.where(labels == 1, 1.0, -1.0)
        logits = (torch.stack([-signs / 2, signs / 2], 1) * float(d)).requires_grad_()
        views = torch.cat([logits, 0.8 * logits]) if loss.views == 2 else logits
        parts = loss.terms(views, labels)
        value = torch.stack(list(parts.values())).sum()
        (pull,) = torch.autograd.grad(value, logits)
        along = (pull * torch.stack([-signs, signs], 1) / 2).sum(1) * labels.numel()  # dL/dd of each voxel
        slopes["inside"].append(float(along[~edge].mean()))
        slopes["at a boundary"].append(float(along[edge].mean()))
        for name, part in parts.items():
            terms.setdefault(name, []).append(part.item())
        total.append(value.item())
        base.append(plain(logits, labels).item())
    figure = Figure(figsize=SIZE, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(distances, base, color=GREY, linestyle="dashed", label="CE, for comparison")
    for (name, values), shade in zip(terms.items(), np.linspace(0.55, 0.3, len(terms)), strict=True):
        if len(terms) > 1:
            left.plot(distances, values, color=BLUE, alpha=shade, linewidth=0.9, label=f"its term {name}")
    left.plot(distances, total, color=BLUE, label=member.facts.get("acronym") or member.class_name)
    left.set(xlabel="logit of the true class minus that of the other", ylabel="loss", ylim=(min(0, *total), None))
    left.legend()
    top = left.secondary_xaxis("top")
    top.set_xticks([0, 2.2, 4.6, 9.2], ["50 %", "90 %", "99 %", "99.99 %"])
    top.tick_params(length=0, labelcolor=GREY)
    right.axhline(0, color=GREY, linewidth=0.6)
    for (name, values), colour in zip(slopes.items(), (BLUE, ORANGE), strict=True):
        right.plot(
            distances,
            values,
            color=colour,
            label=f"a voxel {name}",
            linestyle="solid" if name == "inside" else "dashed",
        )
    right.set(xlabel="logit of the true class minus that of the other", ylabel="slope; above 0 it draws together")
    right.legend()
    return figure


def _prior(member: registry.Member) -> Figure:
    labels = _disc(20, 5.5)
    labels[3, 2:16], labels[14:19, 14:19] = 1, 2
    given = torch.nn.functional.one_hot(torch.from_numpy(labels), 3).permute(2, 0, 1)[None].float()
    target = Target.of(torch.from_numpy(labels)[None], given, -100)
    tau = registry.create("priors", member.key).tau(target, torch.float32).dense()[0, 1]
    figure = Figure(figsize=(4.6, 2.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = matplotlib.colors.ListedColormap(["#f1f3f1", class_colour(1), class_colour(2)])
    left.imshow(labels, cmap=colours, vmin=0, vmax=2)
    left.set_title("labels: 0, 1 and 2")
    shown = right.imshow(tau.numpy(), cmap="cividis", vmin=0, vmax=1)
    right.set_title("prior of class 1")
    figure.colorbar(shown, ax=right, shrink=0.8)
    for axis in (left, right):
        axis.set(xticks=[], yticks=[])
    return figure


@cache
def _measured(shapes: bool) -> tuple[tuple[list[float], list[Any]], ...]:
    """A disc with blurred edges, told too boldly or too timidly, and shifted: pooled and mean values.

    For calibration CASES nested discs are true, so that each voxel is 1 in the share of them that its p says; for
    shapes the middle one alone.
    """
    level = _blurred_disc()
    labels = [(level > 0).astype(np.int64)] if shapes else _nested_discs()
    needs = {key: member.load().needs for key, member in registry.members("metrics").items()}
    wanted = [key for key, what in needs.items() if what not in SEVERAL and (what in SHAPES) == shapes]

    def scored(logits: np.ndarray) -> Any:
        scores = np.stack([np.zeros_like(logits), logits]).astype(np.float32)
        given = {"kind": "logits", "spacing_mm": (1.0, 1.0), "voxels": ("predicted",), "metrics": wanted}
        found = measure([scores] * len(labels), labels, **given)
        return {**found.values, **found.pooled}

    return (
        (FACTORS, [scored(factor * level) for factor in FACTORS]),
        (SHIFTS, [scored(np.roll(level, int(shift), 1)) for shift in SHIFTS]),
    )


def _blurred_disc() -> np.ndarray:
    """The true logit of each voxel."""
    at = np.arange(40) - 19.5
    return (11 - np.hypot(*np.meshgrid(at, at))) / 2.2


def _nested_discs() -> list[np.ndarray]:
    """CASES label maps of which the share that is 1 in a voxel is its true probability."""
    return [(_blurred_disc() > _logit(number)).astype(np.int64) for number in range(CASES)]


def _logit(number: int) -> float:
    p = (number + 0.5) / CASES
    return float(np.log(p / (1 - p)))


def _of_several(member: registry.Member, logits: np.ndarray) -> float:
    """CASES raters drew the nested discs; an ensemble's members draw such discs of the prediction."""
    metric, raters = registry.create("metrics", member.key), _nested_discs()
    scores = np.stack([np.zeros_like(logits), logits])[:, None].astype(np.float32)  # [k z y x]
    if metric.needs == "members":
        members = [(logits > _logit(number)).astype(np.int64) for number in range(CASES)]
        return metric.value(MemberStatistics.of(members, raters, 2))[1]
    if metric.needs == "votes":
        maps = np.stack(raters)[:, None]
        return metric.value(VoteStatistics.of(scores, maps, {1: ((1,), (1,))}, kind="logits"))[1]
    if metric.needs == "rater_overlap":
        return metric.value([OverlapStatistics.of(one, (logits > 0).astype(np.int64), 2) for one in raters])[1]
    curves = [calibration_statistics(scores, one[None], kind="logits").on("predicted") for one in raters]
    return metric.value(curves)[None]


def _metric(member: registry.Member) -> Figure:
    needs, level = member.load().needs, _blurred_disc()
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    if needs in SEVERAL:
        lines = [
            (FACTORS, [_of_several(member, factor * level) for factor in FACTORS]),
            (SHIFTS, [_of_several(member, np.roll(level, int(shift), 1)) for shift in SHIFTS]),
        ]
    else:
        lines = [(xs, [_value(member.key, one) for one in found]) for xs, found in _measured(needs in SHAPES)]
    for axis, (xs, line) in zip(axes, lines, strict=True):
        axis.plot(xs, line, color=BLUE, marker="o", markersize=3)
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    axes[0].axvline(1, color=GREY, linewidth=0.6, linestyle="dotted")
    axes[0].set(xlabel="true logits times: 1 is calibrated, more is over-confident", ylabel=_name(member))
    axes[1].set(xlabel="prediction shifted by (mm)")
    return figure


def _value(key: str, measured: Any) -> float:
    row = measured.get(f"{key}@predicted") or measured[key]
    return row.get("all", row.get("1", np.nan))


def _name(member: registry.Member) -> str:
    return str(member.facts.get("acronym") or member.key.replace("_", " "))


@cache
def _toy_cases() -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Twelve pictures of three classes, over-confident most of all near borders: logits, labels, images."""
    random = np.random.default_rng(0)
    scores, labels, images = [], [], []
    at = np.arange(32) - 15.5
    for _ in range(12):
        x, y = np.meshgrid(at - random.normal(0, 2), at - random.normal(0, 2))
        inner, outer = 5 - np.hypot(x, y), 11 - np.hypot(x, y * 1.2)
        level = np.stack([-outer, np.minimum(outer, -inner) + 1, inner]) / 1.6
        p = np.exp(level) / np.exp(level).sum(0)
        drawn = (random.random(p.shape[1:]) > p.cumsum(0)).sum(0).clip(0, 2)
        factor = 1.6 + 1.6 * np.exp(-np.abs(outer) / 3)
        scores.append((level * factor).astype(np.float32))
        labels.append(drawn)
        images.append((p[1] + 2 * p[2] + random.normal(0, 0.1, p.shape[1:]))[None].astype(np.float32))
    return scores, labels, images


def _calibrator(member: registry.Member) -> Figure:
    scores, labels, images = _toy_cases()
    given = {"epochs": 8} if any(option.name == "epochs" for option in member.options) else {}
    calibrator = registry.create("calibrators", member.key, **given)
    with_images = {"images": images} if calibrator.uses_image else {}
    calibrator.fit(scores, labels, kind="logits", **with_images)
    after = calibrator.transform(scores, **{"image": images} if calibrator.uses_image else {})
    before = [np.exp(one) / np.exp(one).sum(0) for one in scores]
    sure = [np.concatenate([one.max(0).ravel() for one in some]) for some in (before, after)]
    label = np.concatenate([one.argmax(0).ravel() for one in before])
    figure = Figure(figsize=SIZE, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0.33, 1], [0.33, 1], color=GREY, linestyle="dashed", linewidth=0.8)
    for number, name in enumerate(("background", "class 1", "class 2")):
        some = np.flatnonzero(label == number)[::9]
        left.scatter(
            sure[0][some],
            sure[1][some],
            s=3,
            color="#595959" if number == 0 else class_colour(number),
            alpha=0.5,
            linewidths=0,
            label=name,
        )
    left.set(
        xlabel="confidence as predicted", ylabel="confidence after calibration", xlim=(0.3, 1.02), ylim=(0.3, 1.02)
    )
    left.legend(markerscale=2)
    right.plot([0.33, 1], [0.33, 1], color=GREY, linestyle="dashed", linewidth=0.8)
    for some, kind, colour, dash, name in (
        (scores, "logits", ORANGE, "solid", "before"),
        (after, "probabilities", BLUE, "dashed", "after"),
    ):
        found = measure(some, labels, kind=kind, metrics=("ece",), voxels=("all",))
        bins = found.bins[
            (found.bins["scope"] == "pooled") & (found.bins["class"] == "all") & (found.bins["count"] > 30)
        ]
        right.plot(bins["confidence"], bins["accuracy"], color=colour, linestyle=dash, marker="o", markersize=2.5,
                   label=f"{name}: ECE {found.pooled['ece@all']['all']:.3f}")  # fmt: skip
    right.set(xlabel="confidence", ylabel="accuracy", xlim=(0.3, 1.02), ylim=(0.3, 1.02))
    right.legend()
    return figure


def _network(member: registry.Member) -> Figure:
    torch.manual_seed(0)
    made = member.load()
    network = made(in_channels=1, num_classes=2, **made.small).eval()
    space = (96, 96) if network.dimensions == 2 else (16, 48, 48)
    total = torch.zeros(space)
    for _ in range(4):
        image = torch.randn(1, 1, *space, requires_grad=True)
        middle = tuple(size // 2 for size in space)
        network(image)[(0, 1, *middle)].backward()
        assert image.grad is not None
        total += image.grad[0, 0].abs()
    flat = total if total.ndim == 2 else total.amax(0)
    figure = Figure(figsize=(3.4, 2.6), layout="constrained")
    axis = figure.subplots()
    shown = axis.imshow((flat / flat.max()).clamp(min=1e-4).log10().numpy(), cmap="cividis", vmin=-4, vmax=0)
    axis.set(xticks=[], yticks=[])
    numbers = sum(parameter.numel() for parameter in network.parameters())
    axis.set_title(f"small variant: {numbers:,} parameters".replace(",", " "))
    figure.colorbar(shown, ax=axis, shrink=0.8, label="log10 of its share")
    return figure


@cache
def _organs() -> tuple[list[np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(1)
    scores, truths = [], []
    at = np.arange(40) - 19.5
    for _ in range(60):
        x, y = np.meshgrid(at, at * random.uniform(0.8, 1.25))
        level = random.uniform(8, 13) - np.hypot(x, y)
        said = 1 / (1 + np.exp(-(level + random.normal(0, 1.2)) / 1.5))
        truths.append((level > 0).astype(int))
        scores.append(np.stack([1 - said, said]).astype(np.float32))
    return scores, truths


def _decision(member: registry.Member) -> Figure:
    scores, truths = _organs()
    made = member.load()
    decision = made(0.9) if member.key == "volume" else made(0.1) if member.key in ("fnr", "fpr") else made()
    rules = decisions.fit([decision], scores[:48], truths[:48], kind="probabilities")
    decided = rules.apply(scores[48:])
    figure = Figure(figsize=(4.6, 2.2), layout="constrained")
    if decision.makes == "none":
        axis = figure.subplots()
        for number, (case, truth) in enumerate(zip(decided, truths[48:], strict=True)):
            told = next(iter(case.values["1"].values()))
            axis.vlines(
                number,
                told["low_ml"],
                told["high_ml"],
                color=BLUE,
                linewidth=3,
                alpha=0.5,
                label="interval" if not number else None,
            )
            axis.plot(
                number, truth.sum() / 1000, "o", color=ORANGE, markersize=3, label="true volume" if not number else None
            )
        axis.set(xlabel="new cases", ylabel="ml", xticks=[])
        axis.legend()
        return figure
    for axis, case, truth, said in zip(figure.subplots(1, 3), decided, truths[48:], scores[48:], strict=False):
        mask = next(iter(case.masks.values()))
        axis.imshow(said[1], cmap="Greys", vmin=0, vmax=1.6)
        axis.contour(truth, [0.5], colors=ORANGE, linewidths=1.2)
        axis.contour(mask.reshape(truth.shape).astype(float), [0.5], colors=BLUE, linewidths=1.2, linestyles="dashed")
        axis.set(xticks=[], yticks=[])
    figure.suptitle("true outline (solid) and the decision's mask (dashed)", fontsize=7)
    return figure


def _dataset(member: registry.Member) -> Figure:
    if member.key == "phantom":
        case = next(registry.create("datasets", "phantom", cases=1, size=(8, 64, 64)).cases())
        assert case.labels is not None
        assert case.true_p is not None
        figure = Figure(figsize=SIZE, layout="constrained")
        titles = ("image", "labels of one rater", "true probability of the organ")
        pictures = (case.image[0, 4], case.labels[0, 4], case.true_p[1, 4])
        for axis, title, picture, colours in zip(
            figure.subplots(1, 3), titles, pictures, ("gray", "viridis", "cividis"), strict=True
        ):
            axis.imshow(picture, cmap=colours)
            axis.set(xticks=[], yticks=[], title=title)
        return figure
    figure = Figure(figsize=(SIZE[0], 0.9), layout="constrained")
    axis = figure.subplots()
    sizes = member.facts.get("split", {}).get("sizes", (70, 10, 20))
    start = 0.0
    for size, name, colour in zip(sizes, ("train", "validation", "test"), (BLUE, "#8a5300", "#00674b"), strict=True):
        share = size / sum(sizes)
        axis.barh(0, share, left=start, color=colour, edgecolor="white")
        if share > 0.03:
            axis.text(start + share / 2, 0, f"{name} {size:g}", color="white", ha="center", va="center", fontsize=6)
        start += share
    axis.set(xlim=(0, 1), yticks=[], xticks=[])
    for side in axis.spines.values():
        side.set_visible(False)
    return figure


FAMILIES: dict[str, Callable[[registry.Member], Figure]] = {
    "losses": _loss, "priors": _prior, "metrics": _metric, "calibrators": _calibrator, "networks": _network,
    "decisions": _decision, "datasets": _dataset,
}  # fmt: skip
CAPTIONS = {
    "losses": "A disc on 24 x 24 voxels, two classes, every voxel at the same distance between its two logits (above:"
    " the confidence that it means). Left: the loss. Right: how its value changes with the distance, for voxels whose"
    " neighbours share their label and for those at the boundary; below 0 logits are pushed apart.",
    "priors": "Labels of a toy picture, and what the prior says about class 1 there.",
    "metrics": "A disc with blurred edges whose true probabilities are known (of shapes, its middle outline)."
    " Left: its logits are multiplied, so that confidence is too small or too large and the segmentation stays. Right:"
    " the prediction is shifted. Several raters draw twelve nested discs, as often around a voxel as its probability"
    " says; the members of an ensemble draw such discs of the prediction.",
    "calibrators": "Twelve toy pictures of three classes, over-confident most of all near borders; fitted on them and"
    " applied to the same. Left: confidence of each voxel's predicted class before and after. Right: reliability.",
    "networks": "Which pixels the answer in the middle looks at: the gradient of one logit, before training.",
    "decisions": "Fitted on 48 toy cases, applied to new ones.",
    "datasets": "How patients are divided unless you say otherwise (`calibseg split`).",
}
