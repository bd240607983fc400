"""MONAI's metric and post-transform: agreement with MONAI where float32 is exact, pooled and per case, lists."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor, decollate_batch
from monai.metrics import CalibrationErrorMetric
from torch.nn.functional import one_hot

from calibseg import calibrators
from calibseg.core.types import BadInput
from calibseg.integrations.monai import Calibrated, CalibrationMetric
from calibseg.metrics.statistics.monitor import CalibrationMonitor


def batch(cases: int = 4, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n k z y x] and labels [n 1 z y x]; each case is more confident than the one before."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(cases, classes, 4, 6, 5, generator=generator)
    logits = logits * torch.arange(1, cases + 1).view(-1, 1, 1, 1, 1)
    return logits, torch.randint(0, classes, (cases, 1, 4, 6, 5), generator=generator)


def hot(labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    return one_hot(labels[:, 0], classes).movedim(-1, 1).float()


def test_the_mean_over_cases_and_classes_is_monais_own_metric():
    logits, labels = batch()
    ours, theirs = CalibrationMetric("cece", num_bins=20, reduction="mean", per_class=True), CalibrationErrorMetric()
    for metric in (ours, theirs):
        metric(y_pred=logits.softmax(1), y=hot(labels))
    assert torch.allclose(ours.get_buffer(), theirs.get_buffer(), atol=2e-6)
    assert ours.aggregate().item() == pytest.approx(theirs.aggregate().item(), abs=2e-6)
    assert torch.allclose(
        ours.aggregate("mean_batch"), theirs.aggregate().new_tensor(theirs.get_buffer().mean(0).tolist())
    )


def test_pooled_is_the_monitor_of_all_cases_and_the_mean_is_that_of_each():
    logits, labels = batch()
    metric = CalibrationMetric("ece", "predicted", kind="logits")
    metric(logits[:1], labels[:1])
    metric(logits[1:], labels[1:])
    together = CalibrationMonitor(3, ("ece",), ("predicted",))
    together.update(logits, labels)
    each = []
    for one, target in zip(logits, labels, strict=True):
        monitor = CalibrationMonitor(3, ("ece",), ("predicted",))
        monitor.update(one[None], target[None])
        each.append(monitor.compute()["predicted/ece"])
    assert metric.aggregate().item() == pytest.approx(together.compute()["predicted/ece"], abs=1e-7)
    assert metric.get_buffer()[:, 0].tolist() == pytest.approx(each, abs=1e-7)
    assert metric.aggregate("mean").item() == pytest.approx(np.mean(each), abs=1e-6)
    metric.reset()
    with pytest.raises(BadInput, match="has seen no case"):
        metric.aggregate()


def test_decollated_lists_of_metatensors_of_any_size_and_labels_in_any_form_are_one_thing():
    logits, labels = batch()
    p = logits.softmax(1)
    forms = {
        "labels": (p, labels),
        "float labels": (p, labels.float()),
        "small integers": (p, labels.to(torch.uint8)),
        "one-hot": (p, hot(labels)),
        "one-hot integers": (p, hot(labels).to(torch.uint8)),
        "lists": (decollate_batch(MetaTensor(p)), decollate_batch(MetaTensor(hot(labels)))),
    }
    values = {}
    for name, (y_pred, y) in forms.items():
        metric = CalibrationMetric()
        metric(y_pred, y)
        values[name] = metric.aggregate().item()
    assert len(set(values.values())) == 1, values
    sizes = CalibrationMetric()
    sizes([p[0], p[1, :, :2]], [labels[0], labels[1, :, :2]])
    assert len(sizes.get_buffer()) == 2


def test_ignored_voxels_and_channels_of_their_own_are_counted_as_the_monitor_counts_them():
    logits, labels = batch()
    marked = labels.clone()
    marked[:, :, 0] = 255
    metric, cut = CalibrationMetric(kind="logits", ignore_label=255), CalibrationMetric(kind="logits")
    metric(logits, marked.float())
    cut(logits[:, :, 1:], labels[:, :, 1:])
    assert metric.aggregate() == cut.aggregate()
    without = hot(labels)
    without[:, :, 0] = 0  # all 0: ignored
    hot_metric = CalibrationMetric(kind="logits")
    hot_metric(logits, without)
    assert hot_metric.aggregate() == cut.aggregate()
    channels, monitor = (
        CalibrationMetric("brier", kind="logits", activation="sigmoid"),
        CalibrationMonitor(3, ("brier",), ("all",), activation="sigmoid"),
    )
    channels(logits, hot(labels))
    monitor.update(logits, hot(labels))
    assert channels.aggregate().item() == pytest.approx(monitor.compute()["all/brier"], abs=1e-7)
    ignoring, cut = (
        CalibrationMetric("brier", kind="logits", activation="sigmoid", **o) for o in ({"ignore_label": 255}, {})
    )
    ignoring(logits, hot(labels).masked_fill(marked == 255, 255))
    cut(logits[:, :, 1:], hot(labels)[:, :, 1:])
    assert ignoring.aggregate() == cut.aggregate()


def test_wrong_labels_kinds_and_options_are_refused_in_a_sentence():
    logits, labels = batch()
    with pytest.raises(BadInput, match="no whole numbers"):
        CalibrationMetric(kind="logits")(logits, labels + 0.5)
    with pytest.raises(BadInput, match="if they are logits"):
        CalibrationMetric()(logits, labels)
    with pytest.raises(BadInput, match="needs overlap statistics"):
        CalibrationMetric("dsc")
    with pytest.raises(BadInput, match=r"compares y_pred \[b c \*space\] with y"):
        CalibrationMetric()(logits)


@pytest.mark.parametrize("name", ["Temperature", "RegionTemperature", "LocalTemperature"])
def test_the_post_transform_gives_what_the_calibrator_gives_on_calibsegs_axes(name, tmp_path):
    logits, labels = batch(seed=3)
    volumes = [case.permute(0, 3, 2, 1).contiguous() for case in 3 * logits]  # [k x y z], as MONAI reads them
    spacing = (1.0, 1.5, 2.0)  # of x, y, z
    options = {"epochs": 2} if name == "LocalTemperature" else {}
    images = {"images": [case[:1].numpy() for case in logits]} if name == "LocalTemperature" else {}
    extra = {"spacing_mm": spacing[::-1]} if name == "RegionTemperature" else {}
    calibrator = getattr(calibrators, name)(**options)
    calibrator.fit(list(3 * logits), list(labels[:, 0]), kind="logits", **images, **extra)
    calibrator.save(tmp_path)
    image_key = "image" if name == "LocalTemperature" else None
    transform = Calibrated("pred", tmp_path, kind="logits", image_key=image_key)
    expected = calibrator.transform(
        (3 * logits)[0], **({"image": logits[0, :1]} if image_key else {}), batch=False, **extra
    )
    given = MetaTensor(volumes[0], affine=torch.diag(torch.tensor([*spacing, 1.0])))
    data = {"pred": given, "image": logits[0, :1].permute(0, 3, 2, 1), "other": 1}
    done = transform(data)
    assert isinstance(done["pred"], MetaTensor)
    assert torch.equal(done["pred"].affine, given.affine)
    assert torch.equal(done["pred"].as_tensor(), expected.permute(0, 3, 2, 1))
    assert done["other"] == 1
    assert torch.equal(data["pred"], given)
    if name == "RegionTemperature":
        with pytest.raises(BadInput, match="give a MetaTensor"):
            transform({"pred": volumes[0]})
    if name == "LocalTemperature":
        with pytest.raises(BadInput, match="say image_key"):
            Calibrated("pred", tmp_path, kind="logits")
        for wrong in (-1, 3):
            with pytest.raises(BadInput, match=f"slice_axis must be one of None, 0, 1, 2, not {wrong}"):
                Calibrated("pred", tmp_path, kind="logits", image_key=image_key, slice_axis=wrong)
        calibrator.fitted_on["slice_axis"] = 1  # as on the coronal slices of a run
        coronal = Calibrated("pred", calibrator, kind="logits", image_key=image_key)(data)["pred"].as_tensor()
        expected = calibrator.transform((3 * logits)[0], logits[0, :1], batch=False)
        assert torch.equal(coronal, expected.permute(0, 3, 2, 1))
        assert not torch.equal(coronal, done["pred"].as_tensor())


@pytest.mark.parametrize("reduction", ["pooled", "mean", "sum", "mean_batch", "mean_channel"])
def test_what_is_undefined_is_nan_and_not_a_perfect_zero(reduction):
    metric = CalibrationMetric("ece", voxels="truth", reduction=reduction)
    metric(y_pred=torch.full((2, 3, 4, 4), 1 / 3), y=torch.zeros(2, 1, 4, 4, dtype=torch.long))  # no organ anywhere
    assert metric.aggregate().isnan().all()
