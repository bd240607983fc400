"""DeepSupervision: MONAI's weights and nearest labels, lists and stacked heads; and our losses inside MONAI's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from monai.losses.ds_loss import DeepSupervisionLoss
from torch import Tensor

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.losses import CE, NACL, CEDice, CRaC, DeepSupervision

SIZES = ((8, 12), (4, 6), (3, 5), (2, 3), (1, 2), (1, 1))


def heads_of(sizes=SIZES, classes: int = 3, n: int = 2) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(4)
    heads = [torch.randn((n, classes, *size), generator=generator, dtype=torch.float64) for size in sizes]
    return heads, torch.randint(classes, (n, *sizes[0]), generator=generator)


@pytest.mark.parametrize("mode", ["exp", "two", "same"])
@pytest.mark.parametrize("key", ["ce", "nacl", "ce_dice"])
def test_the_value_is_that_of_monai_s_wrapper_around_our_loss(mode, key):
    heads, labels = heads_of()
    loss = registry.build("losses", key)
    ours = DeepSupervision(loss, mode)(heads, labels)
    theirs = DeepSupervisionLoss(loss, weight_mode=mode)(heads, labels.unsqueeze(1).float())
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=1e-6)
    soft = F.one_hot(labels, 3).movedim(-1, 1).double()
    torch.testing.assert_close(DeepSupervision(loss, mode)(heads, soft), ours)


def test_labels_at_a_lower_resolution_are_the_nearest_ones():
    heads, labels = heads_of(((6, 9), (2, 3)))
    total = DeepSupervision(CE(), [0.7, 0.2])(heads, labels)
    expected = 0.7 * F.cross_entropy(heads[0], labels) + 0.2 * F.cross_entropy(heads[1], labels[:, 1::3, 1::3])
    torch.testing.assert_close(total, expected)
    lists = DeepSupervision(CE(), [0.7, 0.2])(heads, [labels, labels[:, 1::3, 1::3]])
    torch.testing.assert_close(lists, expected)


def test_of_two_equally_near_voxels_the_later_one_is_taken_at_every_size():
    loss = DeepSupervision(CE(), [0.0, 1.0])
    for size, low in ((26, 11), (6, 3), (50, 22), (7, 3)):
        at = [
            (2 * i + 1) * size // (2 * low) for i in range(low)
        ]  # in whole numbers: float32 takes 12 for 13 of 26 to 11
        heads, labels = heads_of(((1, size), (1, low)), classes=5)
        torch.testing.assert_close(loss(heads, labels), F.cross_entropy(heads[1], labels[:, :, at]))


def test_stacked_heads_are_the_list_and_one_tensor_is_the_loss_itself():
    heads, labels = heads_of(((8, 12),) * 3)
    loss = DeepSupervision(CEDice())
    usual, stacked = loss(heads, labels), torch.stack(heads, 1)
    for target in (
        labels,
        labels.unsqueeze(1),
        labels.unsqueeze(1).float(),
        F.one_hot(labels, 3).movedim(-1, 1).float(),
    ):
        torch.testing.assert_close(loss(stacked, target), usual)
        torch.testing.assert_close(loss(heads[0], target), CEDice()(heads[0], labels))
    thin, flat = torch.stack(heads[:2], 2), torch.stack([labels, labels], 1)  # two slices: an image [n k z y x]
    torch.testing.assert_close(loss(thin, flat), CEDice()(thin, flat))
    regions = torch.stack([labels > 0, labels > 1, labels == 1], 1)
    sigmoid = DeepSupervision(CE(activation="sigmoid"), "same")
    expected = sum(F.binary_cross_entropy_with_logits(head, regions.double()) for head in heads)
    torch.testing.assert_close(sigmoid(stacked, regions), expected)


@pytest.mark.filterwarnings("ignore:crac")
def test_a_step_counts_once_and_validation_looks_at_the_first_head():
    heads, labels = heads_of()
    crac, alone = CRaC(schedule="released").setup(3), CRaC(schedule="released").setup(3)
    loss = DeepSupervision(crac, lower=CEDice()).setup(3)
    terms = loss.terms([head.requires_grad_() for head in heads], labels)
    assert set(terms) == {"ce", "penalty", "dice"}
    assert int(loss.loss.multipliers.steps) == 1
    DeepSupervision(crac)([head.requires_grad_() for head in heads], labels)
    assert int(crac.multipliers.steps) == 2  # pyright: ignore[reportOptionalMemberAccess]
    assert crac.training
    with torch.no_grad():
        loss.observe(heads, labels)
        alone.observe(heads[0], labels)
    loss.end_epoch()
    alone.end_epoch()
    assert torch.equal(crac.lambdas, alone.lambdas)


def test_masks_shrink_with_their_heads():
    heads, labels = heads_of(((4, 6), (2, 3)))
    counted = labels != 2
    hidden = labels.masked_fill(~counted, -100)
    loss = DeepSupervision(NACL())
    torch.testing.assert_close(loss(heads, labels, valid=counted), loss(heads, hidden))
    leaf = [head.requires_grad_() for head in heads]
    assert torch.autograd.gradcheck(lambda *x: loss([*x], hidden), leaf)


def test_what_does_not_fit_is_said():
    heads, labels = heads_of()
    loss = DeepSupervision(CE())
    for logits, target, sentence in (
        (heads, [labels], "6 heads and 1 targets"),
        ([], labels, "0 heads and 0 targets"),
        ([heads[0], None], labels, "every head must be a tensor, not NoneType"),
        (heads, "labels", "every target must be a tensor, not str"),
        ([heads[0], heads[1][:, :2]], labels.clamp(min=2), "the label 2"),
        (heads[1::-1], labels, "is larger than head 0 of .*: full resolution first"),
        (heads[:2], [labels, labels[..., :-1]], "target 1 has the size"),
    ):
        with pytest.raises(BadInput, match=sentence):
            loss(logits, target)
    with pytest.raises(BadInput, match="2 weights for 6 heads"):
        DeepSupervision(CE(), [1.0, 0.5])(heads, labels)
    for weights in ([1.0, math.nan], [1.0, math.inf], [1.0, -1.0], ["a"], None, []):
        with pytest.raises(BadInput, match="or a number of 0 or more for each head, not "):
            DeepSupervision(CE(), weights)  # pyright: ignore[reportArgumentType]
    for given in ({"loss": "ce"}, {"loss": torch.nn.MSELoss()}, {"loss": CE(), "lower": torch.nn.MSELoss()}):
        with pytest.raises(BadInput, match="takes a loss of calibseg"):
            DeepSupervision(**given)
    with pytest.raises(BadInput, match="weights must be one of 'exp', 'two', 'same'"):
        DeepSupervision(CE(), "half")
