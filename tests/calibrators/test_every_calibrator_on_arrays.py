"""Every calibrator on arrays and tensors: one case, a batch, a list, 2-D or 3-D, to the bit what the streams give."""

import numpy as np
import pytest
import torch

import calibseg.calibrators
from calibseg.calibrators import RegionTemperature, Temperature
from calibseg.calibrators.fitted.apply import calibrated
from calibseg.core.types import BadInput, Prediction
from support.calibration_cases import MEMBERS, SPACING, K, equal, example, made, shown

SIGMOID = [key for key in sorted(MEMBERS) if "sigmoid" in MEMBERS[key].facts.get("activations", ())]


@pytest.fixture(params=sorted(MEMBERS))
def key(request):
    return request.param


@pytest.fixture(scope="module")
def arrays():
    """Scores, labels and images of three cases, each stacked."""
    cases = example()
    return tuple(np.stack([getattr(case, name) for case in cases]) for name in ("scores", "labels", "image"))


@pytest.fixture(scope="module")
def on_arrays(arrays):
    """The calibrator fitted on a batch, once for all tests."""
    kept = {}

    def get(key):
        if key not in kept:
            scores, labels, images = arrays
            kept[key] = made(key).fit(
                scores,
                labels,
                kind="logits",
                images=images,
                spacing_mm=SPACING,
                patients=[f"patient {n}" for n in range(3)],
            )
        return kept[key]

    return get


def test_a_batch_is_to_the_bit_what_the_stream_gives(key, arrays, on_arrays):
    stream, case = made(key).fit_predictions(example()), example(1, seed=7)[0]
    assert equal(stream, on_arrays(key), case)
    assert on_arrays(key).state()[0] == stream.state()[0]
    p = on_arrays(key).transform(case.scores, case.image, spacing_mm=SPACING)
    assert type(p) is np.ndarray
    assert p.dtype == np.float32
    assert (p == shown(stream, case)).all()


def test_a_list_and_tensors_are_to_the_bit_a_batch(key, arrays, on_arrays):
    scores, labels, images = arrays
    whole = on_arrays(key).transform(scores, images, spacing_mm=SPACING)
    given = {"kind": "logits", "spacing_mm": SPACING}
    listed = made(key).fit(list(scores), list(labels), images=list(images), **given)
    back = listed.transform(list(scores), list(images), spacing_mm=[SPACING] * 3)
    assert type(back) is list
    assert (np.stack(back) == whole).all()
    tensors = [torch.tensor(one) for one in (scores, labels, images)]
    tensors[0].requires_grad_()
    same = made(key).fit(tensors[0], tensors[1], images=tensors[2], **given)
    p = same.transform(tensors[0], tensors[2], spacing_mm=SPACING)
    assert type(p) is torch.Tensor
    assert (p.dtype, p.requires_grad, p.device) == (torch.float32, False, tensors[0].device)
    assert (p.numpy() == whole).all()
    one = same.transform(list(tensors[0]), list(tensors[2]), spacing_mm=SPACING)[1]
    assert type(one) is torch.Tensor
    assert (one.numpy() == whole[1]).all()


def test_2d_images_are_volumes_of_one_plane(key, arrays):
    scores, labels, images = (array[0].swapaxes(0, -3) for array in (arrays[0], arrays[1][:, None], arrays[2]))
    flat = made(key).fit(scores, labels[:, 0], kind="logits", images=images)
    assert len(flat.fitted_on["cases"]) == 4
    p = flat.transform(scores, images)
    assert p.shape == scores.shape
    planes = made(key).fit(scores[:, :, None], labels, kind="logits", images=images[:, :, None])
    assert (planes.transform(scores[:, :, None], images[:, :, None])[:, :, 0] == p).all()
    one = flat.transform(scores[0], images[0])
    assert one.shape == scores[0].shape
    assert (one == p[0]).all()


def test_saved_and_loaded_it_transforms_the_same(key, arrays, on_arrays, tmp_path):
    scores, _, images = arrays
    on_arrays(key).save(tmp_path / "calibrator")
    loaded = calibseg.calibrators.load(tmp_path / "calibrator")
    given = (scores, images)
    expected = on_arrays(key).transform(*given, spacing_mm=SPACING)
    assert (loaded.transform(*given, spacing_mm=SPACING) == expected).all()


def test_one_case_is_one_patient_unless_said(key, arrays):
    scores, labels, _ = arrays
    assert made(key).fit(scores, labels, kind="logits").fitted_on["patients"] == ["case 0", "case 1", "case 2"]
    two = made(key).fit(scores, labels, kind="logits", patients=["a", "b", "a"])
    assert two.fitted_on["patients"] == ["a", "b"]


def test_the_kind_of_the_fit_is_that_of_transform_also_after_loading(key, arrays, tmp_path):
    scores, labels, _ = arrays
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    calibrator = made(key).fit(p, labels, kind="probabilities")
    calibrator.save(tmp_path)
    for one in (calibrator, calibseg.calibrators.load(tmp_path)):
        assert (one.transform(p) == one.transform(p, kind="probabilities")).all()
        np.testing.assert_allclose(one.transform(scores, kind="logits"), one.transform(p), atol=1e-5)
        with pytest.raises(BadInput, match="probabilities lie between 0 and 1"):
            one.transform(scores)


def test_values_that_prove_another_kind_are_refused(key, arrays, on_arrays):
    scores, labels, images = arrays
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    with pytest.raises(BadInput, match="called logits, but all of them lie between 0 and 1 and sum to 1"):
        made(key).fit(p, labels, kind="logits")
    with pytest.raises(BadInput, match="called logits"):
        on_arrays(key).transform(p, images, spacing_mm=SPACING)
    with pytest.raises(BadInput, match="probabilities lie between 0 and 1"):
        made(key).fit(scores, labels, kind="probabilities")


def test_an_ignored_label_is_ignored_in_torch_too(key, arrays):
    scores, labels, _ = arrays
    wide = labels.astype(np.int64)
    wide[:, 0] = -100
    calibrator = made(key).fit(torch.tensor(scores), torch.tensor(wide), kind="logits", ignore_label=-100)
    assert calibrator.fitted_on["voxels_counted"] == labels[:, 1:].size


@pytest.mark.parametrize("key", SIGMOID)
def test_sigmoid_channels_have_labels_of_their_own(key, arrays):
    scores, labels, _ = arrays
    targets = np.stack([labels == 1, labels == 2], 1)
    calibrator = made(key).fit(scores[:, 1:], targets, kind="logits", activation="sigmoid")
    p = calibrator.transform(torch.tensor(scores[:, 1:]))
    assert p.shape == (3, 2, *labels.shape[1:])
    assert 0 <= float(p.min()) <= float(p.max()) <= 1


def test_a_volume_that_may_be_a_batch_is_asked_about():
    scores, labels = np.random.default_rng(0).normal(size=(3, 3, 8, 9)), np.zeros((3, 8, 9), int)
    with pytest.raises(BadInput, match="say batch=False or batch=True"):
        Temperature().fit(scores, labels, kind="logits")
    assert len(Temperature().fit(scores, labels, kind="logits", batch=True).fitted_on["cases"]) == 3
    calibrator = Temperature().fit(scores, labels, kind="logits", batch=False)
    assert len(calibrator.fitted_on["cases"]) == 1
    with pytest.raises(BadInput, match="say batch=False or batch=True"):
        calibrator.transform(scores)
    assert calibrator.transform(scores, batch=True).shape == scores.shape


def test_distances_in_mm_and_in_voxels_are_not_mixed(arrays, tmp_path):
    scores, labels, _ = arrays
    voxels = RegionTemperature().fit(scores, labels, kind="logits")
    mm = RegionTemperature().fit(scores, labels, kind="logits", spacing_mm=SPACING)
    voxels.save(tmp_path)
    for calibrator in (voxels, calibseg.calibrators.load(tmp_path)):
        assert calibrator.transform(scores).shape == scores.shape
        with pytest.raises(BadInput, match="fitted without spacing_mm, this is with it"):
            calibrator.transform(scores, spacing_mm=SPACING)
    with pytest.raises(BadInput, match="fitted with spacing_mm, this is without it"):
        mm.transform(scores)


def test_a_metatensor_comes_back_as_a_plain_tensor(arrays):
    monai = pytest.importorskip("monai.data")
    scores, labels, _ = arrays
    given = monai.MetaTensor(torch.tensor(scores))
    calibrator = Temperature().fit(given, monai.MetaTensor(torch.tensor(labels)), kind="logits")
    p = calibrator.transform(given)
    assert type(p) is torch.Tensor
    assert (p.numpy() == Temperature().fit(scores, labels, kind="logits").transform(scores)).all()


def test_what_was_not_fitted_or_has_other_classes_is_refused(key, arrays, on_arrays, tmp_path):
    scores, _, images = arrays
    with pytest.raises(BadInput, match="not fitted yet"):
        made(key).transform(scores)
    with pytest.raises(BadInput, match="not fitted yet"):
        made(key).save(tmp_path)
    with pytest.raises(BadInput, match=f"fitted on {K} classes, the scores have 2"):
        on_arrays(key).transform(scores[0, :2], images[0], spacing_mm=SPACING)


def test_a_fit_that_fails_leaves_nothing_of_the_one_before(key, arrays):
    scores, labels, images = arrays
    calibrator = made(key).fit(scores, labels, kind="logits", images=images)
    with pytest.raises(BadInput, match=r"is none of the .* classes"):
        calibrator.fit(scores, labels + K, kind="logits", images=images)
    with pytest.raises(BadInput, match="not fitted yet"):
        calibrator.transform(scores, images, spacing_mm=SPACING)


def test_what_was_fitted_in_voxels_counts_voxels_in_files_too():
    """A prediction from a file knows its millimetres; the bands that were learnt are not in these."""
    rng = np.random.default_rng(0)
    scores = 2 * rng.normal(size=(4, 2, 6, 12, 12)).astype(np.float32)
    labels = (scores[:, 1] > 0).astype(int)
    fitted = RegionTemperature(band_mm=2).fit(list(scores), list(labels), kind="logits")
    from_file = Prediction("a", "a", scores[0], "logits", (3.0, 0.3, 0.3))
    assert np.array_equal(calibrated(from_file, fitted).scores, fitted.transform(scores[0]))
