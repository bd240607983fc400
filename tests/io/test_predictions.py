"""Anybody's predictions: every format puts every voxel in the same place, and what is wrong is named."""

import json
import pickle

import nibabel as nib
import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.io.class_names import ClassNames, find_class_names, with_overrides
from calibseg.io.conventions import FileConventions
from calibseg.io.images import read_volume
from calibseg.io.nifti import Grid, read_nifti
from calibseg.io.nifti_writer import write_mask
from calibseg.io.predictions import match_files, read_labels, read_patients

RNG = np.random.default_rng(0)
SHAPE = (5, 4, 3)  # (i, j, k) of the file: all different, so that no axis can pass for another
# The file's first axis runs down, its second to the right, its third to the back: nothing is where RAS+ has it.
AFFINE = np.array([[0.0, 0.7, 0.0, -3.0], [0.0, 0.0, -2.0, 9.0], [-1.5, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 1.0]])


def random_probabilities(classes=3):
    scores = RNG.exponential(size=(*SHAPE, classes)).astype(np.float32)
    return scores / scores.sum(-1, keepdims=True)  # (i, j, k, class)


PROBABILITIES = random_probabilities()
LABELS = RNG.integers(0, 3, SHAPE).astype(np.uint8)


def reoriented(array):
    """By hand for AFFINE: x = j, y = -k, z = -i; then (z, y, x)."""
    return array[::-1, :, ::-1].transpose(0, 2, 1, *range(3, array.ndim))


def save(path, array, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


@pytest.fixture
def folders(tmp_path):
    save(tmp_path / "labels/la_007.nii.gz", LABELS)
    (tmp_path / "predictions").mkdir()
    return tmp_path / "predictions", tmp_path / "labels"


def opened(folders, **options):
    matched, unmatched = match_files(*folders, FileConventions(**options))
    assert not unmatched
    (found,) = (pair.open() for pair in matched)
    return found


def write_nnunet(folder, array=None, **files):
    array = PROBABILITIES.transpose(3, 2, 1, 0) if array is None else array  # ITK's order: the file's axes reversed
    np.savez_compressed(folder / "la_007.npz", probabilities=array)
    for name, text in ({"dataset": {"labels": {"background": 0, "a": 1, "b": 2}}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(text))


def write_4d(folder, ending):
    save(folder / f"la_007{ending}", PROBABILITIES)


def write_classes(folder, name):
    for number in range(3):
        save(folder / f"la_007_{name}{number}.nii.gz", PROBABILITIES[..., number])


def write_plain_npz(folder, **arrays):
    np.savez(folder / "la_007.npz", **(arrays or {"anything": PROBABILITIES.transpose(3, 2, 1, 0)}))


WRITERS = {
    "nnU-Net npz": write_nnunet,
    "4-D .nii.gz": lambda folder: write_4d(folder, ".nii.gz"),
    "4-D .nii": lambda folder: write_4d(folder, ".nii"),
    "a file per class": lambda folder: write_classes(folder, "class"),
    "a file per class, called prob": lambda folder: write_classes(folder, "prob"),
    "plain npz": write_plain_npz,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_every_format_puts_every_voxel_in_the_same_place(folders, write):
    write(folders[0])
    found = opened(folders)
    assert found.case_id == found.patient == "la_007"
    assert found.spacing_mm == pytest.approx((1.5, 2.0, 0.7))
    assert np.array_equal(found.labels, reoriented(LABELS))
    assert found.scores.shape == (3, 5, 3, 4)
    expected = np.moveaxis(reoriented(PROBABILITIES), -1, 0)
    assert np.array_equal(np.asarray(found.scores), expected)
    assert np.array_equal(found.scores[:, 1:3], expected[:, 1:3])
    assert np.array_equal(found.scores[2, 1:3], expected[2, 1:3])


def test_what_nnunet_turned_before_predicting_is_not_turned_again(folders):
    expected = np.moveaxis(reoriented(PROBABILITIES), -1, 0)
    write_nnunet(folders[0], expected, plans={"image_reader_writer": "NibabelIOWithReorient"})
    assert np.array_equal(opened(folders).scores, expected)


def test_a_label_stored_in_another_direction_matches_the_same_voxels(folders):
    predictions_folder, labels = folders
    write_4d(predictions_folder, ".nii.gz")
    flip = np.diag([-1.0, 1.0, 1.0, 1.0])
    flip[0, 3] = SHAPE[0] - 1
    save(labels / "la_007.nii.gz", LABELS[::-1], AFFINE @ flip)
    assert np.array_equal(opened(folders).labels, reoriented(LABELS))


@pytest.mark.parametrize("write", [WRITERS["4-D .nii"], WRITERS["plain npz"]], ids=["nii", "stored npz"])
def test_uncompressed_files_are_mapped_not_read(folders, write):
    write(folders[0])
    array = opened(folders).scores
    while isinstance(array.base, np.ndarray):  # a turned view leads back to what it is a view of
        array = array.base
    assert isinstance(array, np.memmap)


def test_scaled_files_are_read_as_probabilities(folders):
    image = nib.Nifti1Image(PROBABILITIES, AFFINE)
    image.set_data_dtype(np.uint16)
    nib.save(image, folders[0] / "la_007.nii")
    found = opened(folders).scores
    assert found.dtype == np.float32
    assert np.abs(found - np.moveaxis(reoriented(PROBABILITIES), -1, 0)).max() < 1e-4


@pytest.mark.parametrize(("code", "mm"), [(0, 1.0), (1, 1000.0), (2, 1.0), (3, 0.001), (5, 1.0)])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_spacing_is_in_mm_whatever_unit_the_header_says(tmp_path, code, mm, ending):
    image = nib.Nifti1Image(LABELS, AFFINE)
    image.header["xyzt_units"] = code
    nib.save(image, tmp_path / f"a{ending}")
    _, grid = read_nifti(tmp_path / f"a{ending}")
    assert grid.spacing_mm == pytest.approx([1.5 * mm, 2.0 * mm, 0.7 * mm])
    assert (
        Grid.of(tmp_path / f"a{ending}").spacing_mm
        == grid.spacing_mm
        == read_volume(tmp_path / f"a{ending}").spacing_mm
    )
    write_mask(tmp_path / "mask.nii.gz", np.zeros(grid.shape, bool), tmp_path / f"a{ending}")
    np.testing.assert_allclose(Grid.of(tmp_path / "mask.nii.gz").file_affine, grid.file_affine, rtol=1e-6)


def test_a_number_that_is_too_large_for_a_label_is_named_without_a_warning(tmp_path):
    path = save(tmp_path / "a.nii.gz", np.full(SHAPE, 1e20, np.float32))
    with pytest.raises(BadInput, match=r"holds 1\.0+2\d*e\+20, but labels are whole numbers below 2\^31"):
        read_labels(path)


def test_float_labels_that_are_whole_numbers_are_labels(folders):
    write_nnunet(folders[0])
    save(folders[1] / "la_007.nii.gz", LABELS.astype(np.float32))
    assert np.array_equal(opened(folders).labels, reoriented(LABELS))


def test_the_pickle_of_nnunet_is_never_opened(folders):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    write_nnunet(folders[0])
    (folders[0] / "la_007.pkl").write_bytes(pickle.dumps(Bomb()))
    assert opened(folders).case_id == "la_007"


def test_an_npz_of_python_objects_is_refused(folders):
    for save_npz in (np.savez, np.savez_compressed):
        save_npz(folders[0] / "la_007.npz", probabilities=np.array([{}], dtype=object))
        with pytest.raises(BadInput, match=r"la_007\.npz is damaged or not an \.npz file of plain numbers"):
            opened(folders)


def test_a_case_can_be_opened_again(folders):
    write_nnunet(folders[0])
    ((pair,), _) = match_files(*folders)
    assert pair.open().case_id == pair.open().case_id == "la_007"


def test_patients_come_from_a_table(folders, tmp_path):
    write_nnunet(folders[0])
    (tmp_path / "patients.csv").write_text("case,patient,age\nla_007,anna,44\n")
    assert opened(folders, patients=tmp_path / "patients.csv").patient == "anna"
    (tmp_path / "patients.csv").write_text("case,patient\nla_008,anna\n")
    _, unmatched = match_files(*folders, FileConventions(patients=tmp_path / "patients.csv"))
    assert [str(problem) for problem in unmatched] == [
        f"{tmp_path / 'patients.csv'} does not say which patient case 'la_007' belongs to"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("case;patient\n", "needs the columns case and patient"),
        ("case,patient\na,\n", "line 2: the patient of case .a. cannot be called"),
        ("case,patient\na,x\na,y\n", "line 3: case 'a' belongs to 'x' and to 'y'"),
    ],
)
def test_a_wrong_table_of_patients_is_refused(tmp_path, text, message):
    (tmp_path / "patients.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_patients(tmp_path / "patients.csv")


def test_what_has_no_partner_is_listed(folders):
    write_nnunet(folders[0])
    np.savez_compressed(folders[0] / "la_009.npz", probabilities=PROBABILITIES)
    save(folders[1] / "la_008.nii.gz", LABELS)
    matched, unmatched = match_files(*folders)
    assert [pair.case for pair in matched] == ["la_007"]
    assert "la_008.nii.gz has no prediction" in str(unmatched[0])
    assert "la_009.npz has no label" in str(unmatched[1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: save(p / "la_007_class1.nii.gz", LABELS), "la_007_class1.nii.gz, but no file for class 0 of la_007"),
        (lambda p: (write_classes(p, "class"), write_classes(p, "prob")), "holds class 0 of la_007 twice, as _class0"),
        (
            lambda p: (write_4d(p, ".nii"), write_classes(p, "class")),
            "la_007.nii stands beside files of single",
        ),
    ],
)
def test_files_that_do_not_make_a_whole_are_listed(folders, damage, message):
    damage(folders[0])
    matched, unmatched = match_files(*folders)
    assert not matched
    assert message in str(unmatched[0])


def other_affine(step):
    moved = AFFINE.copy()
    moved[0, 3] += step
    return moved


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda p, _: write_nnunet(p, PROBABILITIES.transpose(3, 0, 1, 2)),
            r"\.npz has the shape \(3, 5, 4, 3\)",
        ),
        (
            lambda p, _: save(p / "la_007.nii.gz", LABELS),
            r"\.nii\.gz has the shape \(5, 4, 3\), .* hard label map .* single classes are called CASE_class0",
        ),
        (lambda p, _: save(p / "la_007.nii.gz", PROBABILITIES[:4]), r"has 4 x 3 x 4 voxels \(z, y, x\), .* 5 x 3 x 4"),
        (
            lambda p, _: save(p / "la_007.nii.gz", PROBABILITIES, other_affine(0.1)),
            r"la_007\.nii\.gz lies elsewhere than .*labels/la_007\.nii\.gz: .* one corner 0\.1 mm apart",
        ),
        (lambda p, _: (p / "la_007.nii.gz").write_bytes(b"\x1f\x8b oh"), r"la_007\.nii\.gz is damaged or not a NIfTI"),
        (lambda p, _: (p / "la_007.npz").write_bytes(b"PK oh"), r"la_007\.npz is damaged or not an \.npz file"),
        (
            lambda p, _: write_plain_npz(p, a=LABELS, b=LABELS),
            r"\.npz holds the arrays a, b, but none called 'prob",
        ),
        (lambda p, _: write_plain_npz(p, a=LABELS[None].T.T), r"has the shape \(1, 5, 4, 3\)"),
        (
            lambda p, _: write_plain_npz(p, a=LABELS[None].transpose(0, 3, 2, 1)),
            r"la_007\.npz holds uint8, but probabilities are floating-point numbers",
        ),
        (lambda p, _: write_nnunet(p, PROBABILITIES.transpose(3, 2, 1, 0)[:1]), r"holds one class; softmax needs two"),
        (lambda p, t: (write_nnunet(p), save(t / "la_007.nii.gz", PROBABILITIES)), r"but a label map is 3-D"),
        (lambda p, t: (write_nnunet(p), save(t / "la_007.nii.gz", LABELS + 0.5)), r"holds \d\.5, but labels are whole"),
        (lambda p, t: (write_nnunet(p), save(t / "la_007.nii", LABELS)), r"holds both la_007\.nii and la_007\.nii\.gz"),
        (lambda p, _: None, r"predictions holds no prediction"),
        (
            lambda p, _: (write_nnunet(p), save(p / "la_007.nii.gz", LABELS, other_affine(5.0))),
            r"predictions/la_007\.nii\.gz lies elsewhere",
        ),
    ],
)
def test_what_cannot_be_used_is_named(folders, damage, message):
    damage(*folders)
    with pytest.raises(BadInput, match=message):
        opened(folders)


def test_a_rounding_error_in_the_affine_is_forgiven(folders):
    save(folders[0] / "la_007.nii.gz", PROBABILITIES, other_affine(0.005))  # 1 % of the smallest edge is 0.007 mm
    assert opened(folders).case_id == "la_007"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"background": 0, "lv": 1, "rv": 2}, (("background", "lv", "rv"), {}, None)),
        ({"0": "background", "1": "Anterior"}, (("background", "Anterior"), {}, None)),
        ({"background": 0, "lv": 1, "ignore": 2}, (("background", "lv"), {}, 2)),
        (
            {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3},
            (("background", "1", "2", "3"), {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}, None),
        ),
    ],
)
def test_names_are_read_from_dataset_json(folders, labels, expected):
    (folders[1].parent / "dataset.json").write_text(json.dumps({"labels": labels}))
    found = find_class_names(*folders)
    assert (found.classes, dict(found.regions), found.ignore_label) == expected


@pytest.mark.parametrize("text", ["{}", '{"labels": []}', '{"labels": 3}', '{"labels": {"a": "b"}}'])
def test_an_unreadable_dataset_json_is_named(folders, text):
    (folders[0] / "dataset.json").write_text(text)
    with pytest.raises(BadInput, match=r"dataset\.json has no readable entry `labels`"):
        find_class_names(*folders)


def test_classes_with_a_gap_are_refused(folders):
    (folders[0] / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "a": 2}}))
    with pytest.raises(BadInput, match=r"values \[0, 2\], not 0, 1, 2, \.\.\. without a gap"):
        find_class_names(*folders)


def test_what_the_user_states_wins_over_dataset_json():
    known = ClassNames(("background", "a"), {}, 7)
    found = with_overrides(known, "background, edema, core", "whole=1+2,core only=core")
    assert found == ClassNames(("background", "edema", "core"), {"whole": (1, 2), "core only": (2,)}, 7)
    assert with_overrides(known, ignore_label=255) == ClassNames(("background", "a"), {}, 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "lv"}, r"--classes 'lv' names no classes"),
        ({"classes": "background,,rv"}, r"names no classes"),
        ({"regions": "WT"}, r"--regions holds 'WT': a region is like WT=1\+2\+3"),
        ({"regions": "WT=rim"}, r"--regions holds 'rim', which is neither a number nor one of: background, a"),
    ],
)
def test_wrongly_stated_names_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        with_overrides(ClassNames(("background", "a")), **options)
