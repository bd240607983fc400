"""Every calibrator as a torch module gives what `transform` gives, in 2-D and 3-D, of any kind of scores."""

import numpy as np
import pytest
import torch

from calibseg.calibrators import Calibrator, LocalTemperature, RegionTemperature, Temperature
from calibseg.core.types import BadInput
from support.calibration_cases import MEMBERS, SPACING, example, made

SIGMOID = [key for key in sorted(MEMBERS) if "sigmoid" in MEMBERS[key].facts.get("activations", ())]
STEPS = ("histogram", "isotonic")  # a probability that rounding moves over an edge gets another step


@pytest.fixture(scope="module")
def fitted():
    kept = {}

    def get(key) -> Calibrator:
        if key not in kept:
            cases = example(dtype=np.float32)
            arrays = [[getattr(case, name) for case in cases] for name in ("scores", "labels", "image")]
            kept[key] = made(key).fit(arrays[0], arrays[1], kind="logits", images=arrays[2], spacing_mm=SPACING)
        return kept[key]

    return get


def close(key: str, found: torch.Tensor, expected: np.ndarray) -> None:
    apart = np.abs(found.numpy() - expected)
    if key in STEPS:
        assert (apart.max(1) > 1e-5).mean() < 1e-3
    else:
        assert apart.max() < 1e-5
    assert found.dtype == torch.float32


@pytest.mark.parametrize("key", sorted(MEMBERS))
@pytest.mark.parametrize("kind", ["logits", "log_probabilities", "probabilities"])
def test_the_module_gives_what_transform_gives(key, kind, fitted):
    calibrator = fitted(key)
    new = example(2, seed=7, dtype=np.float32)
    logits, image = (np.stack([getattr(case, name) for case in new]) for name in ("scores", "image"))
    scores = torch.from_numpy(logits)
    scores = {"logits": scores, "log_probabilities": scores.log_softmax(1), "probabilities": scores.softmax(1)}[kind]
    expected = calibrator.transform(scores.numpy(), image, spacing_mm=SPACING, kind=kind, batch=True)
    module = calibrator.as_module(kind=kind, spacing_mm=SPACING if calibrator.uses_spacing else None)
    looks = (torch.from_numpy(image),) if calibrator.uses_image else ()
    with torch.no_grad():
        close(key, module(scores, *looks), expected)
    assert not list(module.parameters()) or not any(part.requires_grad for part in module.parameters())


@pytest.mark.parametrize("key", sorted(MEMBERS))
def test_a_batch_of_pictures_is_a_case_each(key):
    cases = example(4, dtype=np.float32)
    scores, labels = (np.stack([getattr(case, name) for case in cases]) for name in ("scores", "labels"))
    scores, labels = scores[:, :, 1], labels[:, 1]  # [n k y x]
    images = np.stack([case.image[:, 1] for case in cases])
    calibrator = made(key).fit(scores, labels, kind="logits", images=images, batch=True)
    looks = (torch.from_numpy(images),) if calibrator.uses_image else ()
    with torch.no_grad():
        found = calibrator.as_module()(torch.from_numpy(scores), *looks)
    close(key, found, calibrator.transform(scores, images, batch=True))


@pytest.mark.parametrize("key", SIGMOID)
@pytest.mark.parametrize("kind", ["logits", "log_probabilities", "probabilities"])
def test_sigmoid_channels_are_calibrated_each(key, kind):
    cases = example(dtype=np.float32)
    scores, labels, images = (
        np.stack([getattr(case, name) for case in cases]) for name in ("scores", "labels", "image")
    )
    targets = np.stack([labels == 1, labels == 2], 1)
    calibrator = made(key).fit(
        scores[:, 1:], targets, kind="logits", images=images, activation="sigmoid", spacing_mm=SPACING
    )
    logits = torch.from_numpy(scores[:, 1:])
    given = {"logits": logits, "log_probabilities": logits.sigmoid().log(), "probabilities": logits.sigmoid()}[kind]
    looks = (torch.from_numpy(images),) if calibrator.uses_image else ()
    with torch.no_grad():
        found = calibrator.as_module(kind=kind, spacing_mm=SPACING if calibrator.uses_spacing else None)(given, *looks)
    close(key, found, calibrator.transform(given.numpy(), images, kind=kind, spacing_mm=SPACING))


def test_local_temperature_in_3d_and_at_narrow_slices_has_the_same_borders():
    cases = example(dtype=np.float32)
    for dimensions, cut in ((3, slice(None)), (2, slice(3))):
        scores, images = (np.stack([getattr(case, name)[..., cut] for case in cases]) for name in ("scores", "image"))
        labels = np.stack([case.labels[..., cut] for case in cases])
        calibrator = LocalTemperature(dimensions=dimensions, epochs=2).fit(scores, labels, kind="logits", images=images)
        with torch.no_grad():
            found = calibrator.as_module()(torch.from_numpy(scores), torch.from_numpy(images))
        close("local_temperature", found, calibrator.transform(scores, images, batch=True))


def test_what_a_module_would_get_wrong_is_refused(fitted):
    with pytest.raises(BadInput, match="temperature is not fitted yet"):
        Temperature().as_module()
    with pytest.raises(BadInput, match="it was fitted with spacing_mm, this is without it"):
        fitted("region_temperature").as_module()
    with pytest.raises(BadInput, match="kind must be one of"):
        fitted("temperature").as_module(kind="odds")
    with pytest.raises(BadInput, match="was fitted with 1 image channels, not 0"):
        fitted("local_temperature").as_module()(torch.zeros(1, 3, 4, 12, 11))

    class Mine(Temperature):
        _module = Calibrator._module

    with pytest.raises(BadInput, match="has no torch module"):
        Mine().fit(np.zeros((2, 1, 4)), np.array([[0, 1, 1, 0]]), kind="logits").as_module()


def test_bands_of_wide_reach_and_flat_voxels_are_those_of_the_distance_transform():
    cases = example(1, seed=3, dtype=np.float32)
    for spacing, band in (((1.0, 1.0, 1.0), 3.0), ((3.0, 0.7, 0.9), 2.0), ((0.5, 2.0, 1.0), 0.2)):
        calibrator = RegionTemperature(band_mm=band).fit(
            cases[0].scores, cases[0].labels, kind="logits", spacing_mm=spacing
        )
        calibrator.temperatures = np.arange(1.0, 7.0).reshape(3, 2)
        found = calibrator.as_module(spacing_mm=spacing)(torch.from_numpy(cases[0].scores)[None])
        close("region_temperature", found, calibrator.transform(cases[0].scores, spacing_mm=spacing)[None])
