"""Scans of thick slices that lie askew in the patient: cut along their own slices, and brought back to their grid."""

import nibabel as nib
import numpy as np
import pytest

from calibseg.data import prepared
from calibseg.data.preprocessing import acquisition_axis, anisotropic
from calibseg.stages.predict.stage import predict
from calibseg.stages.prepare import prepare
from support.known_network import make_run

SHAPE = (12, 10, 6)  # (i, j, k) as in the file; slices follow each other along k
TILTS = [40, 50, 60, 70]


def affine_of(tilt, about):
    """1.5 x 1.5 x 8 mm, turned by an angle about the x or the y axis of the patient."""
    angle = np.deg2rad(tilt)
    c, s = np.cos(angle), np.sin(angle)
    turn = {"x": [[1, 0, 0], [0, c, -s], [0, s, c]], "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]]}[about]
    affine = np.eye(4)
    affine[:3, :3] = np.array(turn) @ np.diag([1.5, 1.5, 8.0])
    affine[:3, 3] = 3, -20, 7
    return affine


def write_case(root, id, affine, order=(0, 1, 2)):
    """An image whose grey is the number of its slice, and a label in it; `order`: how the axes lie in the file."""
    grey = np.broadcast_to(np.arange(SHAPE[2], dtype=np.float32), SHAPE) / 8
    label = np.zeros(SHAPE, np.uint8)
    label[3:7, 2:5, 1:4] = 1
    columns = affine[:, [*order, 3]]
    for name, array in (("image", grey), ("label", label)):
        nib.save(nib.Nifti1Image(array.transpose(order), columns), root / f"{id}_{name}.nii.gz")


def make_study(root, affines, orders=None):
    rows = ["id,patient,image,label"]
    for number, affine in enumerate(affines):
        write_case(root, f"c{number}", affine, (orders or {}).get(number, (0, 1, 2)))
        rows.append(f"c{number},p{number},c{number}_image.nii.gz,c{number}_label.nii.gz")
    (root / "cases.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.mark.parametrize("about", ["x", "y"])
def test_every_slice_of_a_tilted_stack_is_one_slice_of_the_file(tmp_path, about):
    make_study(tmp_path, [affine_of(tilt, about) for tilt in TILTS], {2: (2, 0, 1), 3: (1, 2, 0)})
    done = prepare("folder", tmp_path, tmp_path / "work", protocol={"intensity": "keep", "crop": [None, 8, 8]})
    assert prepared.read_index(tmp_path / "work")["protocol"]["slice_axis"] == "acquisition"
    for number in range(len(TILTS)):
        case = prepared.open_case(tmp_path / "work", f"c{number}")
        assert case.shape == (6, 1, 8, 8)  # 8 x 8 in the plane of the slices, which are left as they are
        image = case.read("image")
        assert [sorted(set(part.ravel().tolist())) for part in image] in (
            [[k / 8] for k in range(6)],
            [[k / 8] for k in reversed(range(6))],
        )
    told = [note for note in done.notes if "nearest to" in note]
    assert len(told) == 1  # 40 degrees are nearer to axial, 50 and more to another plane
    assert "axial in 1" in told[0]


def test_a_study_whose_cases_agree_is_told_nothing(tmp_path):
    make_study(tmp_path, [affine_of(tilt, "x") for tilt in (50, 60, 70)])
    assert prepare("folder", tmp_path, tmp_path / "work").notes == []


def test_a_cubic_voxel_is_cut_as_before_and_a_word_of_the_user_counts(tmp_path):
    cubic = affine_of(60, "x") @ np.diag([1, 1, 1.5 / 8, 1])
    make_study(tmp_path, [cubic, cubic])
    prepare("folder", tmp_path, tmp_path / "cubic")
    assert prepared.read_index(tmp_path / "cubic")["protocol"]["slice_axis"] == "axial"
    make_study(tmp_path, [affine_of(60, "x")])
    prepare("folder", tmp_path, tmp_path / "told", protocol={"slice_axis": "sagittal"})
    assert prepared.open_case(tmp_path / "told", "c0").axis == 2


def test_equal_edges_take_the_last_axis_of_the_file():
    swapped = np.eye(4)[:, [2, 0, 1, 3]]  # the file's last axis is the patient's y
    assert acquisition_axis((1, 1, 1), swapped) == "coronal"
    assert acquisition_axis((8, 8.02, 1), np.eye(4)) == "axial"
    assert acquisition_axis((8, 9, 1), np.eye(4)) == "coronal"
    assert (anisotropic((1, 1, 1.4)), anisotropic((1.5, 8, 1.5)), anisotropic((3, 3, 1))) == (False, True, False)


@pytest.mark.parametrize("about", ["x", "y"])
@pytest.mark.parametrize("tilt", TILTS)
def test_a_tilted_scan_comes_back_on_its_own_grid(tmp_path, tilt, about):
    run = make_run(tmp_path / "run", slice_axis="acquisition", crop=(None, 16, 16))
    affine = affine_of(tilt, about)
    grey = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    nib.save(nib.Nifti1Image(grey, affine), tmp_path / "scan.nii.gz")
    predict(run, input=str(tmp_path / "scan.nii.gz"), output=tmp_path / "out", device="cpu")
    found = nib.load(tmp_path / "out" / "probabilities" / "scan.nii.gz")
    np.testing.assert_allclose(found.affine, affine, atol=1e-5)
    logit = 8 * (grey.astype(float) - 0.5)  # as support.known_network says; class 2 is out of the question
    np.testing.assert_allclose(found.get_fdata()[..., 1], 1 / (1 + np.exp(-logit)), atol=1e-5)


def test_slices_of_a_tilted_scan_are_those_that_the_network_saw(tmp_path, monkeypatch):
    """Resampled in the plane and back: nothing of one slice reaches another."""
    run = make_run(tmp_path / "run", slice_axis="acquisition", resize=(None, 20, 24))
    grey = np.broadcast_to(np.arange(SHAPE[2], dtype=np.float32) / 8, SHAPE)
    nib.save(nib.Nifti1Image(np.ascontiguousarray(grey), affine_of(60, "y")), tmp_path / "scan.nii.gz")
    predict(run, input=str(tmp_path / "scan.nii.gz"), output=tmp_path / "out", device="cpu")
    found = nib.load(tmp_path / "out" / "probabilities" / "scan.nii.gz").get_fdata()[..., 1]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-8 * (grey.astype(float) - 0.5))), atol=1e-5)
