"""What is wrong with a raw study is said in one sentence that names the file, the fact and the choice."""

import gzip
import json

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.io.images import read_volume
from calibseg.stages.prepare import prepare
from support.raw_trees import RAS, make_tree, spaced, write_nifti

IMAGE, LABEL = "imagesTr/la_003.nii.gz", "labelsTr/la_003.nii.gz"


@pytest.fixture
def heart(tmp_path):
    return make_tree("decathlon", tmp_path).root


def read_all(key, root, **options):
    return list(registry.build("datasets", key, options).cases(root))


def rewrite(path, change, affine=None, dtype=None):
    old = nib.load(path)
    array = change(np.asarray(old.dataobj).copy())
    write_nifti(path, array, old.affine if affine is None else affine, dtype or array.dtype)


def with_value(value):
    def change(array):
        array[2, 3, 4] = value
        return array

    return change


def test_a_truncated_gzip_is_named(heart):
    data = (heart / IMAGE).read_bytes()
    (heart / IMAGE).write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match=r"la_003.nii.gz is damaged or not a NIfTI file.*--skip-bad"):
        read_all("decathlon", heart)


def test_a_truncated_gzip_is_found_without_isal_too(heart, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    assert len(read_all("decathlon", heart)) == 3
    data = (heart / IMAGE).read_bytes()
    (heart / IMAGE).write_bytes(data[:-20])
    with pytest.raises(BadInput, match=r"la_003.nii.gz is damaged or not a NIfTI file"):
        read_all("decathlon", heart)


def test_a_flipped_bit_in_a_gzip_is_found(heart):
    data = bytearray((heart / IMAGE).read_bytes())
    data[-5] ^= 1  # in the checksum
    (heart / IMAGE).write_bytes(bytes(data))
    with pytest.raises(BadInput, match=r"la_003.nii.gz is damaged or not a NIfTI file"):
        read_all("decathlon", heart)


def test_a_nifti_whose_voxels_end_early_is_named(heart):
    data = gzip.decompress((heart / IMAGE).read_bytes())
    (heart / IMAGE).write_bytes(gzip.compress(data[:-1000]))
    with pytest.raises(BadInput, match=r"la_003.nii.gz"):
        read_all("decathlon", heart)


def test_what_is_no_nifti_is_named(heart):
    (heart / LABEL).write_bytes(gzip.compress(b"<html>404</html>" * 100))
    with pytest.raises(
        BadInput, match=r"la_003.nii.gz (is damaged or not a NIfTI file|has a header that nibabel refuses)"
    ):
        read_all("decathlon", heart)


def test_a_label_with_four_axes_is_refused(heart):
    rewrite(heart / LABEL, lambda array: np.stack([array, array], -1))
    with pytest.raises(BadInput, match=r"labelsTr/la_003.nii.gz: has 4 axes \(14, 20, 10, 2\)"):
        read_all("decathlon", heart)


def test_a_label_of_another_shape_is_refused(heart):
    rewrite(heart / LABEL, lambda array: array[:, :-1])
    with pytest.raises(BadInput, match=r"shape \(14, 19, 10\) .* differs from \(14, 20, 10\).*share one grid"):
        read_all("decathlon", heart)


def test_a_label_in_another_orientation_is_refused(heart):
    """The header of the label says that x runs to the left, that of the image that it runs to the right."""
    rewrite(heart / LABEL, lambda array: array, affine=np.diag([-1.0, 1.0, 1.0, 1.0]))
    with pytest.raises(BadInput, match=r"lies 13 mm away .*at most 0.1 mm.*stored LAS and the other RAS"):
        read_all("decathlon", heart)


def test_a_label_stored_in_another_order_at_the_same_place_is_welcome(heart):
    flipped = np.diag([-1.0, 1.0, 1.0, 1.0])
    flipped[0, 3] = 13  # the last voxel of 14
    before = read_all("decathlon", heart)[0].labels
    rewrite(heart / LABEL, lambda array: array[::-1], affine=flipped)
    np.testing.assert_array_equal(read_all("decathlon", heart)[0].labels, before)


def test_a_place_may_differ_by_a_rounding_of_the_header(heart):
    rewrite(heart / LABEL, lambda array: array, affine=spaced(RAS, (1, 1, 1), (0.05, 0, 0)))
    assert len(read_all("decathlon", heart)) == 3
    rewrite(heart / LABEL, lambda array: array, affine=spaced(RAS, (1, 1, 1), (0.15, 0, 0)))
    with pytest.raises(BadInput, match=r"lies 0.15 mm away"):
        read_all("decathlon", heart)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_counted(heart, value):
    rewrite(heart / IMAGE, with_value(value))
    with pytest.raises(BadInput, match=r"imagesTr/la_003.nii.gz: 1 image voxels of case 'la_003' are NaN or infinite"):
        read_all("decathlon", heart)


def test_a_label_outside_the_classes_is_named_with_its_count(heart):
    rewrite(heart / LABEL, with_value(7))
    with pytest.raises(BadInput, match="1 voxels have the label 7, known labels are 0, 1"):
        read_all("decathlon", heart)


def test_a_label_that_is_no_whole_number_is_refused(heart):
    rewrite(heart / LABEL, lambda array: with_value(0.5)(array.astype(np.float32)))
    with pytest.raises(BadInput, match=r"labels must be whole numbers, found 0.5"):
        read_all("decathlon", heart)


def test_a_negative_or_huge_label_is_refused(heart):
    rewrite(heart / LABEL, lambda array: with_value(-3)(array.astype(np.int32)))
    with pytest.raises(BadInput, match="have the label -3"):
        read_all("decathlon", heart)
    rewrite(heart / LABEL, lambda array: with_value(2_000_000_000)(array.clip(0)))
    with pytest.raises(BadInput, match="have the label 2000000000"):
        read_all("decathlon", heart)


def test_an_empty_label_is_refused_or_kept(heart):
    rewrite(heart / LABEL, np.zeros_like)
    with pytest.raises(
        BadInput,
        match=r"labelsTr/la_003.nii.gz: no voxel of case 'la_003' is labelled; keep such cases with empty_labels=keep",
    ):
        read_all("decathlon", heart)
    assert read_all("decathlon", heart, empty_labels="keep")[0].labels.sum() == 0


def test_a_missing_modality_is_named(tmp_path):
    root = make_tree("brats19", tmp_path).root
    next(root.rglob("BraTS19_CBICA_AAB_1_t1ce.nii.gz")).unlink()
    with pytest.raises(BadInput, match=r"BraTS19_CBICA_AAB_1_t1ce.nii.gz: no such file"):
        read_all("brats19", root)


def test_a_missing_channel_in_a_file_is_counted(tmp_path):
    root = make_tree("decathlon", tmp_path).root
    about = json.loads((root / "dataset.json").read_text())
    about["modality"] = {"0": "T1", "1": "T2"}
    (root / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match=r"found 1 channels, expected 2 \(T1, T2\)"):
        read_all("decathlon", root)


def test_duplicate_ids_are_refused(heart):
    about = json.loads((heart / "dataset.json").read_text())
    about["training"].append(about["training"][0])
    (heart / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match="two cases have the id 'la_003'"):
        read_all("decathlon", heart)


@pytest.mark.parametrize("id", ["../evil", "a/b", "..", ".hidden", "", "nul\\x", "a\nb"])
def test_an_id_that_leaves_the_folder_is_refused(tmp_path, id):
    make_tree("folder", tmp_path)
    text = (tmp_path / "cases.toml").read_text().replace('id = "a"', f"id = {json.dumps(id)}")
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(BadInput, match="cannot be a case id"):
        prepare("folder", tmp_path, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_case_without_a_patient_is_refused(tmp_path):
    make_tree("folder", tmp_path)
    text = (tmp_path / "cases.toml").read_text().replace('patient = "p2"', 'patient = " "')
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(BadInput, match="the patient of case 'c' cannot be called ' '"):
        read_all("folder", tmp_path)


def test_a_spacing_that_is_not_positive_is_refused(heart):
    data = bytearray(gzip.decompress((heart / IMAGE).read_bytes()))
    data[80:84] = np.float32(0).tobytes()  # pixdim[1]
    (heart / IMAGE).write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(BadInput, match="voxel spacing must be positive"):
        read_all("decathlon", heart)


def test_two_files_of_one_name_are_refused(tmp_path):
    root = make_tree("brats19", tmp_path).root
    path = next(root.rglob("BraTS19_2013_10_1_t1.nii.gz"))
    path.with_name("BraTS19_2013_10_1_t1.nii").write_bytes(gzip.decompress(path.read_bytes()))
    with pytest.raises(BadInput, match=r"holds both BraTS19_2013_10_1_t1.nii.gz and BraTS19_2013_10_1_t1.nii"):
        read_all("brats19", root)


@pytest.mark.parametrize("key", [key for key in registry.members("datasets") if key != "phantom"])
def test_a_wrong_root_shows_the_layout_or_the_missing_file(key, tmp_path):
    reader = registry.build("datasets", key)
    with pytest.raises(BadInput, match=r"no such folder. Layout: "):
        reader.studies(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"no case found|no such file|no .* here nor in|neither|below"):
        reader.studies(tmp_path)
    with pytest.raises(BadInput, match="needs --root"):
        reader.studies(None)


def test_an_unknown_ending_lists_the_known_ones(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"")
    with pytest.raises(BadInput, match=r"unknown file ending. Known: .nii.gz, .nii, .mhd"):
        read_volume(tmp_path / "a.xyz")


def test_a_picture_of_several_pages_is_no_slice(tmp_path):
    pages = [Image.fromarray(np.full((6, 5), level, np.uint8)) for level in range(4)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(BadInput, match=r"stack\.tif: holds 4 pages, and a picture is one slice"):
        read_volume(tmp_path / "stack.tif")


def test_a_damaged_picture_is_named(tmp_path):
    root = make_tree("busi", tmp_path).root
    path = next(root.rglob("benign (1).png"))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"benign \(1\).png: the file is cut short or damaged"):
        read_all("busi", root)


def test_a_damaged_mhd_is_named(tmp_path):
    root = make_tree("promise12", tmp_path).root
    raw = next(root.rglob("Case00.raw"))
    raw.write_bytes(raw.read_bytes()[:50])
    with pytest.raises(BadInput, match=r"Case00.mhd: the file is cut short or damaged"):
        read_all("promise12", root)


def test_acdc_without_info_cfg_says_what_it_is_for(tmp_path):
    root = make_tree("acdc", tmp_path).root
    next(root.rglob("patient002/Info.cfg")).write_text("Group: DCM\n")
    with pytest.raises(BadInput, match=r"patient002/Info.cfg: has no line 'ED: NUMBER'"):
        read_all("acdc", root)
    next(root.rglob("patient002/Info.cfg")).unlink()
    with pytest.raises(BadInput, match=r"patient002/Info.cfg: no such file"):
        read_all("acdc", root)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, '"labels" must map names to ids and hold "background"'),
        ({"liver": 1}, '"labels" must map names to ids and hold "background"'),
        ({"background": 0, "liver": 2}, "without a gap, found"),
        ({"background": 0, "liver": "x"}, "must hold ids or lists of ids"),
    ],
)
def test_a_wrong_nnunet_json_is_explained(tmp_path, labels, said):
    root = make_tree("nnunet", tmp_path).root
    about = json.loads((root / "dataset.json").read_text()) | {"labels": labels}
    (root / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match=said):
        read_all("nnunet", root)


def test_a_patient_pattern_that_finds_nobody_is_explained(tmp_path):
    root = make_tree("nnunet", tmp_path).root
    with pytest.raises(BadInput, match=r"patient='\(x.*d\)' finds no patient in the case id 'p1_a'"):
        read_all("nnunet", root, patient=r"(x\d)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,patient,label\n", "lacks the column 'image', it has id, patient, label"),
        ("id,patient,image,label\na,,a.nii.gz,b.nii.gz\n", "line 2 has nothing in the column 'patient'"),
    ],
)
def test_a_wrong_csv_is_explained(tmp_path, text, said):
    (tmp_path / "cases.csv").write_text(text)
    with pytest.raises(BadInput, match=said):
        read_all("folder", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("classes = [", "not TOML"),
        ('classes = ["a"]\nchannels = ["b"]\n', "case is missing"),
        ('classes = ["a"]\nchannels = ["b"]\nclases = 1\n[[case]]\n', "no key named 'clases'"),
        ('classes = ["a"]\nchannels = ["b"]\n[[case]]\nid = "x"\n', r"case\[0\]\.images is missing"),
    ],
)
def test_a_wrong_toml_is_explained(tmp_path, text, said):
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(BadInput, match=said):
        read_all("folder", tmp_path)


def test_a_damaged_npz_and_a_pickle_in_it_are_refused(tmp_path):
    path = tmp_path / "lidc_4rater_central.npz"
    path.write_bytes(b"PK not a zip")
    with pytest.raises(BadInput, match="cut short or damaged"):
        read_all("lidc4", tmp_path)
    np.savez(tmp_path / "b.npz", images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadInput, match=r"cut short or damaged .*allow_pickle"):
        read_all("lidc4", tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=np.zeros((1, 128, 128), np.uint8))
    with pytest.raises(BadInput, match="lacks the array"):
        read_all("lidc4", tmp_path / "c.npz")
