"""The contract: what every prior in the folder must do, found by the registry and named nowhere."""

import pytest
import torch

from calibseg.core import registry
from calibseg.core.labels import Target

every_prior = pytest.mark.parametrize("key", list(registry.members("priors")))


@every_prior
@pytest.mark.parametrize("space", [(7, 9), (4, 5, 6), (1, 1)], ids=str)
def test_it_is_a_distribution_over_classes_where_a_voxel_counts_and_zero_elsewhere(key, space, batch):
    _, labels = batch(3, space)
    labels[0].view(-1)[0] = -100
    target = Target.read(labels, 3, -100)
    tau = registry.build("priors", key).tau(target, torch.float64).dense()
    assert tau.shape == (2, 3, *space)
    assert (tau >= 0).all()
    counted = labels != -100
    torch.testing.assert_close(tau.sum(1)[counted], torch.ones_like(tau.sum(1)[counted]).to(tau.dtype))


@every_prior
def test_where_all_labels_agree_it_is_sure(key):
    target = Target.read(torch.full((1, 5, 6), 2), 3, -100)
    tau = registry.build("priors", key).tau(target, torch.float64).dense()
    torch.testing.assert_close(tau[:, 2], torch.ones_like(tau[:, 2]))
