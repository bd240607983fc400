"""The pictures of a report: the right voxels of the worst cases, before and after calibration."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibseg.analysis.evidence import gather
from calibseg.report.html import report
from calibseg.report.html.cases import cases, grey_png
from calibseg.report.html.groups import comparison_groups
from support.reporting import data_of, prepare_images, run, scores, study


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return study(tmp_path_factory.mktemp("study"))


def test_pictures_end_where_their_share_of_the_file_is_spent(made, monkeypatch):
    evidence = gather([made])
    whole, _ = cases(comparison_groups(evidence), {"toy": "nacl"})
    assert len(whole) == 2
    monkeypatch.setattr("calibseg.report.html.cases.BYTES", 10)
    found, notes = cases(comparison_groups(evidence), {"toy": "nacl"})
    assert [one["case"] for one in found] == [whole[0]["case"]]  # one is always shown
    assert "further worst cases are not shown" in notes[0]


def test_a_png_is_what_was_drawn():
    picture = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    png = grey_png(picture)
    shown = Image.open(io.BytesIO(png))
    assert (shown.mode, np.asarray(shown).tolist()) == ("L", picture.tolist())
    assert grey_png(picture) == png


def test_worst_cases_hold_truth_prediction_and_confidence_of_the_right_voxels(made):
    found, notes = cases(comparison_groups(gather([made])), {"toy": "nacl"})
    assert not notes
    one = found[0]
    assert (one["case"], one["why"]) == ("case_0", "lowest DSC and highest NLL")  # three of four are
    assert [method["method"] for method in one["methods"]] == ["nacl", "ce", "crac"]
    size = one["rows"], one["columns"]
    truth, said, sure = (_pixels(text, size) for text in (one["truth"], *list(one["methods"][0].values())[1:3]))
    at = one["slices"].index(3)
    assert truth[at].max() == 2
    assert (said[at] == np.roll(truth[at], -1, 1)).all()  # seen one voxel too far to the right, shown from the feet
    confident = 255 / (1 + 2 * np.exp(-4.0))  # the winner has the logit 4, the two others 0
    assert sure[at].min() == sure[at].max() == round(confident)
    assert one["aspect"] == 1.0  # axial slices; only z has a spacing of 2 mm
    image = _pixels(one["image"], size)
    assert (np.diff(image[at].astype(int), axis=1) < 0).all()  # x grows to the right of the patient: to the left here
    assert one["methods"][0]["scores"]["dsc"] == pytest.approx(0.788)


def _pixels(uri: str, size: tuple[int, int]) -> np.ndarray:
    png = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(png))).reshape(-1, *size)


def test_without_the_images_the_cases_are_shown_without_them(tmp_path):
    where = run(tmp_path / "runs" / "a", "ce", work=tmp_path / "nowhere")
    scores(where / "scores-test.csv")
    found, _ = cases(comparison_groups(gather([where])), {})
    assert found[0]["image"] is None


def test_a_folder_elsewhere_still_finds_its_images(tmp_path, monkeypatch):
    prepare_images(tmp_path / "work" / "toy")
    where = run(tmp_path / "runs" / "a", "ce", work=Path("work/toy"))
    monkeypatch.chdir("/")
    assert gather([scores(where / "scores-test.csv").parent]).runs[0].prepared_dir() == tmp_path / "work" / "toy"


def test_the_maps_after_calibration_are_those_of_the_runs_own_calibrator(tmp_path):
    """The stored logits are 4 or 0 (2 or 0 in slice 2 of case_0): at temperature 2 the winner has e^2 or e^1 parts."""
    folder = study(tmp_path)
    report([folder], tmp_path / "report.html")
    shown = next(one for one in data_of((tmp_path / "report.html").read_text())["cases"] if one["case"] == "case_0")
    for method in shown["methods"]:
        assert method["after"]["calibrator"] == "temperature"
        assert method["after"]["prediction"] is None  # a temperature changes no label
        pixels = set(
            np.asarray(Image.open(io.BytesIO(base64.b64decode(method["after"]["confidence"].split(",")[1])))).ravel()
        )
        assert pixels == {round(255 * np.exp(z) / (np.exp(z) + 2)) for z in (1.0, 2.0)}
        assert method["after"]["scores"]["dsc"] == method["scores"]["dsc"]


def test_a_calibrator_that_cannot_be_applied_is_noted_once(tmp_path):
    folder = study(tmp_path)
    path = folder / "runs" / "ce-s0" / "calibrators" / "temperature" / "calibrator.json"
    path.write_text(path.read_text().replace('"temperature": 2.0', '"temperature": "warm"'))
    report([folder], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count("No maps of ce after calibration: ") == 1
    after = {method["method"]: method["after"] for method in data_of(text)["cases"][0]["methods"]}
    assert after["ce"] is None
    assert after["nacl"] is not None
