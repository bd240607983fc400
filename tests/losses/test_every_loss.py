"""The contract: what every loss in the folder must do, found by the registry and named nowhere."""

import copy
import inspect

import pytest
import torch
from torch import Tensor

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.losses import Loss

KEYS = list(registry.members("losses"))
every_loss = pytest.mark.parametrize("key", KEYS)
SPACES = pytest.mark.parametrize("space", [(7, 9), (4, 5, 6), (1, 1), (1, 3, 1)], ids=str)


def build(key: str, classes: int, **options) -> Loss:
    return registry.build("losses", key, options).setup(classes)


def call(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """The loss of one batch; a loss of two views sees the logits and a changed copy."""
    return loss(_views(loss, logits), target)


def _views(loss: Loss, logits: Tensor) -> Tensor:
    return torch.cat([logits, 0.7 * logits + 0.1]) if loss.views == 2 else logits


@every_loss
@SPACES
def test_the_value_is_a_finite_scalar_and_the_sum_of_its_named_terms(key, space, batch):
    logits, labels = batch(3, space)
    loss = build(key, 3)
    value = call(loss, logits, labels)
    terms = loss.terms(_views(loss, logits), labels)
    assert value.shape == ()
    assert torch.isfinite(value)
    assert all(isinstance(name, str) and term.shape == () for name, term in terms.items())
    torch.testing.assert_close(sum(terms.values()), value)


@every_loss
@SPACES
def test_the_gradient_is_the_derivative_of_the_value(key, space, batch):
    logits, labels = batch(3, space)
    loss = build(key, 3)
    assert torch.autograd.gradcheck(lambda x: call(loss, x, labels), logits.requires_grad_())


@every_loss
def test_soft_labels_have_the_right_gradient_too(key, batch):
    logits, labels = batch(3, (4, 5))
    soft = torch.softmax(torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).double() * 2, 1)
    loss = build(key, 3)
    assert torch.autograd.gradcheck(lambda x: call(loss, x, soft), logits.requires_grad_())


@every_loss
def test_each_term_has_its_own_gradient_when_terms_are_weighted_differently(key, batch):
    logits, labels = batch(3, (4, 5))
    loss = build(key, 3)

    def weighted(x: Tensor) -> Tensor:
        return sum((i + 2) * term for i, term in enumerate(loss.terms(_views(loss, x), labels).values()))  # pyright: ignore

    assert torch.autograd.gradcheck(weighted, logits.requires_grad_())


@every_loss
def test_a_second_derivative_exists(key, batch):
    logits, labels = batch(3, (2, 3), n=1)
    loss = build(key, 3)
    assert torch.autograd.gradgradcheck(lambda x: call(loss, x, labels), logits.requires_grad_())


@every_loss
def test_one_hot_soft_labels_give_the_same_value_as_integer_labels(key, batch):
    logits, labels = batch(4)
    soft = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).to(logits.dtype)
    loss = build(key, 4)
    torch.testing.assert_close(call(loss, logits, soft), call(loss, logits, labels))


@every_loss
def test_an_ignored_voxel_counts_for_nobody(key, batch):
    """Not in any mean, and not for its neighbours: cutting ignored columns off changes nothing but the border."""
    logits, labels = batch(3, (6, 8))
    loss = build(key, 3)
    ignored = labels.clone()
    ignored[..., 4:] = -100
    other = logits.clone()
    other[..., 4:] += 50 * torch.rand_like(other[..., 4:])
    torch.testing.assert_close(call(loss, logits, ignored), call(loss, other, ignored))
    changed = ignored.clone()
    changed[..., 0] = (changed[..., 0] + 1) % 3
    assert not torch.allclose(call(loss, logits, changed), call(loss, logits, ignored))


@every_loss
@pytest.mark.parametrize("ignore_index", [-100, -1, 1, 255])
def test_any_ignore_index_means_the_same(key, ignore_index, batch):
    logits, labels = batch(3, (5, 6))
    labels[labels == 1] = 2
    hidden = torch.zeros_like(labels, dtype=torch.bool)
    hidden[:, 1:3, 2:5] = True
    usual = call(build(key, 3), logits, labels.masked_fill(hidden, -100))
    other = call(build(key, 3, ignore_index=ignore_index), logits, labels.masked_fill(hidden, ignore_index))
    torch.testing.assert_close(other, usual)


@every_loss
def test_a_soft_voxel_of_zeros_is_ignored(key, batch):
    logits, labels = batch(3, (5, 6))
    soft = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).to(logits.dtype)
    soft[:, :, 1:3] = 0
    hidden = labels.clone()
    hidden[:, 1:3] = -100
    loss = build(key, 3)
    torch.testing.assert_close(call(loss, logits, soft), call(loss, logits, hidden))


@every_loss
def test_a_batch_without_any_voxel_that_counts_gives_zero_and_no_gradient(key, batch):
    logits, labels = batch(3)
    logits.requires_grad_()
    value = call(build(key, 3), logits, torch.full_like(labels, -100))
    value.backward()
    assert value.item() == 0
    assert torch.count_nonzero(logits.grad) == 0


@every_loss
def test_renaming_classes_changes_nothing(key, batch):
    """Waived only for order-statistic priors, which are no loss's default: they look at class numbers by definition."""
    logits, labels = batch(4)
    order = torch.tensor([0, 3, 1, 2])
    loss = build(key, 4)
    torch.testing.assert_close(call(loss, logits[:, order], torch.argsort(order)[labels]), call(loss, logits, labels))


@every_loss
def test_a_volume_one_voxel_thick_equals_the_image(key, batch):
    logits, labels = batch(3)
    options = {"kernel_size": (1, 3, 3)} if "kernel_size" in _options(key) else {}
    flat = call(build(key, 3), logits, labels)
    thick = call(build(key, 3, **options), logits.unsqueeze(2), labels.unsqueeze(1))
    torch.testing.assert_close(thick, flat)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_float32(key, dtype, batch):
    logits, labels = batch(3, dtype=dtype)
    loss = build(key, 3)
    value = call(loss, logits.requires_grad_(), labels)
    value.backward()
    assert value.dtype == torch.float32
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    if loss.views == 1:  # the changed copy of the second view is itself rounded to half precision
        torch.testing.assert_close(value, call(loss, logits.detach().float(), labels))


@every_loss
def test_huge_logits_stay_finite(key, batch):
    logits, labels = batch(3, dtype=torch.float32)
    logits = (logits * 1e4).requires_grad_()
    value = call(build(key, 3), logits, labels)
    value.backward()
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@every_loss
def test_large_batches_go_through_in_chunks_with_the_same_result(key, batch, monkeypatch):
    for space in ((9, 7), (6, 5, 4)):
        logits, labels = batch(3, space, n=3)
        loss = build(key, 3)
        whole = call(loss, whole_leaf := logits.clone().requires_grad_(), labels)
        whole.backward()
        for chunk in (200, 40):  # a few images at a time; then parts of one image
            monkeypatch.setattr("calibseg.losses.maths.fused_sums.CPU_CHUNK", chunk)
            cut = call(loss, cut_leaf := logits.clone().requires_grad_(), labels)
            cut.backward()
            torch.testing.assert_close(cut, whole)
            torch.testing.assert_close(cut_leaf.grad, whole_leaf.grad)
        monkeypatch.undo()


@every_loss
def test_the_memory_format_does_not_matter(key, batch):
    logits, labels = batch(3, (8, 6))
    loss = build(key, 3)
    gradients = []
    for layout in (torch.contiguous_format, torch.channels_last):
        leaf = logits.clone(memory_format=layout).requires_grad_()
        call(loss, leaf, labels).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    view = torch.cat([logits, logits], 2)[:, :, :8]  # not contiguous
    torch.testing.assert_close(call(loss, view, labels), call(loss, logits, labels))


@every_loss
def test_a_copy_and_a_reloaded_state_behave_the_same(key, batch):
    logits, labels = batch(3)
    loss = build(key, 3)
    again = build(key, 3)
    again.load_state_dict(loss.state_dict())
    for twin in (copy.deepcopy(loss), again):
        assert torch.equal(call(twin, logits, labels), call(loss, logits, labels))


@every_loss
def test_autocast_changes_nothing(key, batch):
    logits, labels = batch(3, dtype=torch.float32)
    loss = build(key, 3)
    plain = call(loss, logits, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(call(loss, logits, labels), plain)


@every_loss
def test_the_dice_term_comes_with_every_loss(key, batch):
    logits, labels = batch(3)
    options = {"weight": 0.0} if "weight" in _options(key) else {}
    plain, with_dice = build(key, 3, dice_weight=0.0, **options), build(key, 3, dice_weight=2.0, **options)
    terms = with_dice.terms(_views(with_dice, logits), labels)
    assert "dice" in terms
    torch.testing.assert_close(call(with_dice, logits, labels) - terms["dice"], call(plain, logits, labels))


@every_loss
@pytest.mark.parametrize("classes", [2, 7, 30])
def test_any_number_of_classes_and_maps_of_a_single_class_work(key, classes, batch):
    logits, labels = batch(classes, (5, 5))
    loss = build(key, classes)
    for target in (labels, torch.zeros_like(labels), torch.full_like(labels, classes - 1)):
        leaf = logits.clone().requires_grad_()
        value = call(loss, leaf, target)
        value.backward()
        assert torch.isfinite(value)
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


@every_loss
def test_labels_may_have_any_integer_type_and_a_channel_axis(key, batch):
    logits, labels = batch(3)
    loss = build(key, 3)
    usual = call(loss, logits, labels)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(call(loss, logits, labels.to(dtype)), usual)
    assert torch.equal(call(loss, logits, labels.unsqueeze(1)), usual)


@every_loss
@pytest.mark.parametrize("weights", [[2.0], [2.0, 1.0]])
def test_class_weights_of_another_number_of_classes_are_refused_without_setup_too(key, weights, batch):
    logits, labels = batch(3)
    loss = registry.build("losses", key, {"class_weight": weights})
    with pytest.raises(BadInput, match=rf"class_weight has {len(weights)} values for 3 classes"):
        call(loss, logits, labels)


@every_loss
def test_class_weights_weigh_classes(key, batch):
    logits, labels = batch(3)
    even = call(build(key, 3, class_weight=[1.0, 1.0, 1.0]), logits, labels)
    torch.testing.assert_close(even, call(build(key, 3), logits, labels))
    uneven = call(build(key, 3, class_weight=[1.0, 5.0, 0.0]), logits, labels)
    assert not torch.allclose(uneven, even)


@every_loss
def test_bad_shapes_types_and_values_get_one_clear_sentence(key, batch):
    logits, labels = batch(3, (4, 5))
    loss = build(key, 3)
    both = _views(loss, logits)
    with pytest.raises(BadInput, match="target must be integer labels"):
        loss(both, labels[:, :-1])
    with pytest.raises(BadInput, match="target must be integer labels"):
        loss(both, labels.double())
    with pytest.raises(BadInput, match="at least 2 classes"):
        loss(both[:, :1], labels)
    with pytest.raises(BadInput, match="floating"):
        loss(both.long(), labels)
    with pytest.raises(BadInput, match="logits are on cpu and target is on meta"):
        loss(both, labels.to("meta"))
    soft = torch.softmax(logits, 1)
    for bad_logits, bad_target, sentence in (
        (
            both,
            _with(labels, 3, (1, 2, 4)),
            r"the label 3 at voxel \(y 2, x 4\) of image 1 of the batch is none .*-100",
        ),
        (both, _with(labels, -7), "the label -7"),
        (both, labels + 256, "the label 256"),
        (_with(both, torch.nan), labels, "1 of .* logits are NaN or infinite"),
        (both, soft * 1.1, "soft labels are .* expected shares of 1"),
        (both, _with(soft, torch.nan), "soft labels are nan, .* expected shares of 1"),
    ):
        with pytest.raises(BadInput, match=sentence):
            loss.check(bad_logits, bad_target)
        with pytest.raises(BadInput, match=sentence):
            build(key, 3)(bad_logits, bad_target)
    for target in (soft, _with(labels, -100)):
        loss.check(both, target)
        build(key, 3)(both, target)


@every_loss
def test_an_option_that_does_not_exist_is_named_with_those_that_do(key):
    with pytest.raises(BadInput, match=r"no option of loss .* named 'dice_wait'. Did you mean 'dice_weight'\?"):
        registry.build("losses", key, {"dice_wait": 1.0})


@every_loss
def test_the_documentation_has_an_equation_a_paper_the_differences_and_every_option(key):
    member = registry.find("losses", key)
    assert "$$" in member.doc
    assert "Paper:" in member.doc
    assert "Differs:" in member.doc
    assert all(option.note for option in member.options), [o.name for o in member.options if not o.note]


@every_loss
def test_options_read_from_the_source_are_the_constructor_s(key):
    signature = {
        name
        for parent in registry.load("losses", key).__mro__
        if "__init__" in vars(parent) and issubclass(parent, Loss)
        for name in inspect.signature(parent.__init__).parameters
    }
    assert {option.name for option in registry.find("losses", key).options} == signature - {"self", "common"}


def _options(key: str) -> set[str]:
    return {option.name for option in registry.find("losses", key).options}


def _with(values: Tensor, value: float, at: tuple[int, ...] | int = 0) -> Tensor:
    changed = values.clone()
    (changed if isinstance(at, tuple) else changed.view(-1))[at] = value
    return changed
