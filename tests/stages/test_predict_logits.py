"""Logits on disk: what is stored, how it is read back, and what is said of damage."""

import math
import time
import zipfile

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.io import stored_logits as logits_module
from calibseg.io.stored_logits import Scores, open_logits, planes, read_largest, relative, write_logits
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.report.figure_data.runs import logit_means
from calibseg.report.matplotlib import runs as plots_runs
from support.made_runs import make_run, make_work
from support.map_files import cut_short, everything_below

NAMES3 = {"classes": ["none", "a", "b"], "regions": {}}
NAMES4 = {"classes": ["none", "a", "b", "c"], "regions": {}}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stored_logits_are_read_back_slab_by_slab(axis, tmp_path, monkeypatch):
    monkeypatch.setattr(logits_module, "SLAB", 3 * 2 * 5 * 6)  # two planes
    rng = np.random.default_rng(0)
    volume = rng.normal(0, 5, (3, 7, 5, 6)).astype(np.float32)
    labels = rng.integers(0, 3, (2, 7, 5, 6)).astype(np.uint8)
    slices = np.moveaxis(volume, 1 + axis, 0)
    parts = (slices[begin : begin + 4] for begin in range(0, len(slices), 4))
    about = {"id": "a", "patient": "p", "spacing_mm": [1, 2, 3], "raters": 2, **NAMES3}
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
    monkeypatch.setattr(logits_module, "_read_array", lambda path, name, shape: read.append(name) or np.zeros(shape))
    fresh = Scores(tmp_path / "a.npz", volume.shape)
    for begin in range(2, 4):
        fresh[:, begin : begin + 1]
    assert (read, planes(volume.shape)) == (["scores_0001"], 2)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as plain:  # anybody can open it
        joined = np.concatenate([plain[name] for name in sorted(plain.files) if name.startswith("scores")], 1)
    np.testing.assert_array_equal(joined, wanted)
    assert everything_below(tmp_path) == ["a.npz"]


def test_each_voxels_largest_logit_is_kept_and_equal_content_makes_equal_bytes(tmp_path, monkeypatch):
    volume = np.random.default_rng(0).normal(0, 5, (3, 4, 5, 6)).astype(np.float32)
    volume[:, 0, 0, 0] = 1e6, -1e6, 0
    about = {"id": "a", "patient": "p", "spacing_mm": [1, 2, 3], "raters": 0, **NAMES3}
    for name, day in (("a", 0), ("b", 200_000_000)):
        monkeypatch.setattr(time, "time", lambda day=day: 1e9 + day)  # what an archive would take as its date
        write_logits(tmp_path / f"{name}.npz", [np.moveaxis(volume, 2, 0)], volume.shape, 1, None, about)
    largest = read_largest(tmp_path / "a.npz")
    wanted = volume.max(0)
    wanted[0, 0, 0] = 65504  # as large as float16 can be
    np.testing.assert_array_equal(largest, wanted.astype(np.float16))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_file_without_the_largest_logits_is_read_and_the_figure_that_needs_them_says_so(tmp_path):
    run = make_run(tmp_path / "run", make_work(tmp_path / "work"), "ce", 3.0)
    for path in (run / "logits" / "test").glob("*.npz"):
        with zipfile.ZipFile(path) as old:
            kept = {name: old.read(name) for name in old.namelist() if name != "largest.npy"}
        with zipfile.ZipFile(path, "w") as new:
            for name, content in kept.items():
                new.writestr(name, content)
    found = logit_means(run)
    assert found[["raw", "magnitude"]].isna().all(axis=None)
    assert found[["signed", "absolute", "distance"]].notna().all(axis=None)
    with pytest.raises(BadInput, match="ce: its logits were stored without each voxel's largest"):
        plots_runs.logits({"ce": found}, "raw")


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
    about = {"id": "a", "patient": "a", "spacing_mm": [1, 1, 1], "raters": 1, **NAMES4}
    write_logits(tmp_path / "a.npz", [np.moveaxis(volume, 1, 0)], volume.shape, 0, labels[None], about)
    stored = open_logits(tmp_path / "a.npz")
    exact, found = (calibration_statistics(s, stored.labels, kind="logits") for s in (volume, stored.scores))
    for voxels in ("truth", "predicted", "all"):
        a, b = ECE().value(exact.on(voxels)), ECE().value(found.on(voxels))
        defined = [name for name in a if not math.isnan(a[name])]
        assert None in defined
        assert max(abs(a[name] - b[name]) for name in defined) < 1e-8


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"PK nonsense"), cut_short])
def test_damaged_logits_are_named(damage, tmp_path):
    about = {"id": "a", "patient": "a", "spacing_mm": [1, 1, 1], "raters": 0}
    write_logits(tmp_path / "a.npz", [np.ones((4, 2, 5, 6), np.float32)], (2, 4, 5, 6), 0, None, about)
    damage(tmp_path / "a.npz")
    with pytest.raises(BadInput, match=r"a.npz: no logits of calibseg, or damaged"):
        open_logits(tmp_path / "a.npz")
