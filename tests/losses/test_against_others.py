"""Agreement with MONAI and torch where they compute the same thing; where they do not, the test says why."""

import pytest
import torch
import torch.nn.functional as F
from monai.losses import DiceLoss, FocalLoss, NACLLoss

from calibseg.losses import CE, LS, NACL, CEDice, Focal


@pytest.mark.parametrize("space", [(9, 11), (5, 7, 6)], ids=str)
def test_nacl_agrees_with_monai_inside_the_image(space, batch):
    """At the border MONAI zero-pads the one-hot labels, so that its prior sums to less than 1; ours repeats the edge.

    Gradients of the penalty are compared voxel by voxel, because the sign of l - tau shows where tau differs.
    """
    logits, labels = batch(3, space, torch.float32)
    interior = (..., *[slice(1, -1)] * len(space))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    NACL(weight=0.1, penalty="l2")(ours, labels).backward()
    NACLLoss(3, len(space), alpha=0.1, distance_type="l2")(theirs, labels).backward()
    torch.testing.assert_close(ours.grad[interior], theirs.grad[interior])  # pyright: ignore[reportOptionalSubscript]
    assert not torch.allclose(ours.grad, theirs.grad)  # pyright: ignore[reportArgumentType]


def test_nacl_agrees_with_monai_in_value_where_the_border_has_no_say(batch):
    """Logits of 0 and labels of one class: ours has tau = (1, 0, 0) everywhere, MONAI's falls to 4/9 in corners."""
    logits, labels = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)
    ours = NACL().terms(logits, labels)["penalty"].item()
    theirs = (NACLLoss(3, 2)(logits, labels) - F.cross_entropy(logits, labels)).item()
    assert ours == pytest.approx(0.1 / 3)
    share = (4 * 4 + 8 * 6 + 4 * 9) / 9 / 16  # corners see 4 of 9, edges 6 of 9, the middle all 9
    assert theirs == pytest.approx(0.1 / 3 * share, rel=1e-5)


@pytest.mark.parametrize("include_background", [True, False])
def test_dice_agrees_with_monai(include_background, batch):
    logits, labels = batch(4)
    ours = CEDice(include_background=include_background).terms(logits, labels)["dice"]
    peer = DiceLoss(
        softmax=True, to_onehot_y=True, include_background=include_background, smooth_nr=1e-5, smooth_dr=1e-5
    )
    torch.testing.assert_close(ours, peer(logits, labels.unsqueeze(1)))


@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
def test_focal_agrees_with_monai_times_the_number_of_classes(gamma, batch):
    """MONAI averages over classes as well, though only the true class contributes. It computes in float32."""
    logits, labels = batch(4)
    peer = FocalLoss(to_onehot_y=True, use_softmax=True, gamma=gamma)
    torch.testing.assert_close(
        Focal(gamma)(logits, labels), 4 * peer(logits, labels.unsqueeze(1)).double(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_agrees_with_torch(weight, smoothing, batch):
    logits, labels = batch(3)
    labels[:, 0] = -100
    ours = LS(smoothing, class_weight=weight) if smoothing else CE(class_weight=weight)
    tensor = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    expected = F.cross_entropy(logits, labels, tensor, label_smoothing=smoothing)
    torch.testing.assert_close(ours(logits, labels), expected)


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
def test_soft_cross_entropy_agrees_with_torch(weight, batch):
    logits, _ = batch(3)
    soft = torch.softmax(logits.flip(1), 1)
    tensor = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    torch.testing.assert_close(CE(class_weight=weight)(logits, soft), F.cross_entropy(logits, soft, tensor))
