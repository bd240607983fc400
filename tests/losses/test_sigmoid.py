"""Sigmoid: every loss of r channels is its two-class softmax form, channel by channel; what is wrong is refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from monai.data.meta_tensor import MetaTensor
from monai.losses.dice import DiceLoss
from torch import Tensor

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.losses import CE, NACL, CEDice, CRaC, Loss

EVERY = [
    (key, options)
    for key in registry.members("losses")
    for options in registry.load("losses", key).contract_options  # pyright: ignore[reportAttributeAccessIssue]
]
every_set = pytest.mark.parametrize(("key", "options"), EVERY, ids=str)
CHANNELS = 3


def made(kind: str, seed: int = 0, space: tuple[int, ...] = (4, 5)) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and regions [n r *space] that overlap (soft: in shares), and which voxels count [n *space]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, CHANNELS, *space), generator=generator, dtype=torch.float64) * 2
    field = torch.rand((2, CHANNELS, *space), generator=generator, dtype=torch.float64).cumsum(-1)
    inside = field / field.amax()
    counted = torch.rand((2, *space), generator=generator) > (0.2 if kind == "ignored" else -1.0)
    return logits, inside if kind == "soft" else (inside > 0.4).long(), counted


def loss_pair(key: str, options: dict[str, Any], **common: Any) -> tuple[Loss, Loss]:
    """The loss of channels, and that of two classes with the same state but CRaC's, which differs by channel."""
    sigmoid = registry.build("losses", key, {**options, **common, "activation": "sigmoid"}).setup(CHANNELS)
    background = {} if not common.get("dice_weight", sigmoid.dice_weight) else {"include_background": False}
    return sigmoid, registry.build("losses", key, {**options, **common, **background}).setup(2)


def two_classes(logits: Tensor, inside: Tensor, counted: Tensor, channel: int) -> tuple[Tensor, Tensor]:
    pairs = torch.stack([torch.zeros_like(logits[:, channel]), logits[:, channel]], 1)
    y = inside[:, channel]
    if y.is_floating_point():
        return pairs, torch.stack([1 - y, y], 1) * counted.unsqueeze(1)
    return pairs, y.masked_fill(~counted, -100)


def views_of(loss: Loss, logits: Tensor) -> Tensor:
    return torch.cat([logits, 0.7 * logits.flip(0)]) if loss.views == 2 else logits


def spread(loss: Loss) -> None:
    """Multipliers that differ from channel to channel, side to side and region to region."""
    for name, buffer in loss.named_buffers():
        if name in ("multipliers.lambdas", "multipliers.rhos"):
            numbers = torch.arange(1, buffer.numel() + 1).view_as(buffer)
            buffer.copy_(0.04 * numbers if name.endswith("lambdas") else 0.9 - 0.06 * numbers)


@every_set
@pytest.mark.parametrize("kind", ["labels", "ignored", "soft"])
def test_every_term_is_the_mean_over_channels_of_the_two_class_softmax_form(key, options, kind):
    logits, inside, counted = made(kind)
    sigmoid, softmax = loss_pair(key, options, dice_weight=0.7)
    spread(sigmoid)
    target = inside if kind == "soft" else inside.masked_fill(~counted.unsqueeze(1), -100)
    given = views_of(sigmoid, logits)
    found = sigmoid.terms(given.requires_grad_(), target)
    expected: dict[str, list[Tensor]] = {name: [] for name in found}
    for channel in range(CHANNELS):
        for name, buffer in sigmoid.named_buffers():
            if name in ("multipliers.lambdas", "multipliers.rhos"):
                softmax.get_buffer(name).copy_(buffer[channel])
        pairs, y = two_classes(
            given, torch.cat([inside] * sigmoid.views), torch.cat([counted] * sigmoid.views), channel
        )
        for name, term in softmax.terms(pairs, y[: len(inside)]).items():
            expected[name].append(term)
    for name, term in found.items():
        torch.testing.assert_close(term, torch.stack(expected[name]).mean(), rtol=1e-12, atol=1e-12)


@every_set
def test_the_gradient_is_the_derivative(key, options):
    logits, inside, _ = made("soft", seed=1, space=(3, 4))
    loss, _ = loss_pair(key, options, dice_weight=0.5)
    spread(loss)
    for target in (inside, (inside > 0.4).long()):
        check = torch.autograd.gradcheck
        assert check(lambda x, y=target: loss(views_of(loss, x), y), logits.clone().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.float32, torch.float64])
def test_cross_entropy_is_binary_cross_entropy_and_dice_is_monai_s(channels, dtype):
    logits, inside, _ = made("labels")
    logits, target = logits[:, :channels], inside[:, :channels].to(dtype)
    terms = CEDice(activation="sigmoid").terms(logits, target)
    torch.testing.assert_close(terms["ce"], F.binary_cross_entropy_with_logits(logits, target.double()))
    peer = DiceLoss(sigmoid=True, smooth_nr=1e-5, smooth_dr=1e-5)
    torch.testing.assert_close(terms["dice"], peer(logits, target.double()))


def test_weights_of_outside_and_inside_weigh_voxels():
    logits, inside, _ = made("labels")
    w = torch.where(inside > 0, 3.0, 0.5).double()
    expected = F.binary_cross_entropy_with_logits(logits, inside.double(), w, reduction="sum") / w.sum()
    torch.testing.assert_close(CE(activation="sigmoid", class_weight=[0.5, 3.0])(logits, inside), expected)
    with pytest.raises(BadInput, match="class_weight has 3 values for 2 classes, outside and inside of every channel"):
        CE(activation="sigmoid", class_weight=[1.0, 2.0, 3.0]).setup(CHANNELS)


@pytest.mark.parametrize("key", list(registry.members("losses")))
def test_a_mask_an_ignored_label_in_one_channel_and_in_all_mean_the_same(key):
    logits, inside, counted = made("ignored", seed=3, space=(5, 6))
    loss, _ = loss_pair(key, {})
    given = views_of(loss, logits)
    in_one = inside.clone()
    in_one[:, 1][~counted] = -100
    everywhere = inside.masked_fill(~counted.unsqueeze(1), -100)
    usual = loss(given, everywhere)
    assert torch.equal(loss(given, in_one), usual)
    torch.testing.assert_close(loss(given, in_one.double()), usual)
    if loss.views == 1:  # the mask of a loss of views says what each of them saw
        garbage = inside.masked_fill(~counted.unsqueeze(1), 77)
        assert torch.equal(loss(given, garbage, valid=counted), usual)
        assert torch.equal(loss(given, garbage, valid=counted.unsqueeze(1)), usual)
    assert not torch.allclose(loss(given, inside), usual)


def test_softmax_takes_a_mask_too(batch):
    logits, labels = batch(3)
    counted = labels.roll(1) != 1
    soft = F.one_hot(labels, 3).movedim(-1, 1).double()
    for loss in (CE(), NACL(dice_weight=1.0), CRaC().setup(3)):
        usual = loss(logits, labels.masked_fill(~counted, -100))
        assert torch.equal(loss(logits, labels.masked_fill(~counted, 9), valid=counted), usual)
        torch.testing.assert_close(
            loss(logits, soft.masked_fill(~counted.unsqueeze(1), torch.nan), valid=counted), usual
        )
        loss.check(logits, labels.masked_fill(~counted, 9), valid=counted)


@pytest.mark.filterwarnings("ignore:crac")
@pytest.mark.parametrize("average", ["all", "region"])
def test_multipliers_of_a_channel_are_those_of_its_two_class_problem(average):
    options: dict[str, Any] = {"schedule": "released", "average": average, "rho_every": 1}
    together = CRaC(activation="sigmoid", **options).setup(CHANNELS)
    alone = [CRaC(**options).setup(2) for _ in range(CHANNELS)]
    for epoch in range(3):
        logits, inside, counted = made("ignored", seed=epoch, space=(6, 7))
        together.observe(logits * (1 + epoch), inside, valid=counted)
        log = together.end_epoch()
        for channel, loss in enumerate(alone):
            loss.observe(*two_classes(logits * (1 + epoch), inside, counted, channel))
            own = loss.end_epoch()
            assert torch.equal(together.lambdas[channel], loss.lambdas)
            assert torch.equal(together.rhos[channel], loss.rhos)
            assert log[f"lambda_inner_{channel}_1"] == own["lambda_inner_1"]
    assert together.lambdas.shape == (CHANNELS, 2, 2)
    assert (together.rhos > 0.1).any()


def test_a_channel_that_is_lost_is_told():
    _, inside, _ = made("labels")
    sure, loss = (inside * 2.0 - 1) * 8, CRaC(activation="sigmoid", schedule="released").setup(CHANNELS)
    loss.observe(sure, inside)
    loss.end_epoch()
    sure[:, 2] = -8.0
    loss.observe(sure, inside)
    with pytest.warns(UserWarning, match="crac: class 2_1 is being lost"):
        loss.end_epoch()


def test_what_is_wrong_with_channels_is_one_sentence():
    logits, inside, counted = made("labels")
    loss = CE(activation="sigmoid")
    for target, sentence in (
        (inside[:, :2], r"target must be each channel's own labels \[2, 3, 4, 5\] for logits"),
        (inside[:, 0], "each channel's own labels"),
        (inside + 1, r"soft labels are [12], [12], [12] at voxel \(y \d, x \d\) of image \d of the batch; expected"),
        (inside - 0.5, "expected shares of 1"),
        (inside * torch.nan, "soft labels are nan"),
    ):
        for _ in range(2):
            with pytest.raises(BadInput, match=sentence):
                loss(logits, target)
    for valid, sentence in (
        (counted.double(), r"valid must be bool \[2, 4, 5\], the voxels that count, not float64"),
        (counted[:1], "valid must be bool"),
        (counted.to("meta"), "valid is on meta"),
    ):
        with pytest.raises(BadInput, match=sentence):
            loss(logits, inside, valid=valid)
    with pytest.raises(BadInput, match="at least 1 channel"):
        loss(logits[:, :0], inside[:, :0])
    for options, sentence in (
        ({"include_background": False}, "no channel is the background"),
        ({"ignore_index": 1}, "ignore_index = 1 is a label of every channel"),
    ):
        with pytest.raises(BadInput, match=sentence):
            CE(activation="sigmoid", **options)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("key", list(registry.members("losses")))
def test_meta_tensors_and_labels_of_whole_floats_go_in_and_plain_tensors_come_out(key, activation, batch):
    logits, labels = batch(3)
    whole = labels.unsqueeze(1)
    inside = torch.stack([labels > 0, labels > 1, labels == 1], 1)
    loss = registry.build("losses", key, {"activation": activation}).setup(3)
    given = views_of(loss, logits)
    targets = (
        [inside.float()]
        if activation == "sigmoid"
        else [whole.float(), whole.half(), F.one_hot(labels, 3).movedim(-1, 1)]
    )
    usual = loss(given, inside.float() if activation == "sigmoid" else labels)
    for target in targets:
        found = loss(MetaTensor(given).requires_grad_(), MetaTensor(target))
        assert type(found) is Tensor
        torch.testing.assert_close(found, usual)


def test_float_labels_that_are_no_whole_numbers_are_refused(batch):
    logits, labels = batch(3)
    for wrong in (0.5, torch.nan):
        target = labels.unsqueeze(1).float()
        target[0, 0, 2, 2] = wrong
        with pytest.raises(BadInput, match=r"labels of floats \[2, 1, 7, 9\] must be whole numbers, not (0.5|nan)"):
            CE(value_check="never")(logits, target)


def test_torch_compile_gives_the_same_value():
    logits, inside, counted = made("ignored")
    loss = NACL(activation="sigmoid", dice_weight=1.0)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for target in (inside.masked_fill(~counted.unsqueeze(1), -100), inside.double()):
        torch.testing.assert_close(compiled(logits, target), loss(logits, target))
