"""Prediction: networks whose answer is known go in, and logits and maps must say exactly that."""

import errno
import json
import math
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibseg.api import predict
from calibseg.cli import app
from calibseg.core import files
from calibseg.core.types import BadInput, Case
from calibseg.data import prepared
from calibseg.data.noise import Noisy
from calibseg.data.original_grid import original_slices
from calibseg.data.preprocessing import AXES, Preprocessing, preprocess
from calibseg.data.slices import CaseSlices
from calibseg.io import stored_logits as logits_module
from calibseg.io.images import from_ras, to_ras
from calibseg.io.predictions import match_files
from calibseg.io.stored_logits import Scores, logits_files, open_logits, planes, read_about, relative, write_logits
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.runs import folders
from calibseg.runs.checkpoint import load_network
from calibseg.runs.info import read_run, write_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.predict.maps import Maps
from calibseg.stages.predict.slice_inference import slice_scores
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train
from support.known_network import TURNED, make_run, make_scan
from support.whole_volumes import to_original

DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[3] / "shared" / "data"))
GRIDS = [{}, {"resize": (9, 20, 11)}, {"crop": (20, 8, 30)}, {"resize": (25, 7, 12), "crop": (9, 16, 16)}]


def load(path):
    return np.asanyarray(nib.load(path).dataobj)


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


NARROW = {"name": "unet", "width": 2, "norm": "batch"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A phantom, prepared and split, and a run that training itself has left."""
    root = tmp_path_factory.mktemp("trained")
    prepare(
        "phantom", None, root / "work", options={"cases": 5, "size": [5, 32, 32]}, protocol={"slice_axis": "coronal"}
    )
    make_splits(root / "work", sizes=(2, 1, 2))
    recipe = {
        "data": {"dataset": "phantom", "work": str(root / "work")},
        "network": {"name": "unet", "width": 2, "norm": "batch"},
    }
    train(read_recipe({**recipe, "train": {"epochs": 1}}), root / "run", device="cpu")
    return root


# Back to the grid of the file


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("grid", GRIDS)
def test_slice_by_slice_is_the_same_as_the_whole_volume_at_once(axis, grid):
    rng = np.random.default_rng(0)
    turned, affine = to_ras(rng.random((13, 17, 10)), TURNED)
    image = turned.T[None].astype(np.float32)
    header = {"original": {"affine": TURNED.tolist()}}
    case = Case("a", "a", image, ("x",), None, (2.0, 1.25, 0.75), ("b", "c", "d"), affine, header=header)
    case = preprocess(case, Preprocessing(slice_axis=axis, **grid))
    p = np.moveaxis(rng.dirichlet([0.5] * 3, case.image.shape[1:]), -1, 0).astype(np.float32)
    slices = np.moveaxis(p, 1 + AXES[axis], 0)
    found = np.moveaxis(np.stack(list(original_slices(slices, 3, case.header))), 0, 1 + AXES[axis])
    np.testing.assert_allclose(from_ras(found, header["original"]), to_original(p, case.header), atol=3e-7)
    with pytest.raises(BadInput, match="slices, probabilities were given for"):
        list(original_slices(slices[:-1], 3, case.header))


def test_memory_holds_a_few_slices_whatever_the_volume_has(tmp_path):
    """The tall volume has 400 slices of 5 classes, 65 MB of probabilities; a slice of them takes 0.16 MB."""
    n, k, size = 400, 5, 90
    geometry = {"shape": [n, size, size], "resized": [n // 2, 45, 45], "start": [0, 0, 0], "final": [n // 2, 45, 45]}
    original = {"affine": np.eye(4).tolist(), "shape": [size, size, n]}
    header = {"geometry": geometry, "slice_axis": "axial", "original": original}
    p = np.full((k, 45, 45), 1 / k, np.float32)
    maps = Maps(tmp_path, k, header, Path("scan.mha"))
    tracemalloc.start()
    for q in original_slices((p for _ in range(n // 2)), k, header):
        maps.add(q)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    maps.close()
    assert peak < 15 * k * size * size * 4, f"{peak / 1e6:.1f} MB"


# Maps and what they say


def test_volumes_and_confidences_are_those_computed_by_hand(tmp_path):
    """Four voxels of 2 x 3 x 4 mm; class 1 is labelled in two of them, class 2 in one."""
    p = np.array([[0.7, 0.4, 0.1, 0.2], [0.2, 0.5, 0.9, 0.2], [0.1, 0.1, 0.0, 0.6]], np.float32)[:, None, None]
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    header = {"slice_axis": "axial", "original": {"affine": affine.tolist(), "shape": [4, 1, 1]}}
    maps = Maps(tmp_path, 3, header, Path("scan.png"))
    maps.add(p[:, 0])
    files = maps.close()
    found = maps.structures(("background", "one", "two"), {"both": (1, 2)})
    one = {
        "voxels": 2,
        "volume_ml": 2 * 0.024,
        "expected_volume_ml": (0.2 + 0.5 + 0.9 + 0.2) * 0.024,
        "mean_confidence": (0.5 + 0.9) / 2,
        "soft_dice_confidence": 2 * (0.5 + 0.9) / (1.8 + 2),
    }
    assert found["one"] == pytest.approx(one)
    assert found["both"]["mean_confidence"] == pytest.approx((0.6 + 0.9 + 0.8) / 3)
    assert found["both"]["expected_volume_ml"] == pytest.approx((0.3 + 0.6 + 0.9 + 0.8) * 0.024)
    assert found["both"]["soft_dice_confidence"] == pytest.approx(2 * 2.3 / (2.6 + 3))
    assert load(files["label"])[:, 0, 0].tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(load(files["confidence"])[:, 0, 0], p[:, 0, 0].max(0))
    entropy = [-sum(x * math.log(x) for x in column if x > 0) for column in p[:, 0, 0].T.tolist()]
    np.testing.assert_allclose(load(files["entropy"])[:, 0, 0], entropy, rtol=1e-6)
    np.testing.assert_array_equal(load(files["probabilities"])[:, 0, 0], p[:, 0, 0].T)


def test_a_structure_that_is_labelled_nowhere_has_no_mean_confidence(tmp_path):
    header = {"slice_axis": "axial", "original": {"affine": np.eye(4).tolist(), "shape": [1, 1, 1]}}
    maps = Maps(tmp_path, 2, header, Path("scan.png"))
    maps.add(np.array([0.75, 0.25], np.float32).reshape(2, 1, 1))
    found = maps.structures(("background", "one"), {})["one"]
    assert found["mean_confidence"] is None
    assert (found["soft_dice_confidence"], found["expected_volume_ml"]) == (0, 0.00025)


# A scan in, maps out


@pytest.mark.parametrize("axis", AXES)
def test_a_scan_comes_back_on_its_own_grid_with_the_probabilities_that_the_network_said(axis, tmp_path):
    run = make_run(tmp_path / "run", slice_axis=axis)
    grey = make_scan(tmp_path / "scan.nii.gz")
    done = predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=3)
    wanted = 1 / (1 + np.exp(-8 * (grey.astype(float) - 0.5)))
    p = load(tmp_path / "out/probabilities/scan.nii.gz")
    np.testing.assert_allclose(p[..., 1], wanted, atol=1e-6)
    np.testing.assert_array_equal(load(tmp_path / "out/labels/scan.nii.gz"), p.argmax(-1))
    np.testing.assert_array_equal(load(tmp_path / "out/confidence/scan.nii.gz"), p.max(-1))
    for kind in ("labels", "confidence", "entropy", "probabilities"):
        image = nib.load(tmp_path / f"out/{kind}/scan.nii.gz")
        assert image.shape[:3] == grey.shape
        np.testing.assert_array_equal(image.affine, TURNED)
    told = json.loads((tmp_path / "out/scan.json").read_text())
    assert told["structures"] == done.structures
    assert done.structures["inside"]["voxels"] == (wanted > 0.5).sum()
    assert done.structures["inside"]["expected_volume_ml"] == pytest.approx(wanted.sum() * 1.25 * 2 * 0.75 / 1000)
    kinds = ("confidence", "entropy", "labels", "probabilities")
    assert everything_below(tmp_path / "out") == sorted(["scan.json", *(f"{kind}/scan.nii.gz" for kind in kinds)])


def test_what_was_cropped_away_is_background_and_what_was_resampled_still_sums_to_one(tmp_path):
    run = make_run(tmp_path / "run", resize=(8, 13, 20), crop=(None, 9, 16), slice_axis="coronal")
    grey = make_scan(tmp_path / "scan.nii")
    predict(run, input=str(tmp_path / "scan.nii"), output=tmp_path / "out")
    p = load(tmp_path / "out/probabilities/scan.nii.gz")
    assert p.shape == (*grey.shape, 3)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-6)
    ras = np.moveaxis(to_ras(p, TURNED)[0], -1, 0)  # [k x y z]
    assert (ras[0, 0] == 1).all()  # x was cropped from 20 to 16
    assert ras[1].max() > 0.5


def test_a_header_that_has_only_a_quaternion_is_kept_bit_for_bit(tmp_path):
    run = make_run(tmp_path / "run")
    turn = np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]])
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * [1.1, 0.9, 3.0], (0.1, 0.2, 0.3)
    image = nib.Nifti1Image(np.random.default_rng(0).random((6, 7, 5)), None)
    image.set_qform(affine, 1)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "scan.nii.gz")
    predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")
    before, after = (nib.load(tmp_path / name) for name in ("scan.nii.gz", "out/labels/scan.nii.gz"))
    np.testing.assert_array_equal(before.affine, after.affine)
    assert (after.header["qform_code"], after.header["sform_code"]) == (1, 0)
    assert after.header.get_xyzt_units() == before.header.get_xyzt_units()


@pytest.mark.skipif(not (DATA / "Task04_Hippocampus").is_dir(), reason="the hippocampus data are not there")
def test_a_raw_hippocampus_comes_back_with_its_shape_and_affine_and_can_be_scored(tmp_path):
    classes = ("background", "anterior", "posterior")
    sagittal = {"slice_axis": "sagittal", "intensity": "percentile"}
    run = make_run(tmp_path / "run", classes=classes, **sagittal)
    scan = DATA / "Task04_Hippocampus" / "imagesTr" / "hippocampus_001.nii.gz"
    predict(run, input=scan, output=tmp_path / "out")
    before, after = nib.load(scan), nib.load(tmp_path / "out/labels/hippocampus_001.nii.gz")
    assert after.shape == before.shape
    np.testing.assert_array_equal(before.affine, after.affine)
    truth = tmp_path / "truth"
    truth.mkdir()
    shutil.copy(DATA / "Task04_Hippocampus" / "labelsTr" / scan.name, truth)
    matched, lonely = match_files(tmp_path / "out/probabilities", truth)
    assert not lonely
    prediction = matched[0].open()
    assert prediction.scores.shape == (3, *prediction.labels.shape)
    found = calibration_statistics(prediction.scores, prediction.labels, kind="probabilities")
    assert 0 < ECE().value(found.on("all"))[None] < 1


def test_channels_are_matched_by_name_in_any_order_and_spelling(tmp_path):
    run = make_run(tmp_path / "run", channels=("flair", "t1"), slope=16.0)
    first, second = (make_scan(tmp_path / name, seed=seed) for seed, name in enumerate(("a.nii.gz", "b.nii.gz")))
    given = [f"T1={tmp_path / 'b.nii.gz'}", f"FLAIR={tmp_path / 'a.nii.gz'}"]
    predict(run, input=given, output=tmp_path / "out")
    wanted = 1 / (1 + np.exp(-16 * ((first.astype(float) + second) / 2 - 0.5)))
    np.testing.assert_allclose(load(tmp_path / "out/probabilities/a.nii.gz")[..., 1], wanted, atol=1e-6)
    both = np.stack([first, second], -1)
    nib.save(nib.Nifti1Image(both, TURNED), tmp_path / "both.nii.gz")
    predict(run, input=tmp_path / "both.nii.gz", output=tmp_path / "out")
    np.testing.assert_array_equal(*(load(tmp_path / f"out/labels/{name}.nii.gz") for name in ("a", "both")))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-500])


def with_nan(path):
    grey = load(path).copy()
    grey[3, 2, 1] = np.nan
    nib.save(nib.Nifti1Image(grey, TURNED), path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["flair=a.nii.gz"], "lacks t1: the network was trained on flair, t1"),
        (["flair=a.nii.gz", "t2=b.nii.gz"], "no channel named 't2'. Did you mean 't1'?"),
        (["a.nii.gz"], "found 1 channels, expected 2 (flair, t1)"),
        (["a.nii.gz", "b.nii.gz"], "say which channel each file is, as CHANNEL=FILE. Channels: flair, t1"),
        (["flair=a.nii.gz", "flair=b.nii.gz"], "the channel 'flair' is given twice"),
        (["flair=a.nii.gz", "t1=none.nii.gz"], "none.nii.gz: no such file"),
        (["flair=a.nii.gz", "t1=nan.nii.gz"], "1 image voxels of case 'a' are NaN or infinite"),
        (["flair=a.nii.gz", "t1=cut.nii.gz"], "cut.nii.gz is damaged or not a NIfTI file"),
        (["flair=a.nii.gz", "t1=other.nii.gz"], "they must share one grid"),
    ],
)
def test_a_scan_that_cannot_be_used_is_one_sentence_and_leaves_nothing(inputs, message, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", channels=("flair", "t1"))
    monkeypatch.chdir(tmp_path)
    for name in ("a.nii.gz", "b.nii.gz", "nan.nii.gz", "cut.nii.gz"):
        make_scan(tmp_path / name)
    make_scan(tmp_path / "other.nii.gz", (13, 17, 11))
    with_nan(tmp_path / "nan.nii.gz")
    cut_short(tmp_path / "cut.nii.gz")
    with pytest.raises(BadInput) as caught:
        predict(run, input=inputs, output="out")
    assert message in str(caught.value)
    assert "--skip-bad" not in str(caught.value)
    assert not Path("out").exists()


def test_a_network_that_fails_half_way_leaves_neither_maps_nor_scratch(tmp_path):
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    grey = load(tmp_path / "scan.nii.gz").copy()
    grey[..., -1] = 1e38  # 8 times that is beyond float32
    nib.save(nib.Nifti1Image(grey, np.eye(4)), tmp_path / "scan.nii.gz")
    with pytest.raises(BadInput, match="answer to case 'scan' is NaN or infinite"):
        predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=1)
    assert everything_below(tmp_path / "out") == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, trained):
    def full(file, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "preallocate", full)
    monkeypatch.setattr(logits_module, "preallocate", full)
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        predict(trained / "run", cases="test", output=tmp_path / "logits")
    assert everything_below(tmp_path / "out") == everything_below(tmp_path / "logits") == []


def test_what_does_not_go_together_is_said(tmp_path, trained):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other", channels=("T2",))
    for arguments, message in [
        ({}, "either the cases of a part of the split, or a scan"),
        ({"cases": "test", "input": "a.nii"}, "either the cases of a part of the split, or a scan"),
        ({"input": "a.nii"}, "--output DIR"),
        ({"input": "a.nii", "output": "out", "noise": 0.1}, "noise is for cases of the split"),
        ({"input": "a.nii", "output": "out", "calibrator": "ts"}, "no calibrator named 'ts'. Known: none, chosen"),
        ({"input": "a.nii", "output": "out", "flips": "all"}, "no flips named 'all'"),
        ({"input": "a.nii", "output": "out", "noise": -1.0}, "at least 0"),
    ]:
        with pytest.raises(BadInput) as caught:
            predict(run, **arguments)
        assert message in str(caught.value)
    with pytest.raises(BadInput, match="networks are averaged only where they see and say the same"):
        predict([run, other], input="a.nii", output="out")
    with pytest.raises(BadInput, match=r"the split of .* has no calibration cases"):
        predict(trained / "run", cases="calibration")
    with pytest.raises(BadInput, match="holds no training run"):
        predict(tmp_path, cases="test")


# Several networks, mirror images, noise


def answers(*logits):
    """Networks that say the same of every pixel."""

    class Constant(torch.nn.Module):
        def __init__(self, values):
            super().__init__()
            self.values = torch.tensor(values)

        def forward(self, image):
            return self.values.view(1, -1, 1, 1).expand(len(image), -1, *image.shape[2:])

    return [Constant(values) for values in logits]


def in_memory(shape=(1, 3, 4, 5), seed=0):
    image = np.random.default_rng(seed).random(shape).astype(np.float32)
    return CaseSlices(Case("a", "a", image, ("x",), None, (1.0, 1.0, 1.0), ("b", "c"), np.eye(4)))


def test_means_of_probabilities_and_of_logits_are_those_computed_by_hand():
    """(0.9, 0.1) and (0.5, 0.5): their mean is 0.7; their geometric means are as 3 to 1."""
    networks = answers([math.log(0.9), math.log(0.1)], [7.0, 7.0])
    for average, wanted in (("probabilities", 0.7), ("logits", 0.75)):
        for scores in slice_scores(networks, in_memory(), average=average, batch_size=2):
            torch.testing.assert_close(scores.softmax(1)[:, 0], torch.full((len(scores), 4, 5), wanted))


def test_one_network_alone_says_its_own_logits():
    (scores,) = slice_scores(answers([3.0, -4.0]), in_memory())
    assert scores[0, :, 0, 0].tolist() == [3.0, -4.0]


class Ramp(torch.nn.Module):
    """Likes what is at the bottom and on the right, whatever it shows."""

    def forward(self, image):
        n, _, h, w = image.shape
        right = torch.arange(w).float().expand(n, 1, h, w)
        down = 10 * torch.arange(h).float().view(h, 1).expand(n, 1, h, w)
        return torch.cat([right + down, torch.zeros_like(right)], 1)


def test_mirror_images_are_asked_about_and_turned_back():
    """Of columns 0..4 and their mirror image the mean is 2; of rows 0, 10, 20, 30 it is 15."""
    rows, columns = 10 * torch.arange(4.0).view(4, 1).expand(4, 5), torch.arange(5.0).expand(4, 5)
    wanted = {
        "none": rows + columns,
        "columns": rows + 2,
        "rows": 15 + columns,
        "both": torch.full((4, 5), 17.0),
    }
    for flips, answer in wanted.items():
        (scores,) = slice_scores([Ramp()], in_memory(), average="logits", flips=flips)
        torch.testing.assert_close(scores[1, 0], answer)


def test_a_slice_is_shown_in_the_frame_that_the_network_learnt_in_and_its_mirror_image_too():
    """The black is at the bottom and on the right, also of a mirror image; the answer has the slice's own size."""
    shown = []

    class Watching(Ramp):
        def forward(self, image):
            shown.append(image.clone())
            return super().forward(image)

    case = in_memory()
    (scores,) = slice_scores([Watching()], case, average="logits", flips="both", at_least=(6, 8))
    assert scores.shape == (3, 2, 4, 5)
    torch.testing.assert_close(scores[1, 0], torch.full((4, 5), 17.0))
    slices = torch.from_numpy(case.case.image).movedim(1, 0)
    for image, axes in zip(shown, ((), (2,), (3,), (2, 3)), strict=True):
        assert image.shape == (3, 1, 6, 8)
        assert not image[:, :, 4:].any()
        assert not image[:, :, :, 5:].any()
        assert torch.equal(image[:, :, :4, :5], slices.flip(axes))


def test_noise_depends_on_seed_case_and_slice_only_and_grows_with_sigma():
    case = in_memory((2, 3, 40, 50))
    clean = case.read("image", 1)
    weak, strong = (Noisy(case, sigma, 5).read("image", 1) - clean for sigma in (0.01, 0.05))
    np.testing.assert_allclose(strong, 5 * weak, atol=1e-6)
    assert strong.std() == pytest.approx(0.05, rel=0.05)
    np.testing.assert_array_equal(Noisy(case, 0.05, 5).read("image", 1) - clean, strong)
    assert np.abs(Noisy(case, 0.05, 6).read("image", 1) - clean - strong).max() > 0.01
    assert np.abs(Noisy(case, 0.05, 5).read("image", 0) - case.read("image", 0) - strong).max() > 0.01


# Logits on disk


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stored_logits_are_read_back_slab_by_slab(axis, tmp_path, monkeypatch):
    monkeypatch.setattr(logits_module, "SLAB", 3 * 2 * 5 * 6)  # two planes
    rng = np.random.default_rng(0)
    volume = rng.normal(0, 5, (3, 7, 5, 6)).astype(np.float32)
    labels = rng.integers(0, 3, (2, 7, 5, 6)).astype(np.uint8)
    slices = np.moveaxis(volume, 1 + axis, 0)
    parts = (slices[begin : begin + 4] for begin in range(0, len(slices), 4))
    about = {"id": "a", "patient": "p", "spacing_mm": [1, 2, 3], "raters": 2}
    write_logits(tmp_path / "a.npz", parts, volume.shape, axis, labels, about)
    found = open_logits(tmp_path / "a.npz")
    np.testing.assert_array_equal(found.labels, labels)
    assert (found.case_id, found.patient, found.spacing_mm, found.kind) == ("a", "p", (1, 2, 3), "logits")
    wanted = relative(volume)
    parts_along_z = [np.s_[:], np.s_[:, 1:4], np.s_[:, 6], np.s_[:, -1], np.s_[:, ::2], np.s_[:, 5:5]]
    for key in [*parts_along_z, np.s_[2], np.s_[1, 3:], np.s_[:, 2, 1:3], np.s_[..., 0]]:
        np.testing.assert_array_equal(found.scores[key], wanted[key])
    np.testing.assert_array_equal(np.asarray(found.scores), wanted)
    read = []
    monkeypatch.setattr(logits_module, "_read_array", lambda path, name: read.append(name) or np.zeros((3, 2, 5, 6)))
    fresh = Scores(tmp_path / "a.npz", volume.shape)
    for begin in range(2, 4):
        fresh[:, begin : begin + 1]
    assert (read, planes(volume.shape)) == (["scores_0001"], 2)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as plain:  # anybody can open it
        joined = np.concatenate([plain[name] for name in sorted(plain.files) if name.startswith("scores")], 1)
    np.testing.assert_array_equal(joined, wanted)
    assert everything_below(tmp_path) == ["a.npz"]


def test_too_few_slices_are_noticed_and_nothing_is_left(tmp_path):
    with pytest.raises(BadInput, match="a: has 7 slices, logits were given for 3"):
        write_logits(tmp_path / "a.npz", [np.zeros((3, 2, 5, 6), np.float32)], (2, 7, 5, 6), 0, None, {})
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4, 1e30])
def test_what_is_stored_has_the_same_softmax_and_the_same_label(size):
    """Also where classes are as near as float32 can tell, and where they are equal: then the smallest id wins."""
    rng = np.random.default_rng(0)
    logits = (size * rng.normal(size=(3, 9999))).astype(np.float32)
    logits[2, ::2] = np.nextafter(logits[1, ::2], np.float32(np.inf))
    logits[0, ::3] = logits[1, ::3]
    stored = relative(logits)
    assert stored.dtype == np.float32
    assert (stored.max(0) == 0).all()
    np.testing.assert_array_equal(stored.argmax(0), logits.argmax(0))
    exact, found = (torch.from_numpy(scores).double().softmax(0) for scores in (logits, stored))
    torch.testing.assert_close(found, exact, atol=1e-7, rtol=0)


def test_stored_logits_give_the_same_ece_in_every_class(tmp_path):
    rng = np.random.default_rng(0)
    volume = (rng.normal(0, 1, (4, 10, 60, 60)) * rng.gamma(2, 3, (1, 10, 60, 60)) + 40).astype(np.float32)
    labels = (volume + rng.gumbel(size=volume.shape)).argmax(0).astype(np.uint8)
    about = {"id": "a", "patient": "a", "spacing_mm": [1, 1, 1], "raters": 1}
    write_logits(tmp_path / "a.npz", [np.moveaxis(volume, 1, 0)], volume.shape, 0, labels[None], about)
    stored = open_logits(tmp_path / "a.npz")
    exact, found = (calibration_statistics(s, stored.labels, kind="logits") for s in (volume, stored.scores))
    for voxels in ("truth", "predicted", "all"):
        a, b = ECE().value(exact.on(voxels)), ECE().value(found.on(voxels))
        defined = [name for name in a if not math.isnan(a[name])]
        assert None in defined
        assert max(abs(a[name] - b[name]) for name in defined) < 1e-8


def test_cases_of_the_split_are_stored_and_left_alone_the_second_time(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    first = predict(run, cases="test")
    assert (first.output, first.written, first.unchanged) == (run / "logits/test", 2, 0)
    files = logits_files(first.output)
    assert [path.stem for path in files] == read_run(run).cases("test")
    again = predict(run, cases="test")
    assert (again.written, again.unchanged) == (0, 2)
    cut_short(files[0])
    assert predict(run, cases="test").written == 1
    noisy = predict(run, cases="test", noise=0.05, seed=3)
    assert (noisy.output.name, noisy.written) == ("test-noise0.05-seed3", 2)
    assert predict(run, cases="test", flips="both").output.name == "test-flips-both"
    case = prepared.open_case(trained / "work", files[0].stem)
    stored, about = open_logits(files[0]), read_about(files[0])
    np.testing.assert_array_equal(stored.labels, case.case().labels)
    assert (about["format"], about["noise"], about["raters"]) == ("calibseg-logits/1", 0.0, 4)
    slices = torch.cat(list(slice_scores([load_network(run)], case)))
    np.testing.assert_array_equal(stored.scores, relative(np.moveaxis(slices.numpy(), 0, 1 + case.axis)))
    moved = np.asarray(open_logits(noisy.output / files[0].name).scores, np.float32) - np.asarray(
        stored.scores, np.float32
    )
    assert np.abs(moved).max() > 1e-3


def test_runs_of_different_splits_are_not_averaged_on_cases(trained, tmp_path):
    """What is one fold's test is another fold's training."""
    shutil.copytree(trained / "run", tmp_path / "fold")
    info = read_run(tmp_path / "fold")
    swapped = replace(info.split, test=info.split.validation, validation=info.split.test)
    write_run(folders.RunFolder(tmp_path / "fold"), replace(info, split=swapped))
    with pytest.raises(BadInput, match="networks are averaged on cases that none of them was trained on"):
        predict([trained / "run", tmp_path / "fold"], cases="test", output=tmp_path / "out")


def test_data_that_were_prepared_otherwise_are_refused(trained, tmp_path):
    prepare("phantom", None, tmp_path / "work", options={"cases": 5, "size": [5, 32, 32]})  # axial, not coronal
    with pytest.raises(BadInput, match="the run was trained on"):
        predict(trained / "run", cases="test", work=tmp_path / "work", output=tmp_path / "out")


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"PK nonsense"), cut_short])
def test_damaged_logits_are_named(damage, tmp_path):
    about = {"id": "a", "patient": "a", "spacing_mm": [1, 1, 1], "raters": 0}
    write_logits(tmp_path / "a.npz", [np.ones((4, 2, 5, 6), np.float32)], (2, 4, 5, 6), 0, None, about)
    damage(tmp_path / "a.npz")
    with pytest.raises(BadInput, match=r"a.npz: no logits of calibseg, or damaged"):
        open_logits(tmp_path / "a.npz")


def test_the_command_predicts_cases_and_scans(trained, tmp_path):
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    shown = CliRunner().invoke(
        app, ["predict", str(run), "-i", str(tmp_path / "scan.nii.gz"), "-o", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0, shown.output
    assert "inside" in shown.output
    assert (tmp_path / "out/scan.json").is_file()
    runs = [str(trained / "run")] * 2
    shown = CliRunner().invoke(
        app, ["predict", *runs, "--cases", "test", "-o", str(tmp_path / "both"), "--flips", "both"]
    )
    assert shown.exit_code == 0, shown.output
    assert "2 cases written, 0 unchanged" in shown.output
