"""What every dataset promises, checked on a tiny raw study in its exact layout; two of them on the real data too."""

import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from calibseg.core import registry
from calibseg.core.types import IGNORED, BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.preprocessing import Preprocessing
from calibseg.data.study import Study
from support.raw_trees import TREES, make_tree
from support.real_data import DATA
from support.whole_volumes import from_ras

KEYS = list(registry.members("datasets"))
real_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not at {DATA} (set CALIBSEG_DATA)")


def build(key, tree):
    return registry.build("datasets", key, tree.options)


@pytest.fixture(scope="module")
def tree(request, tmp_path_factory):
    return request.param, make_tree(request.param, tmp_path_factory.mktemp(request.param))


each = pytest.mark.parametrize("tree", KEYS, indirect=True)


def test_every_dataset_has_a_raw_tree():
    assert set(KEYS) == set(TREES)


@pytest.mark.parametrize("key", KEYS)
def test_every_dataset_can_be_explained_without_importing_it(key):
    facts = registry.find("datasets", key).facts
    assert facts["title"]
    assert facts["layout"]
    Preprocessing(**facts.get("protocol", {}))
    if key not in ("nnunet", "decathlon", "folder"):  # these learn their classes from the folder
        assert facts["classes"][0] == "background"
        assert facts["citation"]
        assert facts["licence"]
        assert facts["how_to_get"]
        assert len(facts["split"]["sizes"]) == 3


@each
def test_the_reader_finds_exactly_the_cases_of_the_tree(tree):
    key, made = tree
    studies = build(key, made).studies(made.root)
    assert [(study.id, study.patient) for study in studies] == sorted(zip(made.ids, made.patients, strict=True))


@each
def test_a_case_keeps_the_contract(tree):
    key, made = tree
    for case in build(key, made).cases(made.root):
        assert case.image.dtype == np.float32
        assert case.image.ndim == 4
        assert len(case.image) == len(case.channels)
        assert case.labels.dtype == np.uint8
        assert case.labels.shape[1:] == case.image.shape[1:]
        known = {*range(len(case.classes)), IGNORED} if case.ignore_label is not None else set(range(len(case.classes)))
        assert set(np.unique(case.labels)) <= known
        assert all(id in range(1, len(case.classes)) for ids in case.regions.values() for id in ids)
        assert not set(case.classes) & set(case.regions)  # a table of scores tells rows apart by name
        lengths = np.sqrt((case.affine[:3, :3] ** 2).sum(0))[::-1]
        np.testing.assert_allclose(case.spacing_mm, lengths)
        assert (np.diag(case.affine)[:3] > 0).all()  # RAS+
        json.dumps(case.header)


@pytest.mark.parametrize(
    "tree", [key for key in KEYS if key not in ("busi", "lidc4", "phantom", "promise12")], indirect=True
)
def test_a_label_stays_where_it_is_in_the_patient(tree):
    """The centre of all foreground in millimetres, from the raw file by nibabel alone and from the case."""
    key, made = tree
    drop = {"mrbrains18": (7, 8, 9, 10), "nnunet": (4,)}.get(key, ())
    for case in build(key, made).cases(made.root):
        raw = nib.load(made.label_files[case.id])
        values = np.asarray(raw.dataobj)
        voxels = np.argwhere((values > 0) & ~np.isin(values, drop))
        expected = nib.affines.apply_affine(raw.affine, voxels).mean(0)
        found = np.argwhere((case.labels[0] > 0) & (case.labels[0] != IGNORED))[:, ::-1]  # (x, y, z)
        assert len(found) == len(voxels)
        np.testing.assert_allclose(nib.affines.apply_affine(case.affine, found).mean(0), expected, atol=1e-4)


def test_promise12_lies_where_simpleitk_puts_it(tmp_path):
    import SimpleITK as sitk

    made = make_tree("promise12", tmp_path)
    case = next(build("promise12", made).cases(made.root))
    raw = sitk.ReadImage(str(next(tmp_path.rglob("Case00_segmentation.mhd"))))
    places = [raw.TransformIndexToPhysicalPoint(i[::-1].tolist()) for i in np.argwhere(sitk.GetArrayFromImage(raw))]
    expected = np.mean(places, 0) * [-1, -1, 1]  # ITK says LPS
    found = np.argwhere(case.labels[0])[:, ::-1]
    np.testing.assert_allclose(nib.affines.apply_affine(case.affine, found).mean(0), expected, atol=1e-4)


def test_acdc_has_two_phases_per_patient_named_by_info_cfg(tmp_path):
    made = make_tree("acdc", tmp_path)
    studies = {study.id: study for study in build("acdc", made).studies(tmp_path)}
    assert studies["patient003_ED"].images[0].name == "patient003_frame04.nii.gz"
    assert studies["patient003_ES"].labels[0].name == "patient003_frame11_gt.nii.gz"
    assert studies["patient003_ED"].patient == studies["patient003_ES"].patient == "patient003"


def test_brats_label_4_becomes_class_3_and_regions_nest(tmp_path):
    made = make_tree("brats19", tmp_path)
    case = next(build("brats19", made).cases(tmp_path))
    raw = np.asarray(nib.load(made.label_files[case.id]).dataobj)
    assert (case.labels == 3).sum() == (raw == 4).sum() > 0
    assert case.channels == ("flair", "t1", "t1ce", "t2")
    assert set(case.regions["ET"]) < set(case.regions["TC"]) < set(case.regions["WT"])


def test_mrbrains_joins_ten_labels_into_three_tissues(tmp_path):
    made = make_tree("mrbrains18", tmp_path)
    case = next(build("mrbrains18", made).cases(tmp_path))
    raw = np.asarray(nib.load(made.label_files[case.id]).dataobj)
    for tissue, values in {1: (1, 2), 2: (3, 4), 3: (5, 6)}.items():
        assert (case.labels == tissue).sum() == np.isin(raw, values).sum() > 0


def test_prostate_takes_t2_and_leaves_adc(tmp_path):
    made = make_tree("prostate", tmp_path)
    case = next(build("prostate", made).cases(made.root))
    raw = np.asarray(nib.load(made.root / "imagesTr" / f"{case.id}.nii.gz").dataobj)
    assert case.channels == ("T2",)
    np.testing.assert_array_equal(case.image[0], raw[..., 0].T)


def test_nnunet_regions_ignore_label_and_channels_come_from_the_json(tmp_path):
    made = make_tree("nnunet", tmp_path)
    case = next(build("nnunet", made).cases(tmp_path))
    assert case.classes == ("background", "label 1", "label 2", "label 3")
    assert case.regions == {"whole": (1, 2, 3), "core": (2, 3), "active": (3,)}
    assert case.channels == ("T1", "T2")
    assert (case.labels == IGNORED).sum() == (np.asarray(nib.load(made.label_files[case.id]).dataobj) == 4).sum() > 0


@pytest.mark.parametrize("ending", [".nrrd", ".mha", ".nii"])
def test_nnunet_reads_other_endings_at_the_same_place(tmp_path, ending):
    import SimpleITK as sitk

    made = make_tree("nnunet", tmp_path)
    before = list(build("nnunet", made).cases(tmp_path))
    for path in [*tmp_path.rglob("*.nii.gz")]:
        sitk.WriteImage(sitk.ReadImage(str(path)), str(path).replace(".nii.gz", ending))
        path.unlink()
    about = json.loads((tmp_path / "dataset.json").read_text()) | {"file_ending": ending}
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    for old, new in zip(before, build("nnunet", made).cases(tmp_path), strict=True):
        np.testing.assert_array_equal(new.image, old.image)
        np.testing.assert_array_equal(new.labels, old.labels)
        np.testing.assert_allclose(new.affine, old.affine, atol=1e-5)
        np.testing.assert_allclose(new.spacing_mm, old.spacing_mm, atol=1e-5)


def test_nnunet_reads_colour_pictures_with_all_channels_in_one_file(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
    picture = rng.integers(0, 255, (20, 30, 3), np.uint8)
    mask = (picture[..., 0] > 128).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "imagesTr" / "road_0000.png")
    Image.fromarray(mask).save(tmp_path / "labelsTr" / "road.png")
    channels = {"0": "R", "1": "G", "2": "B"}
    about = {"channel_names": channels, "labels": {"background": 0, "road": 1}, "file_ending": ".png"}
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    case = next(registry.build("datasets", "nnunet").cases(tmp_path))
    np.testing.assert_array_equal(case.image, picture.transpose(2, 0, 1)[:, None])
    np.testing.assert_array_equal(case.labels[0, 0], mask)
    np.testing.assert_array_equal(from_ras(case.labels[0], case.header["original"])[:, :, 0], mask.T)


def test_busi_unites_masks_and_groups_look_alikes(tmp_path):
    made = make_tree("busi", tmp_path)
    reader = build("busi", made)
    studies = reader.studies(tmp_path)
    labels = {case.id: case.labels for case in reader.cases(tmp_path)}
    assert labels["benign (1)"].sum() == 15 * 20
    assert labels["benign (3)"].sum() == 2 * 15 * 20  # two masks that do not touch
    assert [study.patient for study in studies if study.id == "malignant (1)"] == ["benign (2)"]
    assert reader.notes(studies) == [
        "1 pairs look alike (at most 40 of 256 bits differ): 2 of 6 pictures, in 1 groups of at most 2; a group stays"
        " in one part of a split, whose sizes are 3/1/2 where 445/65/137 are asked for"
    ]


def test_pictures_that_have_not_changed_are_not_decoded_again(tmp_path, monkeypatch):
    from calibseg.data.datasets import busi

    made = make_tree("busi", tmp_path / "raw")
    monkeypatch.setenv("CALIBSEG_CACHE", str(tmp_path / "cache"))
    first, decoded, grey = build("busi", made).studies(made.root), [], busi._grey
    monkeypatch.setattr(busi, "_grey", lambda path: decoded.append(path.name) or grey(path))
    assert build("busi", made).studies(made.root) == first
    assert decoded == []
    changed = made.root / "Dataset_BUSI_with_GT" / "benign" / "benign (4).png"
    changed.write_bytes((changed.parent / "benign (1).png").read_bytes())
    assert [study.patient for study in build("busi", made).studies(made.root)][3] == "benign (1)"
    assert decoded == ["benign (4).png"]
    (cache,) = (tmp_path / "cache").iterdir()
    for damage in ("{", '{"format": "calibseg-picture-hashes/1", "a": "zz"}'):
        cache.write_text(damage)
        assert build("busi", made).studies(made.root)[0] == first[0]
    changed.write_bytes(b"no picture")
    assert len(build("busi", made).studies(made.root)) == 6  # which of them is damaged shows when it is read


def test_look_alikes_pass_through_a_chain():
    from calibseg.data.datasets.busi import LOOK_ALIKE, look_alikes

    bits = np.zeros((4, 256), np.uint8)
    bits[2, :LOOK_ALIKE] = 1  # like 0
    bits[1, : 2 * LOOK_ALIKE] = 1  # like 2, not like 0
    bits[3, 100:200] = 1  # like nobody
    assert look_alikes(np.packbits(bits, axis=1)) == [0, 0, 0, 3]


def test_a_csv_pairs_files_too(tmp_path):
    made = make_tree("folder", tmp_path)
    (tmp_path / "cases.toml").unlink()
    rows = [f"{i},{p},{i}.nii.gz,{i}_1.nii.gz,{i}_2.nii.gz" for i, p in zip(made.ids, made.patients, strict=True)]
    (tmp_path / "cases.csv").write_text("\n".join(["id,patient,image_CT,label_1,label_2", *rows]))
    cases = list(registry.build("datasets", "folder", {"names": "background, liver"}).cases(tmp_path))
    assert [case.id for case in cases] == made.ids
    assert cases[0].channels == ("CT",)
    assert cases[0].classes == ("background", "liver")
    assert len(cases[0].labels) == 2


@real_data
def test_the_real_hippocampus_has_260_cases_and_9198_sagittal_slices():
    slices, voxels = 0, np.zeros(3, int)
    cases = 0
    for case in registry.build("datasets", "hippocampus").cases(DATA / "Task04_Hippocampus"):
        cases += 1
        slices += case.image.shape[3]  # x
        voxels += np.bincount(case.labels.ravel(), minlength=3)
    assert (cases, slices) == (260, 9198)
    np.testing.assert_allclose(voxels / voxels.sum(), [0.947, 0.027, 0.025], atol=6e-4)


@real_data
def test_the_real_nodules_have_856_slices_of_539_patients_and_raters_agree_at_dice_084():
    cases = list(registry.build("datasets", "lidc4").cases(DATA / "lidc-four-raters"))
    assert (len(cases), len({case.patient for case in cases})) == (856, 539)
    dice = [
        2 * (a & b).sum() / (a.sum() + b.sum())
        for case in cases
        for i, a in enumerate(case.labels)
        for b in case.labels[i + 1 :]
    ]
    assert np.mean(dice) == pytest.approx(0.84, abs=0.005)


def test_a_grey_picture_stored_in_colour_is_one_channel_and_a_coloured_one_is_refused(tmp_path):
    """As BUSI stores them: a network of one channel takes such a picture as a new scan."""
    grey = np.arange(30, dtype=np.uint8).reshape(6, 5)
    Image.fromarray(np.stack([grey] * 3, -1)).save(tmp_path / "grey.png")
    Image.fromarray(np.stack([grey, grey, grey + 1], -1)).save(tmp_path / "red.png")
    study = Study("one", "one", (tmp_path / "grey.png",), (), ("grey",), ("background", "lesion"), {})
    assert np.array_equal(Dataset().read(study).image, grey[None, None])
    with pytest.raises(BadInput, match=r"red.png: found 3 channels, expected 1 \(grey\)"):
        Dataset().read(replace(study, images=(tmp_path / "red.png",)))
