"""Boundary-weighted consistency between two views."""

import pytest
import torch

from calibseg.core.labels import Target
from calibseg.core.types import BadInput
from calibseg.losses import BWCR, CE
from calibseg.losses.bwcr import _repeated


def test_two_equal_views_cost_only_their_cross_entropy(batch):
    logits, labels = batch(3)
    terms = BWCR().terms(torch.cat([logits, logits]), labels)
    assert terms["consistency"].item() == 0
    torch.testing.assert_close(terms["ce"], CE()(logits, labels))


def test_the_weight_runs_from_the_rim_to_the_radius():
    """One row, classes 0 0 0 0 1 1 1 1: distances 3 2 1 0 0 1 2 3; radius 2, weights 0.01 + max(2 - d, 0) / 2."""
    labels = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]]])
    a = torch.zeros(1, 2, 1, 8, dtype=torch.float64)
    b = a + 1
    value = BWCR(radius_px=2).terms(torch.cat([a, b]), labels)["consistency"].item()
    assert value == pytest.approx(sum(0.01 + w for w in (0, 0, 0.5, 1, 1, 0.5, 0, 0)) / 8)


def test_voxels_that_a_view_did_not_see_do_not_count(batch):
    logits, labels = batch(3, n=1)
    other = logits.clone()
    other[..., :4] += 100
    valid = torch.ones(2, *labels.shape[1:], dtype=torch.bool)
    valid[1, ..., :4] = False
    seen = BWCR().terms(torch.cat([logits, other]), labels, valid=valid)
    again = BWCR().terms(torch.cat([logits, logits]), labels, valid=valid)
    torch.testing.assert_close(seen["consistency"], again["consistency"])
    torch.testing.assert_close(seen["ce"], again["ce"])


def test_the_target_of_both_views_has_label_0_where_a_view_saw_nothing():
    target = Target.read(torch.tensor([[[2, 1, -100, 0]]]), 3, -100)
    seen = torch.tensor([[[True, True, True, True]], [[False, True, True, True]]])
    both = _repeated(target, seen)
    assert both.labels.dtype == torch.int64
    assert both.labels.tolist() == [[[2, 1, 0, 0]], [[0, 1, 0, 0]]]
    assert both.valid.tolist() == [[[True, True, False, True]], [[False, True, False, True]]]


def test_one_view_is_not_enough(batch):
    logits, labels = batch(3)
    with pytest.raises(
        BadInput, match=r"integer labels \[1, 7, 9\] .* for logits \[2, 3, 7, 9\] of 2 views, not int64 \[2, 7, 9\]"
    ):
        BWCR()(logits, labels)
    two = torch.cat([logits, logits])
    for valid in (
        torch.ones(2, 7, 9, dtype=torch.bool),
        torch.ones(4, 7, 9),
        torch.ones(4, 7, 9, dtype=torch.int64),
        [1],
    ):
        with pytest.raises(BadInput, match=r"valid must be bool \[4, 7, 9\]"):
            BWCR()(two, labels, valid=valid)  # pyright: ignore[reportArgumentType]
