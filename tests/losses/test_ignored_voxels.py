"""Where no voxel is ignored, weights and window totals are single numbers: the result is that of the general path."""

import pytest
import torch

from calibseg.core import registry
from calibseg.core.labels import Target

LOSSES = [(key, {}) for key in registry.members("losses") if key != "bwcr"]
WINDOWS = [("nacl", {"prior": key, "border": "background"}) for key in registry.members("priors")]


@pytest.mark.parametrize(("key", "options"), LOSSES + WINDOWS, ids=str)
def test_a_loss_is_the_same_to_the_bit_whether_or_not_it_knows_that_every_voxel_counts(
    key, options, batch, monkeypatch
):
    logits, labels = batch(3, (9, 11), torch.float32)
    loss = registry.build("losses", key, options).setup(3)
    results = []
    for knows in (True, False):
        if not knows:
            monkeypatch.setattr(Target, "all_valid", False)
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, labels)
        value.backward()
        results.append((value.detach(), leaf.grad))
    if "gaussian" in options.get(
        "prior", ""
    ):  # its total is a sum of fractions, rounded in another order at the border
        torch.testing.assert_close(results[0], results[1])
    else:
        assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def test_a_target_knows_that_every_voxel_counts_by_its_smallest_and_largest_label():
    labels = torch.tensor([[0, 2], [1, 1]])
    assert Target.read(labels, 3, -100).all_valid
    assert Target.read(labels, 3, 255).all_valid
    for label in (0, 1, 2):
        target = Target.read(labels, 3, label)
        assert not target.all_valid
        assert torch.equal(target.valid, labels != label)


def test_where_every_voxel_counts_the_weight_is_one_number(batch):
    _, labels = batch(3)
    weight = Target.read(labels, 3, -100).voxel_weight(torch.float64)
    assert weight.shape == (1, 1, 1, 1)
    assert weight.item() == 1 / labels.numel()
