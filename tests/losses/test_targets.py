"""The losses' door for targets: what is wrong is refused in a sentence, the rest has the value of a plain loop."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from calibseg.core.types import BadInput
from calibseg.losses import CALS, CE, LS, NACL, CEDice, CRaC
from support.targets import MadeTarget, targets


def cross_entropy_by_loop(made: MadeTarget, shares: list[list[float] | None]) -> float:
    rows = made.logits().movedim(1, -1).reshape(-1, made.shape[1]).tolist()
    total, number = 0.0, 0
    for row, share in zip(rows, shares, strict=True):
        if share is not None:
            log_sum = math.log(math.fsum(math.exp(logit) for logit in row))
            total -= math.fsum(q * (logit - log_sum) for q, logit in zip(share, row, strict=True))
            number += 1
    return total / max(number, 1)


@settings(max_examples=300, deadline=None)
@given(made=targets())
def test_a_target_is_refused_or_its_cross_entropy_is_that_of_a_loop(made):
    shares = made.shares(of_loss=True)
    for gradient in (True, False):
        loss = CE(ignore_index=made.ignore_index)
        with torch.set_grad_enabled(gradient):
            if shares is None:
                with pytest.raises(BadInput):
                    loss(made.logits().requires_grad_(), made.target)
            else:
                value = loss(made.logits().requires_grad_(), made.target).item()
                assert value == pytest.approx(cross_entropy_by_loop(made, shares), rel=1e-12, abs=1e-12)


def test_values_are_checked_in_the_first_call_always_or_never(batch):
    logits, _ = batch(3)
    good = torch.softmax(logits.flip(1), 1)
    bad = good * 1.05
    with pytest.raises(BadInput, match="expected shares of 1"):
        CE()(logits, bad)
    first, always, never = CE(), CE(value_check="always"), CE(value_check="never")
    first(logits, good)
    assert torch.isfinite(first(logits, bad))
    with torch.no_grad(), pytest.raises(BadInput, match="expected shares of 1"):
        first(logits, bad)  # validation has a first call of its own
    always(logits, good)
    with pytest.raises(BadInput, match="expected shares of 1"):
        always(logits, bad)
    assert torch.isfinite(never(logits, bad))
    with pytest.raises(BadInput, match="value_check must be one of 'first', 'always', 'never', not 'sometimes'"):
        CE(value_check="sometimes")  # pyright: ignore[reportArgumentType]


def test_a_refused_call_is_not_the_first_one(batch):
    logits, labels = batch(3)
    loss, hidden = CE(ignore_index=2), labels.masked_fill(labels == 0, 7)  # 7 is above 2, which is ignored
    for _ in range(2):
        with pytest.raises(BadInput, match="the label 7"):
            loss(logits, hidden)


def test_on_the_cpu_a_label_out_of_range_is_seen_in_every_call(batch):
    logits, labels = batch(3)
    for loss in (CE(), CE(value_check="never")):
        loss(logits, labels)
        for wrong in (labels + 256, labels - 1, labels + 1, labels.masked_fill(labels == 0, 255)):
            with pytest.raises(BadInput, match="is none of the 3 classes 0 to 2; the ignore label is -100"):
                loss(logits, wrong)


def test_compiled_losses_skip_the_check_and_leave_it_to_the_first_eager_call(batch):
    logits, _ = batch(3, dtype=torch.float32)
    loss, bad = CE(), torch.ones(2, 3, 7, 9)
    torch.compiler.reset()
    assert torch.isfinite(torch.compile(loss, fullgraph=True, backend="eager")(logits, bad))
    with pytest.raises(BadInput, match="expected shares of 1"):
        loss(logits, bad)


def test_channels_that_may_hold_together_are_refused_and_sigmoid_is_named(batch):
    logits, labels = batch(3)
    overlapping = torch.stack([labels > 0, labels > 1, labels == 1], 1).double()
    with pytest.raises(BadInput, match="channels that may hold together say activation='sigmoid'"):
        CE()(logits, overlapping)
    value = CE(activation="sigmoid")(logits, overlapping)
    torch.testing.assert_close(value, F.binary_cross_entropy_with_logits(logits, overlapping))


@pytest.mark.parametrize("make", [CE, NACL, CEDice, lambda: CRaC().setup(3)])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            lambda x: [x, x[..., ::2, ::2]],
            r"logits must be one tensor, not a list of 2: for the heads .* losses.DeepSupervision",
        ),
        (lambda x: (x,), r"logits must be one tensor, not a tuple of 1"),
        (lambda x: {"logits": x, "aux": x}, r"not a dict of logits, aux: give the one .* such as output\['logits'\]"),
        (lambda x: x.numpy(), r"logits must be one tensor, not ndarray: torch.as_tensor"),
        (lambda _: None, r"logits must be one tensor, not NoneType"),
    ],
)
def test_outputs_that_are_no_single_tensor_are_refused_in_a_sentence(make, given, sentence, batch):
    logits, labels = batch(3)
    loss = make()
    for call in (loss, loss.terms, loss.check, *([loss.observe] if isinstance(loss, CRaC) else [])):
        with pytest.raises(BadInput, match=sentence):
            call(given(logits), labels)
    with pytest.raises(BadInput, match="target must be one tensor, not a list of 1"):
        loss(logits, [labels])


def test_a_label_that_its_type_cannot_hold_ignores_nobody():
    """As a uint8 torch takes 156 for -100, and as an int8 -1 for 255."""
    logits = torch.zeros(1, 2, 3)
    for dtype, wrong, ignore_index in ((torch.uint8, 156, -100), (torch.int8, -1, 255)):
        target = torch.tensor([[0, 1, wrong]], dtype=dtype)
        with pytest.raises(BadInput, match=f"the label {wrong}"):
            CE(ignore_index=ignore_index).check(logits, target)


@pytest.mark.parametrize(("ignore_index", "wrong"), [(-100, 7), (-100, -1), (255, 7), (255, -1)])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_wrong_label_does_not_hide_behind_an_ignored_one(ignore_index, wrong, activation):
    loss = CE(ignore_index=ignore_index, activation=activation)
    logits, labels = torch.zeros(1, 3, 2, 2), torch.tensor([[[0, 1], [1, 0]]])
    labels = labels if activation == "softmax" else labels.unsqueeze(1).repeat(1, 3, 1, 1)
    loss(logits, labels)  # values are checked at the first call in any case
    labels[..., 0, 0], labels[..., 0, 1] = ignore_index, wrong
    with pytest.raises(BadInput, match=str(wrong)):
        loss(logits, labels)


def test_an_expanded_mask_of_nobody_is_a_mask_of_nobody(batch):
    logits, labels = batch(3)
    assert CE()(logits, labels, valid=torch.tensor(False).expand(labels.shape)) == 0


def test_an_image_of_a_class_without_weight_is_worth_nothing(batch):
    logits, labels = batch(3, dtype=torch.float32)
    loss = LS(class_weight=[0.0, 1.0, 1.0])
    logits.requires_grad_()
    value = loss(logits, torch.zeros_like(labels))
    value.backward()
    assert value == 0
    assert not logits.grad.any()


def test_a_loss_that_learns_is_set_up_where_it_was_moved():
    assert CALS().to("meta").setup(3).multipliers.lambdas.device.type == "meta"
