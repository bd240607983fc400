"""Soft Dice, alone and in one go with cross-entropy."""

import pytest
import torch

from calibseg.core.labels import Target
from calibseg.losses import CE, CEDice
from calibseg.losses.maths.average_error import Bins
from calibseg.losses.maths.soft_dice import Overlap, soft_dice_loss
from calibseg.losses.maths.softmax_sums import softmax_sums


@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy_with_dice_is_the_sum_of_both_and_so_is_its_gradient(ignored, batch):
    logits, labels = batch(3)
    if ignored:
        labels[:, 0] = -100
    together, apart = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    CEDice(dice_weight=0.5, class_weight=[1.0, 2.0, 0.5])(together, labels).backward()
    dice = soft_dice_loss(apart, Target.read(labels, 3, -100), Overlap())
    (CE(class_weight=[1.0, 2.0, 0.5])(apart, labels) + 0.5 * dice).backward()
    torch.testing.assert_close(together.grad, apart.grad)


def test_a_second_backward_pass_gives_the_same_gradient(batch):
    """The first pass turns the softmax that was kept into the gradient."""
    logits, labels = batch(3)
    leaf = logits.requires_grad_()
    value = CEDice()(leaf, labels)
    (first,) = torch.autograd.grad(value, leaf, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(value, leaf)
    assert torch.equal(second, first)


def test_without_gradient_nothing_is_kept_and_the_values_are_the_same(batch):
    logits, labels = batch(3)
    target = Target.read(labels, 3, -100)
    parts = [Overlap().sums(target), Overlap(gamma=2.0).sums(target), Bins(5, soft=True)]
    with torch.no_grad():
        plain = softmax_sums(logits, target, parts, target.voxel_weight(logits.dtype))
    torch.testing.assert_close(
        plain, softmax_sums(logits.requires_grad_(), target, parts, target.voxel_weight(logits.dtype))
    )
