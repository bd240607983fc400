"""nnU-Net's folders: plans.json lies above them, and an .npz that lies otherwise than its segmentation is refused."""

import json
import warnings

import nibabel as nib
import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.io.class_names import find_class_names
from calibseg.io.conventions import FileConventions
from calibseg.io.predictions import match_files, unlabelled

SHAPE = (5, 6, 7)  # (x, y, z) as in the file
LPS = np.diag([-1.0, -1.0, 2.0, 1.0])


def make(root, reader="SimpleITKIO", plans=True, turned=False, changed=0, shape=SHAPE):
    """A model's validation folder: probabilities whose argmax is the segmentation, but for `changed` voxels."""
    folder, labels = root / "model" / "fold_0" / "validation", root / "labels"
    folder.mkdir(parents=True)
    labels.mkdir()
    seg = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)
    p = np.full((3, *shape), 0.1, np.float32)
    np.put_along_axis(p, seg[None].astype(int), 0.8, 0)
    stored = p[:, ::-1, ::-1] if turned else p  # LPS -> RAS reverses x and y
    np.savez(folder / "a.npz", probabilities=stored.transpose(0, 3, 2, 1))
    after = seg.copy()
    after.reshape(-1)[:changed] = (after.reshape(-1)[:changed] + 1) % 3
    for path in (folder / "a.nii.gz", labels / "a.nii.gz"):
        nib.save(nib.Nifti1Image(after, LPS), path)
    if plans:
        (root / "model" / "plans.json").write_text(json.dumps({"plans_name": "p", "image_reader_writer": reader}))
    names = {"labels": {"background": 0, "lv": 1, "rv": 2}}
    (root / "model" / "dataset.json").write_text(json.dumps(names))
    return folder, labels, seg


def opened(folder, labels, form=None):
    return match_files(folder, labels, FileConventions(file_format=form))[0][0].open()


@pytest.mark.parametrize("reader", ["SimpleITKIO", "NibabelIOWithReorient"])
def test_plans_and_class_names_are_found_above_a_validation_folder(tmp_path, reader):
    folder, labels, seg = make(tmp_path, reader, turned=reader.startswith("Nibabel"))
    found = opened(folder, labels)
    np.testing.assert_array_equal(found.scores.argmax(0), found.labels)
    np.testing.assert_array_equal(found.labels, seg[::-1, ::-1].transpose(2, 1, 0))
    assert find_class_names(folder, labels).classes == ("background", "lv", "rv")
    assert unlabelled(folder)[0].open().scores.shape == (3, 7, 6, 5)


def test_files_that_were_turned_are_refused_where_no_plans_say_so(tmp_path):
    folder, labels, _ = make(tmp_path, plans=False, turned=True)
    said = r"a\.npz does not lie as a\.nii\.gz beside it: \d+ voxels differ, and 0 where .* z, -y, -x; .*WithReorient"
    with pytest.raises(BadInput, match=said):
        opened(folder, labels, "nnunet")
    with pytest.raises(BadInput, match="does not lie as"):
        unlabelled(folder, FileConventions(file_format="nnunet"))[0].open()


def test_plans_that_say_turned_where_files_are_not_are_refused(tmp_path):
    folder, labels, _ = make(tmp_path, "NibabelIOWithReorient")
    with pytest.raises(BadInput, match="does not lie as"):
        opened(folder, labels)


def test_swapped_axes_of_a_cube_are_refused(tmp_path):
    folder, labels, seg = make(tmp_path, shape=(6, 6, 6))
    swapped = seg.transpose(1, 0, 2)
    for path in (folder / "a.nii.gz", labels / "a.nii.gz"):
        nib.save(nib.Nifti1Image(swapped, LPS), path)
    with pytest.raises(BadInput, match=r"are taken as z, x, y"):
        opened(folder, labels)


def test_a_few_labels_that_postprocessing_changed_are_counted(tmp_path):
    folder, labels, _ = make(tmp_path, changed=4)
    with pytest.warns(UserWarning, match=r"says at 4 of \d+ labelled voxels; postprocessing or regions"):
        opened(folder, labels)


def test_regions_are_compared_as_foreground(tmp_path):
    folder, labels, seg = make(tmp_path)
    p = np.stack([seg > 0, seg > 1]).astype(np.float32) * 0.9
    np.savez(folder / "a.npz", probabilities=p.transpose(0, 3, 2, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert match_files(folder, labels, FileConventions(activation="sigmoid"))[0][0].open().scores.shape[0] == 2
    np.savez(folder / "a.npz", probabilities=p[:, ::-1].transpose(0, 3, 2, 1))
    with pytest.raises(BadInput, match="are taken as z, y, -x"):
        match_files(folder, labels, FileConventions(activation="sigmoid"))[0][0].open()


def test_our_own_dataset_json_above_a_folder_is_not_nnunet_s(tmp_path):
    folder, labels, _ = make(tmp_path)
    (tmp_path / "model" / "dataset.json").write_text(json.dumps({"format": "calibseg-dataset/1", "classes": ["a"]}))
    assert find_class_names(folder, labels).classes == ()


def test_logits_of_sigmoid_channels_are_compared_where_they_are_above_0(tmp_path):
    folder, labels, seg = make(tmp_path)
    logits = np.where(np.stack([seg > 0, seg == 2]), 0.3, -0.3).astype(np.float32)
    np.savez(folder / "a.npz", logits=logits.transpose(0, 3, 2, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        match_files(folder, labels, FileConventions("logits", "sigmoid", "nnunet"))[0][0].open()
