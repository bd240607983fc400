"""Every loss, every prior and every set of options that they declare, against a loop over voxels in plain Python.

A derivative that is checked against the value of the same code cannot tell where both are wrong alike: here the value
has a reference of its own, and `fused` (value and slope in one go) is compared with `value`, the equation.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibseg.core import registry
from calibseg.core.labels import Target
from calibseg.losses import Loss
from support import plain_losses as plain

COMMON: list[dict[str, Any]] = [{}, {"class_weight": [0.5, 2.0, 0.0], "dice_weight": 0.7, "include_background": False}]
CASES = [
    (key, {**options, **common})
    for key in registry.members("losses")
    for options in registry.load("losses", key).contract_options  # pyright: ignore[reportAttributeAccessIssue]
    for common in COMMON
]
PRIORS = [
    (key, {**options, **window})
    for key in registry.members("priors")
    for options in registry.load("priors", key).contract_options  # pyright: ignore[reportAttributeAccessIssue]
    for window in ({}, {"border": "background"}, {"kernel_size": 5}, {"kernel_size": 1})
]
SPACES = pytest.mark.parametrize("space", [(4, 5), (2, 3, 4)], ids=str)
KINDS = pytest.mark.parametrize("kind", ["labels", "ignored", "soft"])


def make(space: tuple[int, ...], kind: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and a target of smooth shapes; with ignored voxels; or soft, some of them ignored and some tied."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, 3, *space), generator=generator, dtype=torch.float64) * 2
    field = torch.rand((2, *space), generator=generator, dtype=torch.float64).cumsum(-1)
    labels = (field / field.amax() * 3).long().clamp(max=2)
    if kind == "labels":
        return logits, labels
    hidden = torch.rand(labels.shape, generator=generator) < 0.15
    if kind == "ignored":
        return logits, labels.masked_fill(hidden, -100)
    soft = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).double()
    half = torch.rand(labels.shape, generator=generator) < 0.4
    mixed = (soft + soft.roll(1, 1)) / 2  # two classes that share the voxel: a tie
    third = 0.7 * soft + 0.3 * soft.roll(-1, 1)
    soft = torch.where(half.unsqueeze(1), torch.where(logits[:, :1] > 0, mixed, third), soft)
    return logits, soft.masked_fill(hidden.unsqueeze(1), 0.0)


def prepared(key: str, options: dict[str, Any]) -> Loss:
    """A loss; one that has multipliers gets different ones for every class and region."""
    loss = registry.build("losses", key, options).setup(3)
    for name, buffer in loss.named_buffers():
        if name in ("multipliers.lambdas", "multipliers.rhos"):
            numbers = torch.arange(1, buffer.numel() + 1).view_as(buffer)
            buffer.copy_(0.07 * numbers if name.endswith("lambdas") else 0.9 - 0.11 * numbers)
    return loss


def arguments(loss: Loss, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """What the trainer gives: the logits, or those of two views and what each view saw."""
    if loss.views == 1:
        return logits, {}
    seen = torch.rand((2 * len(logits), *logits.shape[2:]), generator=torch.Generator().manual_seed(9)) > 0.2
    return torch.cat([logits, 0.6 * logits.flip(0) + 0.1]), {"valid": seen}


def by_loop(key: str, loss: Any, options: dict[str, Any], logits: Tensor, target: Tensor, **views: Tensor) -> dict:
    own = {name: value for name, value in options.items() if "dice" not in name and name != "include_background"}
    class_weight = own.pop("class_weight", None)
    twice = torch.cat([target, target]) if loss.views == 2 else target
    scene = plain.scene(logits, twice, class_weight=class_weight)
    if key == "crac":
        terms = plain.crac(scene, loss.lambdas.tolist(), loss.rhos.tolist(), **own)
    elif key == "bwcr":
        seen = views["valid"].numpy()
        terms = plain.bwcr(scene, seen, **own)
        scene = scene._replace(shares={p: share if seen[p] else None for p, share in scene.shares.items()})
    elif key == "cals":
        terms = plain.cals(scene, loss.multipliers.lambdas.tolist(), loss.multipliers.rhos.tolist(), **own)
    elif key == "ml1_ace":
        terms = plain.ml1_ace(scene, **own, include_background=loss.overlap.include_background)
    else:
        terms = plain.LOSSES["ce" if key in CE_AND_DICE else key](scene, **own)
    if loss.dice_weight:
        terms["dice"] = loss.dice_weight * plain.dice(scene, **dataclasses.asdict(loss.overlap))
    return terms


CE_AND_DICE = ("ce_dice", "dml", "dsc_plus_plus")
KNOWN = {*plain.LOSSES, *CE_AND_DICE, "crac", "bwcr", "cals", "ml1_ace"}


@pytest.mark.parametrize(("key", "options"), [case for case in CASES if case[0] in KNOWN], ids=str)
@SPACES
@KINDS
def test_every_term_is_what_a_loop_over_voxels_finds(key, options, space, kind, monkeypatch):
    logits, target = make(space, kind)
    loss = prepared(key, options)
    given, views = arguments(loss, logits)
    expected = by_loop(key, loss, options, given, target, **views)
    with torch.no_grad():
        by_value = loss.terms(given, target, **views)
    fused = loss.terms(given.requires_grad_(), target, **views)
    monkeypatch.setattr("calibseg.losses.maths.fused_sums.CPU_CHUNK", 7)  # a few rows at a time
    in_chunks = loss.terms(given, target, **views)
    for terms in (by_value, fused, in_chunks):
        found = {name: term.item() for name, term in terms.items()}
        assert found == pytest.approx(expected, rel=2e-6, abs=1e-9)  # lambda and rho are float32


@pytest.mark.parametrize(("key", "options"), CASES, ids=str)
@SPACES
@KINDS
def test_the_slope_that_comes_with_the_value_is_the_derivative_of_the_equation(key, options, space, kind):
    logits, target = make(space, kind, seed=1)
    loss = prepared(key, options)
    given, views = arguments(loss, logits)
    for factor in (1.0, 0.3):  # the slope that forward kept, as it is and scaled
        leaf = given.clone().requires_grad_()
        (fused,) = torch.autograd.grad(factor * loss(leaf, target, **views), leaf)
        (by_equation,) = torch.autograd.grad(factor * loss(leaf, target, **views), leaf, create_graph=True)
        torch.testing.assert_close(fused, by_equation.detach(), rtol=1e-9, atol=1e-12)
    leaf = given.clone().requires_grad_()  # terms that are weighted differently are computed again
    terms = [(i + 2) * term for i, term in enumerate(loss.terms(leaf, target, **views).values())]
    (fused,) = torch.autograd.grad(sum(terms), leaf, retain_graph=True)  # pyright: ignore
    (by_equation,) = torch.autograd.grad(sum(terms), leaf, create_graph=True)  # pyright: ignore
    torch.testing.assert_close(fused, by_equation.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("key", "options"), PRIORS, ids=str)
@SPACES
@KINDS
def test_every_prior_is_what_a_loop_over_the_window_finds(key, options, space, kind, monkeypatch):
    logits, target = make(space, kind, seed=2)
    prior, read = registry.build("priors", key, options), Target.read(target, 3, -100)
    whole = prior.tau(read, torch.float64).dense().numpy()
    monkeypatch.setattr("calibseg.losses.maths.fused_sums.CPU_CHUNK", 1)  # row by row, with the rows around it
    cut = prior.tau(read, torch.float64).dense().numpy()
    scene = plain.scene(logits, target)
    window = {"kernel": options.get("kernel_size", 3), "border": options.get("border", "replicate")}
    for place in scene.counted():
        expected = plain.tau(scene, place, key, **window, sigma=options.get("sigma", 1.0))
        for found in (whole, cut):
            np.testing.assert_allclose(found[(place[0], slice(None), *place[1:])], expected, atol=1e-12)
