"""Large batches in compiled loops: the numbers of the equations in float64, whatever the shape."""

import pytest
import torch
from torch import Tensor

from calibseg.core import registry
from calibseg.losses import Loss
from calibseg.losses.maths import numba

pytest.importorskip("numba")
KERNELS = numba._kernels()
if KERNELS is None:
    pytest.skip("this torch shares no OpenMP", allow_module_level=True)

SHAPES = [
    (2, 2, 15, 18),
    (2, 3, 4, 9, 15),
    (3, 5, 1, 1),
    (1, 4, 512, 1),
    (3, 7, 1, 257),
]  # parts of a block, whole ones
EVERY = [
    pytest.param(key, options, id=f"{key}-{i}")
    for key in registry.members("losses")
    for i, options in enumerate(registry.load("losses", key).contract_options)
]


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Compiled loops for batches of any size; the kernels that were called."""
    names: list[str] = []
    call = KERNELS._call
    monkeypatch.setattr(numba, "LARGE", 1)
    monkeypatch.setattr(KERNELS, "_call", lambda name, *rest: (names.append(name), call(name, *rest)))
    return names


def batch(shape: tuple[int, ...], target: str) -> tuple[Tensor, Tensor]:
    """Logits float32 and their target: labels, labels of which some are ignored, or soft labels."""
    generator = torch.Generator().manual_seed(sum(shape))
    logits = 4 * torch.randn(shape, generator=generator)
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    if target == "soft":
        return logits, torch.softmax(torch.randn(shape, generator=generator), 1)
    if target == "ignored":
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
    return logits, labels


def build(key: str, classes: int, **options) -> Loss:
    torch.manual_seed(0)
    loss = registry.build("losses", key, options).setup(classes)
    if getattr(loss, "multipliers", None) is not None:
        loss.multipliers.lambdas.uniform_(0.1, 2)
        loss.multipliers.rhos.uniform_(0.1, 2)
    return loss


def value_and_slope(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    views = torch.cat([leaf, 0.7 * leaf + 0.1]) if loss.views == 2 else leaf
    value = loss(views, target)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("target", ["labels", "ignored", "soft"])
@pytest.mark.parametrize(("key", "options"), EVERY)
def test_every_loss_is_its_equation(key, options, target, calls):
    for shape in SHAPES:
        logits, labels = batch(shape, target)
        loss = build(key, shape[1], **options)
        value, slope = value_and_slope(loss, logits, labels)
        soft = labels.double() if labels.is_floating_point() else labels
        exact, exact_slope = value_and_slope(loss, logits.double(), soft)
        torch.testing.assert_close(value.double(), exact, rtol=3e-6, atol=1e-6)
        torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-4, atol=3e-6 * float(exact_slope.abs().max()))


@pytest.mark.parametrize(
    ("key", "options", "kernels"),
    [
        ("ce", {}, {"cross_entropy"}),
        ("ce", {"class_weight": [1.0, 0.0, 2.0]}, {"cross_entropy"}),
        ("ls", {}, {"cross_entropy"}),
        ("svls", {}, {"cross_entropy"}),
        ("nacl", {}, {"cross_entropy", "to_prior"}),
        ("nacl", {"space": "softmax"}, {"cross_entropy"}),
        ("crac", {}, {"cross_entropy", "to_prior"}),
        ("crac", {"penalty": "p2"}, {"cross_entropy"}),
        ("mbls", {"penalty": "l2_released"}, {"cross_entropy", "margin"}),
        ("ce_dice", {}, {"cross_entropy", "softmax_slope"}),
        ("ce_dice", {"activation": "sigmoid"}, {"cross_entropy", "softmax_slope"}),
        ("ml1_ace", {}, {"cross_entropy", "bins", "softmax_slope"}),
        ("ml1_ace", {"binning": "soft"}, {"cross_entropy"}),
        ("bwcr", {}, {"cross_entropy"}),
    ],
)
def test_the_losses_that_are_trained_most_take_compiled_loops(key, options, kernels, calls):
    logits, labels = batch((2, 3, 20, 30), "ignored")
    sigmoid = options.get("activation") == "sigmoid"
    target = torch.randint(0, 2, logits.shape) if sigmoid else labels
    loss = build(key, 3, **options)
    value, slope = value_and_slope(loss, logits, target)
    assert set(calls) == kernels
    exact, exact_slope = value_and_slope(loss, logits.double(), target)
    torch.testing.assert_close(value.double(), exact, rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-4, atol=3e-6 * float(exact_slope.abs().max()))


@pytest.mark.parametrize(("key", "options"), EVERY)
def test_without_a_gradient_the_value_is_the_same(key, options, calls):
    logits, labels = batch((2, 3, 20, 30), "ignored")
    loss = build(key, 3, **options)
    value, _ = value_and_slope(loss, logits, labels)
    views = torch.cat([logits, 0.7 * logits + 0.1]) if loss.views == 2 else logits
    with torch.no_grad():
        torch.testing.assert_close(loss(views, labels), value)


def test_no_bit_depends_on_the_number_of_threads(calls):
    slope, threads = torch.empty(3, 4, 40, 50), torch.get_num_threads()
    logits, labels = batch((3, 4, 40, 50), "labels")
    q = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).byte().contiguous()
    weight = torch.rand(3, 1, 40, 50)
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            total = numba.cross_entropy(1.0, slope, logits, weight, q, None)
            assert total is not None
            found.append((total.item(), slope.clone()))
    finally:
        torch.set_num_threads(threads)
    assert len({total for total, _ in found}) == 1
    assert all(torch.equal(slope, found[0][1]) for _, slope in found)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_diverged_network_is_not_hidden(bad, k, calls):
    logits, labels = batch((1, 3, 20, 30), "labels")
    logits[0, k, 3, 4] = bad
    for key in ("ce", "nacl", "mbls"):
        value, slope = value_and_slope(build(key, 3, value_check="never"), logits, labels)
        assert not torch.isfinite(value)
        assert slope[0, :, 3, 4].isnan().any()
        assert slope.isnan().sum() <= 3


def test_huge_logits_keep_their_distance(calls):
    """H = l_top - l_label, to float32, where the softmax is 1 and 0: here 2e4 of every second voxel."""
    logits, labels = torch.zeros(1, 2, 16, 32), torch.zeros(1, 16, 32, dtype=torch.long)
    logits[:, 1, :, ::2] = 2e4
    value, slope = value_and_slope(build("ce", 2), logits, labels)
    assert value.item() == pytest.approx((2e4 + torch.log(torch.tensor(2.0)).item()) / 2, rel=1e-6)
    assert slope[0, 1, :, ::2].mul(512).tolist() == [[1.0] * 16] * 16


def test_the_voxel_that_two_classes_lead_moves_both(calls):
    """Margin 0.5: distances 0, 0, 3 exceed it by 2.5; of dP/dl_2 = -1 the two largest take a half each."""
    logits = torch.tensor([1.0, 1.0, -2.0]).view(1, 3, 1, 1).repeat(1, 1, 10, 30)
    slope, each = torch.zeros_like(logits), torch.ones(1, 1, 10, 30)
    total = numba.margin(1.0, slope, logits, each, (0.5, False, False))
    assert total is not None
    assert total.item() == 2.5 * 300
    assert slope[0, :, 4, 7].tolist() == [0.5, 0.5, -1.0]


def test_small_batches_other_numbers_and_other_layouts_stay_in_torch():
    logits, _ = batch((1, 2, 64, 64), "labels")
    weight, q = torch.rand(1, 1, 64, 64), torch.rand(1, 2, 64, 64)
    large = [part.repeat(40, 1, 1, 1) for part in (logits, weight, q)]
    assert numba.applies(large)
    assert not numba.applies([logits, weight, q])
    assert not numba.applies([large[0].double(), *large[1:]])
    assert not numba.applies([large[0].to(memory_format=torch.channels_last), *large[1:]])
    assert not numba.applies([*large[:2], large[2].to(torch.int16)])
    assert numba.cross_entropy(1.0, None, logits, weight, q, None) is None


def test_without_numba_the_torch_lines_do_it(calls, monkeypatch):
    logits, labels = batch((2, 3, 20, 30), "labels")
    fast = value_and_slope(build("nacl", 3), logits, labels)
    assert calls
    calls.clear()
    monkeypatch.setattr(numba, "_kernels", lambda: None)
    slow = value_and_slope(build("nacl", 3), logits, labels)
    assert not calls
    torch.testing.assert_close(fast, slow)
