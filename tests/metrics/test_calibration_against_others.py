"""Our calibration numbers beside torchmetrics' and MONAI's: equal on small arrays, and who is right on large ones."""

import pytest
import torch

from calibseg.metrics import ACE, CACE, CECE, ECE, MCE
from calibseg.metrics.statistics.binning import calibration_statistics

torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
monai = pytest.importorskip("monai.metrics")


def example(classes=4, voxels=5000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(classes, voxels, generator=generator), 0)
    return p, torch.randint(0, classes, (voxels,), generator=generator)


def theirs(p, labels, norm="l1"):
    return torchmetrics.multiclass_calibration_error(p.T, labels, len(p), n_bins=15, norm=norm).item()


@pytest.mark.parametrize("classes", [2, 4, 9])
def test_torchmetrics_agrees_on_small_arrays(classes):
    p, labels = example(classes)
    curves = calibration_statistics(p, labels, kind="probabilities").on("all")
    assert ECE().value(curves)[None] == pytest.approx(theirs(p, labels), abs=2e-6)
    assert MCE().value(curves)[None] == pytest.approx(theirs(p, labels, "max"), abs=2e-6)
    for k in range(classes):
        binary = torchmetrics.binary_calibration_error(p[k], (labels == k).long(), n_bins=15, norm="l1").item()
        assert CECE().value(curves)[k] == pytest.approx(binary, abs=2e-6)


@pytest.mark.parametrize(("metric", "reduction"), [(CECE(), "expected"), (CACE(), "average")])
def test_monai_agrees_on_small_arrays(metric, reduction):
    p, labels = example()
    one_hot = torch.nn.functional.one_hot(labels, 4).T.float()
    ours = metric.value(calibration_statistics(p, labels, kind="probabilities").on("all"))
    monais = monai.CalibrationErrorMetric(num_bins=15, calibration_reduction=reduction)(p[None], one_hot[None])[0]
    assert monais.tolist() == pytest.approx([ours[k] for k in range(4)], abs=2e-6)


def test_average_calibration_error_is_monais_average_reduction_on_one_channel():
    p, labels = example(2)
    curves = calibration_statistics(p[:1], (labels == 0).long()[None], kind="probabilities", activation="sigmoid")
    metric = monai.CalibrationErrorMetric(num_bins=15, calibration_reduction="average")
    found = metric(p[None, :1], (labels == 0).float()[None, None])[0, 0].item()
    assert ACE().value(curves.on("all"))[0] == pytest.approx(found, abs=2e-6)


def three_answers(voxels, confidence):
    """ECE of background predicted with one confidence and right in every voxel: ours, torchmetrics', MONAI's."""
    p, labels = torch.full((voxels,), confidence), torch.zeros(voxels, dtype=torch.uint8)
    both = torch.stack([p, 1 - p])
    ours = ECE().value(calibration_statistics(both, labels, kind="probabilities").on("all"))[None]
    del both
    torchs = torchmetrics.binary_calibration_error(p, labels.long() + 1, n_bins=15, norm="l1").item()
    monais = monai.CalibrationErrorMetric(num_bins=15)(p[None, None], torch.ones(1, 1, voxels))[0, 0].item()
    return ours, torchs, monais


def test_all_three_agree_while_a_bin_is_small():
    assert three_answers(1000, 0.99) == pytest.approx((0.01, 0.01, 0.01), abs=1e-5)


def test_torchmetrics_and_monai_lose_nine_tenths_of_the_error_in_a_bin_of_four_million_voxels():
    """They add 0.99 to a float32 sum whose spacing is by then 0.25 to 0.5, so each step is rounded up to 1."""
    ours, torchs, monais = three_answers(1 << 22, 0.99)
    assert ours == pytest.approx(0.01, abs=1e-7)
    assert torchs == pytest.approx(0.00079, abs=2e-5)
    assert monais == pytest.approx(0.00079, abs=2e-5)


@pytest.mark.slow
def test_torchmetrics_and_monai_say_zero_where_the_error_is_four_per_cent():
    """Beyond 2^24 = 16.8 million a float32 sum no longer grows when 1 is added: confidence and accuracy stop alike."""
    ours, torchs, monais = three_answers((1 << 24) + (1 << 21), 0.96)
    assert ours == pytest.approx(0.04, abs=1e-7)
    assert torchs == 0
    assert monais == 0
