"""A calibrator is applied chunk by chunk, and gives what the whole volume gives."""

import tracemalloc
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from calibseg.calibrators import Calibrator, Temperature
from calibseg.calibrators.fitted import apply as calibrated_module
from calibseg.calibrators.fitted.apply import calibrated, calibrated_slices, pieces
from calibseg.calibrators.fitted.nifti import write_probabilities as write_calibrated
from calibseg.core.types import BadInput, Case, Prediction
from calibseg.io.predictions import unlabelled
from support.calibrated_folders import save, softmax


class Blur(Calibrator):
    """Scores minus the mean over what it reaches, so that a piece that is too small shows."""

    keeps_argmax = True

    def __init__(self, reach, axis=0):
        super().__init__()
        self.reach, self.classes = reach, 3  # pyright: ignore[reportAttributeAccessIssue]
        self.seen = []

    def transform_prediction(self, prediction):
        scores, axis = prediction.scores, 1 + prediction.slice_axis
        axes = {"voxel": (), "slice": tuple(a for a in (1, 2, 3) if a != axis), "volume": (1, 2, 3)}[self.reach]
        self.seen.append(scores.shape)
        mean = scores.mean(axes, keepdims=True, dtype=np.float64) if axes else 0
        return softmax(np.moveaxis(scores * (1 + mean), 0, -1)).transpose(3, 0, 1, 2).astype(np.float32)


@pytest.mark.parametrize("reach", ["voxel", "slice", "volume"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_give_what_the_whole_volume_gives(reach, axis, monkeypatch):
    monkeypatch.setattr(calibrated_module, "PIECE", 200)
    monkeypatch.setattr(calibrated_module, "IN_MEMORY", 0)
    scores = np.random.default_rng(0).normal(size=(3, 7, 8, 9)).astype(np.float32)
    prediction = Prediction("a", "a", scores, "logits", (1.0, 1.0, 1.0), slice_axis=axis)
    blur = Blur(reach)
    whole = blur.transform_prediction(prediction)
    blur.seen.clear()
    found = calibrated(prediction, blur)
    assert found.kind == "probabilities"
    np.testing.assert_allclose(found.scores, whole, atol=1e-6)
    assert (len(blur.seen) == 1) == (reach == "volume")
    case = Case("a", "a", np.zeros((1, 7, 8, 9), np.float32), ("x",), None, (1.0,) * 3, ("a", "b", "c"), np.eye(4))
    slices = np.moveaxis(scores, 1 + axis, 0)
    parts = [slices[begin : begin + 3] for begin in range(0, len(slices), 3)]
    by_slice = np.stack(list(calibrated_slices(parts, case, axis, blur)))
    np.testing.assert_allclose(np.moveaxis(by_slice, 0, 1 + axis), whole, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_wrong_score_is_named_by_its_place_in_the_case_and_not_in_the_piece(axis, monkeypatch):
    monkeypatch.setattr(calibrated_module, "PIECE", 200)
    calibrator = Temperature()
    calibrator.temperature, calibrator.classes = (2.0,), 3
    scores = np.zeros((3, 7, 8, 9), np.float32)
    scores[1, 6, 7, 8] = np.nan
    prediction = Prediction("a", "a", scores, "logits", (1.0, 1.0, 1.0), slice_axis=axis)
    with pytest.raises(BadInput, match=r"at voxel \(z 6, y 7, x 8\)"):
        calibrated(prediction, calibrator)
    of_file = replace(prediction, voxel_name=lambda place: f"the file's {sum(place)}th")
    with pytest.raises(BadInput, match="at the file's 21th"):
        calibrated(of_file, calibrator)
    case = Case("a", "a", np.zeros((1, 7, 8, 9), np.float32), ("x",), None, (1.0,) * 3, ("a", "b", "c"), np.eye(4))
    slices = np.moveaxis(scores, 1 + axis, 0)
    parts = [slices[begin : begin + 3] for begin in range(0, len(slices), 3)]
    with pytest.raises(BadInput, match=r"at voxel \(z 6, y 7, x 8\)"):
        list(calibrated_slices(parts, case, axis, calibrator))


def test_a_piece_is_bounded_whatever_the_volume_is():
    shape = (5, 400, 100, 90)
    for axis, length in ((1, 400), (2, 100), (3, 90)):
        sizes = [cut[axis].stop - cut[axis].start for cut in pieces(shape, axis)]
        assert sum(sizes) == length
        assert max(sizes) * 5 * 400 * 100 * 90 // length <= calibrated_module.PIECE


def test_memory_holds_a_piece_of_a_file_and_not_its_volume(tmp_path, monkeypatch):
    """33 MB of probabilities in an uncompressed file, calibrated a megabyte at a time."""
    monkeypatch.setattr(calibrated_module, "PIECE", 1 << 18)
    save(np.full((128, 128, 100, 5), 0.2, np.float32), tmp_path / "p/big.nii")
    (pair,) = unlabelled(tmp_path / "p")
    calibrator = Temperature()
    calibrator.temperature, calibrator.classes = (2.0,), 5
    tracemalloc.start()
    write_calibrated(pair, calibrator, tmp_path / "big.nii.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20
    found = np.asanyarray(nib.load(tmp_path / "big.nii.gz").dataobj)
    np.testing.assert_allclose(found[::16, ::16, ::16], 0.2, atol=1e-6)
