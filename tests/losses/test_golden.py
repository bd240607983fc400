"""Values that the authors' own functions gave on one small example: four pixels, three classes."""

import pytest
import torch

from calibseg.core.labels import Target
from calibseg.losses import CALS, CE, DML, MEEP, ML1ACE, DSCPlusPlus
from calibseg.losses.maths import soft_dice
from calibseg.losses.maths.average_error import Bins
from calibseg.losses.maths.soft_dice import Overlap, soft_dice_loss

LOGITS = torch.tensor([[[2.0, 0.5, -1.0, 0.0], [0.0, 1.0, 2.0, 0.5], [-1.0, 0.0, 0.5, 1.5]]], dtype=torch.float64)
LABELS = torch.tensor([[0, 0, 1, 1]])
SOFT = torch.tensor([[[0.75, 0.5, 0, 0.25], [0.25, 0.5, 0.75, 0.5], [0, 0, 0.25, 0.25]]], dtype=torch.float64)
P = torch.tensor([0.02, 0.08, 0.31, 0.33, 0.62, 0.66, 0.91, 0.97], dtype=torch.float64).view(1, 1, 8)
Y = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1]).view(1, 1, 8)


def test_cross_entropy_and_the_entropy_of_wrong_pixels():
    assert CE()(LOGITS, LABELS).item() == pytest.approx(0.7639489427, abs=1e-10)
    terms = MEEP(form="entropy").terms(LOGITS, LABELS)
    assert terms["meep"].item() == pytest.approx(-0.3 * 0.9630752966, abs=1e-10)
    assert sum(terms.values()).item() == pytest.approx(0.4750263538, abs=1e-10)  # pyright: ignore


def test_where_nothing_is_wrong_meep_is_cross_entropy():
    for form in ("kl", "entropy", "released"):
        logits = torch.nn.functional.one_hot(LABELS, 3).movedim(-1, 1).double().requires_grad_()
        terms = MEEP(form=form).terms(logits, LABELS)
        assert terms["meep"].item() == 0
        (slope,) = torch.autograd.grad(terms["meep"], logits)
        assert not slope.any()


def test_dice_plus_plus(monkeypatch):
    monkeypatch.setattr(soft_dice, "EPSILON", 1e-7)
    found = DSCPlusPlus(dice_weight=1.0).terms(LOGITS, LABELS)["dice"].item()
    assert found == pytest.approx(0.4980686304, abs=1e-9)
    assert found == pytest.approx((0.185876310 + 0.308329798 + 0.999999784) / 3, abs=1e-9)


def test_the_dice_semimetric(monkeypatch):
    """The authors average over the two classes that are in the image; the third costs 1 here."""
    monkeypatch.setattr(soft_dice, "EPSILON", 0.0)
    found = DML().terms(LOGITS, LABELS)["dice"].item()
    assert found == pytest.approx((2 * 0.3748545768 + 1) / 3, abs=1e-10)
    same = torch.log(SOFT.clamp(min=1e-300))
    target = Target.read(SOFT, 3, -100)
    assert soft_dice_loss(same, target, Overlap(kind="l1")).item() == pytest.approx(0, abs=1e-12)
    assert soft_dice_loss(same, target, Overlap()).item() == pytest.approx(0.5347222, abs=1e-7)


def test_jaccard_of_hard_labels_is_dice_over_two_minus_dice(monkeypatch):
    monkeypatch.setattr(soft_dice, "EPSILON", 0.0)
    target = Target.read(LABELS, 3, -100)
    for k in (0, 1):
        keep = Overlap(alpha=1.0, beta=1.0), Overlap()
        s = torch.softmax(LOGITS, 1)[0, k]
        y = target.one_hot[0, k]
        sums = torch.stack([part.sum().view(1, 1) for part in (s * y, s, y.double())])
        jaccard, dice = (1 - one.mean_loss(sums) for one in keep)
        torch.testing.assert_close(jaccard, dice / (2 - dice))


@pytest.mark.parametrize(("binning", "value"), [("hard", 0.107500), ("soft", 0.126702)])
def test_average_calibration_error(binning, value):
    leaf = torch.logit(P).requires_grad_()
    found = ML1ACE(bins=5, binning=binning, activation="sigmoid").terms(leaf, Y)["ace"]
    assert found.item() == pytest.approx(value, abs=5e-7)
    if binning == "hard":
        (slope,) = torch.autograd.grad(found, leaf)
        by_p = (slope / (P * (1 - P))).flatten().tolist()
        assert by_p == pytest.approx([0.125, 0.125, -0.125, -0.125, 0.125, 0.125, -0.125, -0.125])


@pytest.mark.parametrize("soft", [False, True])
def test_the_error_of_sure_voxels_does_not_drown_in_their_number(soft):
    bins, number = Bins(20, soft), 1 << 20  # in one chunk, as on a GPU
    s = torch.full((1, 2, number), 1e-5, dtype=torch.float64)
    s[:, 1, ::3] = 0.975
    voters = torch.ones(1, 1, number, dtype=torch.uint8)
    voters[..., 1::3] = 0
    sums = bins.start(s)
    bins.add(sums, (slice(None),), s, torch.zeros_like(s), voters)
    assert sums[1, 0][:, [0, -1]].tolist() == [[699051, 0], [349525, 349526]]
    assert bins.mean_error(sums)[0].tolist() == pytest.approx([1e-5, (1e-5 + 0.975) / 2], rel=1e-4)


@pytest.mark.parametrize(("weight", "value"), [(0.0, 0.5), (0.0099, 0.5), (0.01, (0.2 + 0.5) / 2)])
def test_a_bin_of_less_than_a_hundredth_of_a_voxel_is_empty(weight, value):
    sums = torch.tensor([[0.2 * weight, 0.5], [weight, 1.0]], dtype=torch.float64)
    assert Bins(2, soft=True).mean_error(sums).item() == pytest.approx(value)
    assert Bins(2, soft=True).mean_error(torch.zeros_like(sums)).item() == 0


@pytest.mark.parametrize("form", ["kl", "entropy", "released"])
def test_a_network_that_is_wholly_sure_and_wrong_has_a_finite_slope(form):
    logits = torch.tensor([[200.0, 0.0, -200.0]]).view(1, 3, 1).requires_grad_()  # s = 1, 0, 0 in float32
    loss = MEEP(form=form)(logits, torch.tensor([[2]]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("binning", ["hard", "soft"])
def test_a_diverged_network_has_a_loss_of_nan_as_with_cross_entropy(binning):
    loss, broken = ML1ACE(binning=binning, value_check="never"), torch.full((1, 3, 4), float("nan"), requires_grad=True)
    value = loss(broken, torch.zeros(1, 4, dtype=torch.long))
    value.backward()
    assert value.isnan()
    assert broken.grad is not None
    assert broken.grad.isnan().all()


def test_an_edge_belongs_to_the_hard_bin_below_it_and_three_roundings_more_to_the_next():
    roundings = torch.tensor([0, 3]) * 2.0**-24
    s = (0.5 + roundings).view(1, 1, 2)
    _, number = Bins(20, soft=False).plain(s, torch.zeros_like(s), None)
    assert number.flatten().nonzero().flatten().tolist() == [9, 10]


def test_classes_that_are_not_in_an_image_count_as_released_only():
    """Class 2 is absent: the released mean over three classes is two thirds of that over the two that are there."""
    ours = ML1ACE().terms(LOGITS, LABELS)["ace"]
    released = ML1ACE(released=True).terms(LOGITS, LABELS)["ace"]
    torch.testing.assert_close(released, ours * 2 / 3)


def test_class_adaptive_multipliers():
    loss = CALS(margin=2.0, rho_every=1).setup(3)
    assert loss.terms(LOGITS, LABELS)["penalty"].item() == pytest.approx(0.0208334167, abs=1e-9)
    loss.observe(LOGITS, LABELS)
    log = loss.end_epoch()
    assert [log[f"lambda_{k}"] for k in range(3)] == pytest.approx([0.125001, 1e-6, 0.125001], rel=1e-6, abs=1e-10)
    for _ in range(2):  # the distance of class 2 grows, so its rho does
        loss.observe(LOGITS * 4, LABELS)
        log = loss.end_epoch()
    assert log["rho_2"] == pytest.approx(1.2**2)  # gamma, twice
    for _ in range(2):  # within the margin: multipliers fall again
        before = loss.multipliers.lambdas.clone()  # pyright: ignore[reportOptionalMemberAccess]
        loss.observe(LOGITS * 0.1, LABELS)
        loss.end_epoch()
    assert (loss.multipliers.lambdas <= before).all()  # pyright: ignore
    with pytest.raises(Exception, match=r"call loss.setup\(num_classes\)"):
        CALS()(LOGITS, LABELS)
