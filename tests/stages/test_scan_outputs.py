"""What lies beside the maps of a scan: windows for viewers, names and colours, a picture, a file for each class."""

import io
import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from calibseg.api import predict
from calibseg.core import plugins
from calibseg.core.types import BadInput
from calibseg.stages.predict.quick_look import MARK, SIDE, quick_look
from support.known_network import make_run, make_scan
from support.map_files import everything_below, load


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that predicted a scan without being told where to."""
    folder = tmp_path_factory.mktemp("scan")
    run = make_run(folder / "run")
    make_scan(folder / "scan.nii.gz")
    predict(run, input=folder / "scan.nii.gz", per_class=True)
    return run, run / "scans"


def test_maps_say_which_values_are_black_and_white(made):
    _, out = made
    windows = {}
    for kind in ("labels", "probabilities", "confidence", "entropy"):
        header = nib.load(out / kind / "scan.nii.gz").header
        windows[kind] = (float(header["cal_min"]), round(float(header["cal_max"]), 4))
    assert windows == {
        "labels": (0, 0), "probabilities": (0, 1), "confidence": (0, 1), "entropy": (0, 1.0986),
    }  # fmt: skip


def test_each_class_is_a_file_on_request(made, tmp_path):
    run, out = made
    p = load(out / "probabilities" / "scan.nii.gz")
    names = sorted(path.name for path in (out / "classes").iterdir())
    assert [name.split("-")[:2] for name in names] == [["scan", "0"], ["scan", "1"], ["scan", "2"]]
    for k, name in enumerate(names):
        np.testing.assert_array_equal(load(out / "classes" / name), p[..., k])
    plugins.allow(str(run / "known.py"))
    predict(run, input=out.parents[1] / "scan.nii.gz", output=tmp_path, quick_look=False)
    kinds = ("confidence", "entropy", "labels", "probabilities")
    files = ["labels.ctbl", "labels.txt", "scan.json", *(f"{kind}/scan.nii.gz" for kind in kinds)]
    assert everything_below(tmp_path) == sorted(files)


def test_labels_have_names_and_colours_for_viewers(made):
    _, out = made
    assert (out / "labels.txt").read_text().splitlines()[2].split() == [
        "1", "0", "114", "178", "1", "1", "1", '"inside"',
    ]  # fmt: skip
    assert (out / "labels.ctbl").read_text().splitlines()[2] == "1 inside 0 114 178 255"


def test_the_record_names_no_folder_of_this_machine(made):
    run, out = made
    text = (out / "scan.json").read_text()
    assert json.loads(text)["scan"] == "scan.nii.gz"
    assert str(run.parent) not in text


def test_a_picture_has_image_mask_confidence_and_doubt():
    image = np.tile(np.arange(10.0), (8, 1))
    label = (image > 4).astype(int)
    confidence = np.where(image == 5, 0.5, 0.99)
    png = quick_look(image, label, confidence, 0, (1.0, 2.0, 1.0))
    assert png == quick_look(image, label, confidence, 0, (1.0, 2.0, 1.0))
    shown = np.asarray(Image.open(io.BytesIO(png)))
    assert shown.shape[0] == SIDE  # voxels are twice as high as wide: 16 by 10
    panels = [shown[:, at : at + 200] for at in (0, 206, 412, 618)]
    assert panels[0][0, 0, 0] > panels[0][0, -1, 0]  # the patient's right is on the left
    doubt = (panels[3] == MARK).all(-1)
    assert doubt.mean() == pytest.approx(0.1, abs=0.01)  # one of ten columns
    assert (panels[1][0, 0] != panels[0][0, 0]).any()
    assert (panels[1][0, -1] == panels[0][0, -1]).all()  # background is as it is


def test_several_runs_have_no_folder_of_their_own(made, tmp_path):
    run, out = made
    plugins.allow(str(run / "known.py"))
    with pytest.raises(BadInput, match="2 runs are averaged: say where the maps of the scan go with --output DIR"):
        predict([run, shutil.copytree(run, tmp_path / "copy")], input=out.parents[1] / "scan.nii.gz")
