"""calibseg view: a predicted scan in three dimensions, in a real browser, without a network."""

import io
import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from calibseg.cli import app
from calibseg.core.types import BadInput
from calibseg.io.label_colours import itk_snap_table
from calibseg.report.viewer import view

CHROMIUM = shutil.which("chromium")
SOFTWARE = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
EVIL = "</script><b>organ"


def predicted(folder):
    """What predict --input leaves, as far as the viewer reads it."""
    labels = np.zeros((12, 14, 8), np.uint8)
    labels[3:9, 4:10, 2:6] = 1
    maps = {"label": labels, "confidence": np.where(labels, 0.9, 0.6).astype(np.float32)}
    for kind, array in maps.items():
        (folder / kind).mkdir(parents=True)
        nib.save(nib.Nifti1Image(array, np.eye(4)), folder / kind / "scan.nii.gz")
    organ = {"volume_ml": 0.144, "expected_volume_ml": 0.2, "mean_confidence": 0.9}
    record = {"format": "calibseg-prediction/1", "structures": {EVIL: organ}, "calibrator": "temperature"}
    record["maps"] = {kind: f"{kind}/scan.nii.gz" for kind in maps}
    (folder / "scan.json").write_text(json.dumps(record))
    (folder / "labels.txt").write_text(itk_snap_table(("background", EVIL)))
    image = np.random.default_rng(0).random(labels.shape, np.float32)
    image[: len(image) // 2] *= 0.1  # x grows to the patient's right: the left half is dark
    nib.save(nib.Nifti1Image(image, np.eye(4)), folder / "i.nii.gz")
    return folder


def test_the_command_writes_a_page_and_the_browser_draws_it_without_a_request(tmp_path):
    out = predicted(tmp_path / "out")
    words = ["view", str(out), "--image", str(out / "i.nii.gz"), "--no-open"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    text = (out / "scan.html").read_text(encoding="utf-8")
    assert "<b>organ" not in text
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
        page = browser.new_page(viewport={"width": 1000, "height": 600})
        asked, errors = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((out / "scan.html").as_uri())
        page.wait_for_function("document.body.dataset.ready || document.body.dataset.failed", timeout=60_000)
        assert page.evaluate("document.body.dataset.ready") == "3", page.evaluate("document.body.dataset.failed")
        assert page.locator("#layers input").count() == 3
        assert EVIL in page.locator("tbody").inner_text()
        before = page.locator("#view").screenshot()
        page.locator("#opacity-mask").fill("0")
        page.wait_for_timeout(300)
        assert page.locator("#view").screenshot() != before
        page.locator("#opacity-confidence").fill("0")
        page.locator("#slices").select_option("axial")
        page.wait_for_timeout(300)
        axial = np.asarray(Image.open(io.BytesIO(page.locator("#view").screenshot())).convert("L")).astype(float)
        middle = axial.shape[1] // 2
        assert axial[:, :middle].mean() > 2 * axial[:, middle:].mean()  # the patient's right is bright, and on the left
        page.locator("#slices").select_option("render")
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert errors == []
        browser.close()


def name_map(out, name):
    """A record that names another map, which is there."""
    nib.save(nib.Nifti1Image(np.zeros((11, 14, 8), np.float32), np.eye(4)), out / name)
    record = json.loads((out / "scan.json").read_text())
    record["maps"]["confidence"] = name
    (out / "scan.json").write_text(json.dumps(record))


def test_an_image_that_lies_elsewhere_is_no_image_of_the_scan(tmp_path):
    out = predicted(tmp_path / "out")
    nib.save(nib.Nifti1Image(np.zeros((12, 14, 8), np.float32), np.diag([2.0, 1, 1, 1])), tmp_path / "i.nii.gz")
    with pytest.raises(BadInput, match=r"lies elsewhere than .*label"):
        view(out, tmp_path / "page.html", image=tmp_path / "i.nii.gz")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: (out / "scan.json").unlink(), "holds no predicted scan"),
        (lambda out: (out / "label" / "scan.nii.gz").unlink(), "label/scan.nii.gz"),
        (lambda out: (out / "confidence" / "scan.nii.gz").write_bytes(b"no scan"), "confidence/scan.nii.gz"),
        (lambda out: name_map(out, "../secret.nii.gz"), "the confidence map ../secret.nii.gz lies outside"),
        (lambda out: name_map(out, "small.nii.gz"), "small.nii.gz has 8 x 14 x 11 voxels"),
        (lambda out: (out / "b.json").write_text("{}"), "holds 2 scans: say which with --scan"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(tmp_path, change, message):
    out = predicted(tmp_path / "out")
    change(out)
    with pytest.raises(BadInput, match=message):
        view(out, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
