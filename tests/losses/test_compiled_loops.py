"""Large batches in compiled loops: the numbers of the equations in float64, whatever the shape."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800000], ids=["nan", "nan of a GPU", "inf"])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_diverged_network_is_not_hidden(bits, k, calls):
    logits, labels = batch((1, 3, 20, 30), "labels")
    logits.view(torch.int32)[0, k, 3, 4] = bits
    for key in ("ce", "nacl", "mbls", "ce_dice", "ml1_ace"):
        loss = build(key, 3, value_check="never")
        value, slope = value_and_slope(loss, logits, labels)
        assert not torch.isfinite(value)
        assert slope[0, :, 3, 4].isnan().any()
        assert key in ("ce_dice", "ml1_ace") or slope.isnan().sum() <= 3
        terms = loss.terms(logits, labels)
        assert "dice" not in terms or terms["dice"].isnan()


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


@pytest.mark.parametrize("key", ["nacl", "ce_dice", "ml1_ace"])
def test_a_second_backward_pass_gives_the_same_bits(key, calls):
    logits, labels = batch((2, 3, 20, 30), "ignored")
    leaf = logits.clone().requires_grad_()
    value = build(key, 3)(leaf, labels)
    (first,) = torch.autograd.grad(value, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(value, leaf)
    assert torch.equal(first, second)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_torch_s_default_type_changes_nothing(default, calls):
    logits, labels = batch((2, 3, 20, 30), "labels")
    expected = [value_and_slope(build(key, 3), logits, labels) for key in ("nacl", "ml1_ace")]
    usual = list(calls)
    calls.clear()
    torch.set_default_dtype(default)
    try:
        found = [value_and_slope(build(key, 3), logits, labels) for key in ("nacl", "ml1_ace")]
    finally:
        torch.set_default_dtype(torch.float32)
    assert calls == usual
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_what_was_compiled_from_other_sources_is_thrown_away(tmp_path):
    """An edit of blocks.py alone, which numba does not notice in kernels.py: of a copy of the package's fast code."""
    source = Path(numba.__file__).parents[3]
    shutil.copytree(source, tmp_path / "calibseg", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import torch; from calibseg.losses.maths import numba\n"
        "numba.LARGE = 1; q = torch.zeros(1, 2, 8, 40); q[:, 0] = 1\n"
        "print(numba.cross_entropy(1.0, None, torch.zeros(1, 2, 8, 40), torch.ones(1, 1, 8, 40), q, None).item())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}

    def ask() -> str:
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return found.stdout.strip()

    blocks = tmp_path / "calibseg/losses/maths/numba/blocks.py"
    assert float(ask()) == pytest.approx(320 * math.log(2), rel=1e-6)
    assert list(blocks.parent.glob("__pycache__/kernels.cross_entropy*.nbc"))
    text = blocks.read_text()
    assert text.count("HEAD, FIELDS, MOST = 8, 5, 8") == 1
    blocks.write_text(
        text.replace("HEAD, FIELDS, MOST = 8, 5, 8", "HEAD, FIELDS, MOST = 9, 5, 8").replace(", unit]", ", unit, 0]")
    )
    assert float(ask()) == pytest.approx(320 * math.log(2), rel=1e-6)


def test_small_batches_other_numbers_and_other_layouts_stay_in_torch():
    logits, _ = batch((1, 2, 64, 64), "labels")
    weight, q = torch.rand(1, 1, 64, 64), torch.rand(1, 2, 64, 64)
    large = [part.repeat(40, 1, 1, 1) for part in (logits, weight, q)]
    assert numba.applies(large)
    assert not numba.applies([logits, weight, q])
    assert not numba.applies([large[0].double(), *large[1:]])
    assert not numba.applies([large[0].to(memory_format=torch.channels_last), *large[1:]])
    assert not numba.applies([*large[:2], large[2].to(torch.int16)])
    assert not numba.applies([logits[:1, :, :1, :1].expand(40, -1, 64, 64), *large[1:]])
    assert not numba.applies([torch._neg_view(large[0]), *large[1:]])
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
