"""Local temperature scaling finds temperatures that depend on place, and says what it learnt from."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibseg.calibrators import LocalTemperature, Temperature
from calibseg.calibrators.fitted.apply import Calibrated
from calibseg.calibrators.fitted.files import load_calibrator, save_calibrator
from calibseg.calibrators.solvers import patches as pieces_module
from calibseg.calibrators.solvers.patches import Pieces, Volume
from calibseg.calibrators.solvers.temperature_training import held_out_patients
from calibseg.calibrators.solvers.temperature_tree import LOWEST
from calibseg.core.types import BadInput, Prediction
from calibseg.io.conventions import FileConventions
from calibseg.io.predictions import PredictionFiles, match_files
from support.calibrated_folders import save
from support.local_temperature import MM, nll, overconfident_left, plain_softmax, voxel_temperatures


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr("calibseg.calibrators.solvers.temperature_training.STEPS", 5)


@pytest.fixture(scope="module")
def fitted() -> LocalTemperature:
    return LocalTemperature(epochs=12).fit_predictions([overconfident_left(seed) for seed in range(5)])


def test_where_the_left_half_is_overconfident_its_temperature_is_found(fitted):
    """The right temperatures are 3 on the left and 1 on the right; within 15 %, and their ratio within 20 %."""
    fresh = overconfident_left(99)
    t = voxel_temperatures(fitted, fresh.scores, fresh.image)
    left, right = np.median(t[..., :10]), np.median(t[..., 14:])
    assert left == pytest.approx(3, rel=0.15)
    assert right == pytest.approx(1, rel=0.15)
    assert left / right == pytest.approx(3, rel=0.2)


def test_it_beats_one_temperature_where_the_right_one_depends_on_place(fitted):
    fresh = overconfident_left(99)
    one = Temperature().fit_predictions([overconfident_left(seed) for seed in range(5)])
    assert fresh.labels is not None
    honest = fresh.scores / np.where(np.arange(24) < 12, 3.0, 1.0)
    best = nll(plain_softmax(honest), fresh.labels)
    local = nll(fitted.transform(fresh.scores, fresh.image), fresh.labels)
    plain = nll(one.transform(fresh.scores), fresh.labels)
    assert local < plain
    assert local - best < 0.2 * (plain - best)  # four fifths of what there is to gain


def test_what_was_learnt_is_told(fitted):
    facts, arrays = fitted.state()
    assert facts["image_channels"] == 1
    assert fitted.parameters() == 8 * 76 + 26
    assert facts["nll_after"] < facts["nll_before"]
    assert 1 <= facts["best_epoch"] <= facts["epochs_run"] <= fitted.epochs
    assert LOWEST < facts["temperature_min"] < facts["temperature_mean"] < facts["temperature_max"]
    assert len(facts["held_out_patients"]) == 1
    assert facts["fallbacks"] == []
    assert arrays["leaf_weight"].shape == (4, 3, 5, 5)
    assert fitted.fitted_on["voxels_counted"] == 5 * 6 * 24 * 24


def test_labels_stay_as_they_are(fitted):
    fresh = overconfident_left(7)
    p = fitted.transform(fresh.scores, fresh.image)
    assert fitted.keeps_argmax
    assert p.dtype == np.float32
    np.testing.assert_array_equal(p.argmax(0), fresh.scores.argmax(0))
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-5)


def test_a_number_added_to_all_scores_of_a_voxel_changes_nothing(fitted):
    fresh = overconfident_left(7)
    shift = np.random.default_rng(0).normal(size=fresh.scores.shape[1:]).astype(np.float32) * 5
    np.testing.assert_allclose(
        fitted.transform(fresh.scores + shift, fresh.image), fitted.transform(fresh.scores, fresh.image), atol=1e-5
    )


def test_far_tails_do_not_move_the_temperature(fitted):
    scores = np.zeros((3, 2, 9, 9), np.float32)
    scores[1:] = -30
    lower = np.where(scores < 0, np.float32(-80), scores)
    image = np.zeros((1, 2, 9, 9), np.float32)
    np.testing.assert_allclose(
        voxel_temperatures(fitted, scores, image), voxel_temperatures(fitted, lower, image), rtol=1e-6
    )


def test_saved_and_loaded_it_says_the_same(fitted, tmp_path):
    save_calibrator(tmp_path, fitted, {"seconds": 1.0})
    loaded = load_calibrator(tmp_path)
    fresh = overconfident_left(8)
    np.testing.assert_array_equal(
        loaded.transform(fresh.scores, fresh.image), fitted.transform(fresh.scores, fresh.image)
    )
    assert loaded.state()[0] == fitted.state()[0]


def test_the_seed_decides_everything(few_steps):
    cases = [overconfident_left(seed, (3, 12, 12)) for seed in range(3)]
    torch.manual_seed(1)
    first = LocalTemperature(epochs=2, seed=5).fit_predictions(cases).state()[1]
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = LocalTemperature(epochs=2, seed=5).fit_predictions(cases).state()[1]
    assert torch.equal(state, torch.get_rng_state())  # nobody else's numbers are drawn
    other = LocalTemperature(epochs=2, seed=6).fit_predictions(cases).state()[1]
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["gate_weight"], other["gate_weight"])


def test_what_only_fits_the_cases_learnt_from_is_not_kept(few_steps):
    """One small case whose over-confidence the held-out patient does not share: T = 1 stays, and it is said."""
    wrong = overconfident_left(0, (1, 8, 8), kind="all")
    right = overconfident_left(1, (4, 16, 16), factor=1.0, kind="all")
    patients = [wrong.patient, right.patient]
    seed = next(seed for seed in range(20) if held_out_patients(patients, 0.5, seed) == {right.patient})
    calibrator = LocalTemperature(held_out=0.5, seed=seed).fit_predictions([wrong, right])
    facts = calibrator.state()[0]
    assert facts["held_out_patients"] == [right.patient]
    assert facts["best_epoch"] == 0
    assert facts["epochs_run"] < calibrator.epochs  # it stopped early
    assert facts["nll_after"] == facts["nll_before"]
    assert "T = 1" in facts["fallbacks"][0]
    np.testing.assert_allclose(voxel_temperatures(calibrator, right.scores, right.image), 1, atol=1e-6)


def test_one_patient_only_is_said(few_steps):
    calibrator = LocalTemperature(epochs=1).fit_predictions([overconfident_left(0, (2, 9, 9))])
    assert calibrator.state()[0]["held_out_patients"] == []
    assert "one patient" in calibrator.state()[0]["fallbacks"][0]


def test_patients_are_held_out_whole():
    patients = ["a", "a", "b", "c", "c", "d", "e"]
    assert len(held_out_patients(patients, 0.2, 0)) == 1
    assert len(held_out_patients(patients, 0.5, 0)) == 2
    assert len(held_out_patients(patients, 0.99, 0)) == 4  # one is left to learn from
    assert held_out_patients(["a", "a"], 0.5, 0) == set()


def test_in_3d_a_temperature_that_depends_on_place_is_found_too():
    cases = [overconfident_left(seed, (10, 14, 16)) for seed in range(4)]
    calibrator = LocalTemperature(dimensions=3, epochs=5).fit_predictions(cases)
    fresh = overconfident_left(50, (10, 14, 16))
    t = voxel_temperatures(calibrator, fresh.scores, fresh.image)
    assert np.median(t[..., :6]) / np.median(t[..., 10:]) == pytest.approx(3, rel=0.3)


def two_channels(seed: int, shape=(4, 20, 20)) -> Prediction:
    """Two channels, the first over-confident by a factor of 3 on the left, which the image shows."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(2, *shape)) * 2
    labels = (rng.random(honest.shape) < 1 / (1 + np.exp(-honest))).astype(np.uint8)
    left = np.broadcast_to(np.arange(shape[2]) < shape[2] // 2, shape)
    scores = (honest * np.stack([np.where(left, 3.0, 1.0), np.ones(shape)])).astype(np.float32)
    image = (left[None] + 0.05 * rng.normal(size=(1, *shape))).astype(np.float32)
    return Prediction(f"case{seed}", f"case{seed}", scores, "logits", MM, "sigmoid", labels, image=image)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_sigmoid_channel_has_the_tree_of_its_two_class_problem(few_steps, tmp_path, dimensions):
    cases = [two_channels(seed, (5, 9, 8)) for seed in range(3)]
    options = {"dimensions": dimensions, "epochs": 2}
    together = LocalTemperature(**options).fit_predictions(cases)
    facts, arrays = together.state()
    fresh = two_channels(9, (5, 9, 8))
    p, t = together.transform_prediction(fresh), together.temperatures(fresh)
    for channel in range(2):
        pairs = []
        for case in (*cases, fresh):
            z = case.scores[channel]
            labels = None if case.labels is None else case.labels[channel]
            pair = np.stack([np.zeros_like(z), z])
            pairs.append(Prediction(case.case_id, case.patient, pair, "logits", MM, labels=labels, image=case.image))
        alone = LocalTemperature(**options).fit_predictions(pairs[:-1])
        told, own = alone.state()
        for name, array in own.items():
            np.testing.assert_array_equal(arrays[f"{channel}.{name}"], array, err_msg=name)
        assert facts["nll_after"][channel] == told["nll_after"]
        np.testing.assert_array_equal(t[channel], alone.temperatures(pairs[-1]))
        np.testing.assert_allclose(p[channel], alone.transform_prediction(pairs[-1])[1], atol=1e-6)
    learnt = [array.size for name, array in arrays.items() if "_w" in name or "_b" in name]
    assert together.parameters() == sum(learnt)
    save_calibrator(tmp_path, together, {"seconds": 1.0})
    np.testing.assert_array_equal(load_calibrator(tmp_path).transform_prediction(fresh), p)


def test_channels_find_temperatures_of_their_own():
    """The first channel's are 3 and 1, the second's 1 everywhere."""
    calibrator = LocalTemperature(epochs=8).fit_predictions([two_channels(seed) for seed in range(5)])
    t = calibrator.temperatures(two_channels(50))
    left, right = (np.median(t[..., part], axis=(1, 2, 3)) for part in (slice(8), slice(12, 20)))
    assert left[0] / right[0] == pytest.approx(3, rel=0.2)
    np.testing.assert_allclose([right[0], left[1], right[1]], 1, rtol=0.2)


def test_remarks_name_their_channel(few_steps):
    calibrator = LocalTemperature(epochs=1).fit_predictions([two_channels(0, (2, 8, 8))])
    assert calibrator.facts["fallbacks"][0] == "channel 0: one patient only: its own NLL said when to stop"
    assert calibrator.facts["fallbacks"][-1].startswith("channel 1: ")


def test_soft_labels_and_raters_are_learnt_from():
    """Shares of 3/4 everywhere where scores say 88 %: T makes them 75 %."""
    scores = np.stack([np.zeros((4, 8, 8)), np.full((4, 8, 8), 2.0)]).astype(np.float32)
    soft = np.stack([np.full((4, 8, 8), 0.25), np.full((4, 8, 8), 0.75)])
    raters = np.ones((4, 4, 8, 8), np.uint8)
    raters[0] = 0
    for labels in (soft, raters):
        cases = [Prediction(name, name, scores, "logits", MM, labels=labels) for name in "ab"]
        p = LocalTemperature(epochs=5).fit_predictions(cases).transform(scores)
        np.testing.assert_allclose(p[1], 0.75, atol=0.01)


def test_voxels_that_do_not_count_teach_nothing(few_steps):
    """Ignored voxels hold any labels that are wrong all the time: what is learnt is the same without them."""
    case, other = (overconfident_left(seed, (4, 10, 10)) for seed in (0, 1))
    assert case.labels is not None
    ignored = case.labels.copy()
    ignored[:2] = 255
    cases = [Prediction("a", "a", case.scores, "logits", MM, labels=ignored, image=case.image), other]
    rubbish = case.scores.copy()
    rubbish[:, :2] = 0
    swapped = [Prediction("a", "a", rubbish, "logits", MM, labels=ignored, image=case.image), other]
    first, second = (LocalTemperature(epochs=2).fit_predictions(given).state() for given in (cases, swapped))
    np.testing.assert_array_equal(first[1]["leaf_weight"], second[1]["leaf_weight"])  # 2-D: whole slices are left out
    assert first[0]["nll_before"] == second[0]["nll_before"]


def test_foreground_only_and_a_sample_are_learnt_from(few_steps):
    cases = [overconfident_left(seed, (3, 12, 12)) for seed in range(3)]
    for options in ({"fit_on": "foreground"}, {"sample": 50}):
        calibrator = LocalTemperature(epochs=2, **options).fit_predictions(cases)
        assert calibrator.fitted_on["voxels_counted"] < 3 * 3 * 12 * 12
        assert calibrator.state()[0]["nll_after"] <= calibrator.state()[0]["nll_before"]


def test_of_a_large_case_evenly_spaced_slices_are_kept(monkeypatch):
    monkeypatch.setattr(pieces_module, "CASE_VOXELS", 10 * 64)
    monkeypatch.setattr(pieces_module, "STEP_VOXELS", 64)
    ones = np.ones((40, 8, 8), np.float32)
    depth = np.broadcast_to(np.arange(40, dtype=np.float32)[:, None, None], ones.shape)
    with Pieces(2) as pieces:
        pieces.add(Volume(np.stack([depth, depth]), None, ones, ones), "a")
        found = sorted({int(value) for n in range(len(pieces.entries)) for value in pieces.piece(n).scores[:, 0, 0, 0]})
    assert 8 <= len(found) <= 12
    assert np.diff(found).max() <= 8


def test_memory_does_not_grow_with_the_number_of_cases(monkeypatch):
    monkeypatch.setattr("calibseg.calibrators.solvers.temperature_training.STEPS", 1)

    class Many:
        """Cases that are made when they are asked for."""

        def __init__(self, number: int):
            self.number = number

        def __iter__(self):
            return (overconfident_left(seed, (6, 24, 24)) for seed in range(self.number))

    peaks = []
    LocalTemperature(epochs=1).fit_predictions(Many(2))
    for number in (3, 18):
        tracemalloc.start()
        LocalTemperature(epochs=1).fit_predictions(Many(number))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (None, "was fitted with an image of 1 channel, case 'case 0' comes with no image"),
        (np.zeros((2, 6, 24, 24)), "comes with an image of 2 channels"),
        (np.zeros((1, 6, 24, 23)), "must be .c z y x. on the grid"),
        (np.full((1, 6, 24, 24), np.nan), "is NaN or infinite at 3456 voxels"),
    ],
)
def test_a_wrong_image_is_refused_in_a_sentence(fitted, image, sentence):
    with pytest.raises(BadInput, match=sentence):
        fitted.transform(overconfident_left(0).scores, image)


def test_an_image_that_was_not_there_before_is_refused(few_steps):
    fresh = overconfident_left(0, (2, 9, 9))
    calibrator = LocalTemperature(epochs=1).fit_predictions([overconfident_left(1, (2, 9, 9), image=False)])
    assert calibrator.state()[0]["image_channels"] == 0
    calibrator.transform(fresh.scores)
    with pytest.raises(BadInput, match="was fitted with no image"):
        calibrator.transform(fresh.scores, fresh.image)


def test_cases_with_and_without_an_image_are_not_mixed():
    cases = [overconfident_left(0, (2, 9, 9)), overconfident_left(1, (2, 9, 9), image=False)]
    with pytest.raises(BadInput, match="case 'case1' has no image, those before it had an image of 1 channel"):
        LocalTemperature().fit_predictions(cases)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dimensions": 4}, "dimensions must be 2 or 3"),
        ({"learning_rate": 0}, "learning_rate must be greater than 0"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"held_out": 1.0}, "held_out must be less than 1"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(BadInput, match=sentence):
        LocalTemperature(**options)


def fitted_on_slices(*axes: int) -> tuple[LocalTemperature, list[Prediction]]:
    """Fitted on slices along these axes, and the cases."""
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=(3, 2, 8, 9, 10)).astype(np.float32)
    labels = rng.integers(0, 2, (3, 8, 9, 10))
    cases = [
        Prediction(f"c{n}", f"p{n}", scores[n], "logits", (1.0, 1.0, 1.0), labels=labels[n], slice_axis=axis)
        for n, axis in enumerate(axes)
    ]
    fitted = LocalTemperature(epochs=1).fit_predictions(cases)
    with torch.no_grad():
        for number, weight in enumerate(fitted.trees[0].parameters()):
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return fitted, cases


def as_files(case: Prediction, folder: Path) -> PredictionFiles:
    for name, array in (("scores", case.scores.T), ("labels", case.labels.T.astype(np.uint8))):
        save(array, folder / name / f"{case.case_id}.nii.gz", np.eye(4))
    (pair,), _ = match_files(folder / "scores", folder / "labels", FileConventions("logits"))
    return pair


def test_slices_are_cut_along_the_axis_that_it_was_fitted_on_also_in_memory_in_files_and_after_loading(tmp_path):
    """Fitted on the coronal slices of a run, it must not look at axial ones."""
    fitted, cases = fitted_on_slices(1, 1, 1)
    fitted.save(tmp_path / "fitted")
    expected = fitted.transform_prediction(cases[0])
    assert not np.allclose(expected, fitted.transform_prediction(replace(cases[0], slice_axis=0)), atol=1e-3)
    for one in (fitted, load_calibrator(tmp_path / "fitted")):
        assert np.array_equal(one.transform(cases[0].scores), expected)
    of_files = Calibrated.of(as_files(cases[0], tmp_path), tmp_path / "fitted").open()
    np.testing.assert_allclose(of_files.scores, expected, atol=1e-6)


def test_slices_along_several_axes_are_refused_where_a_case_does_not_say_its_own(tmp_path):
    fitted, cases = fitted_on_slices(1, 0, 1)
    fitted.save(tmp_path / "fitted")
    assert fitted.transform_prediction(cases[1]).shape == cases[1].scores.shape
    with pytest.raises(BadInput, match="fitted on slices along several axes, and this case does not say"):
        load_calibrator(tmp_path / "fitted").transform(cases[0].scores)
    with pytest.raises(BadInput, match="fitted on slices along several axes, and this case does not say"):
        Calibrated.of(as_files(cases[0], tmp_path), tmp_path / "fitted").open()
