"""calibseg decide: rules from folders and runs, sheets and masks of new cases, and what is refused."""

import csv
import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.decisions import Margin, Volume
from calibseg.decisions.fitted.rules import read_rules
from calibseg.io.conventions import PredictionFolder
from calibseg.stages.decide import stage
from calibseg.stages.decide.cases import CaseSource
from calibseg.stages.decide.stage import decide_apply, decide_fit
from support.decision_cases import phantom

AFFINE = np.array([[-1.0, 0, 0, 5], [0, 1.0, 0, -7], [0, 0, 2.0, 3], [0, 0, 0, 1]])  # x runs to the left
FIT = ["--risk", "fnr=0.2", "--volume", "0.8", "--margin", "coverage=0.9,confidence=0.8"]


def write_cases(folder, numbers):
    """Probabilities as nnU-Net stores them, label maps, and masks of the likeliest class."""
    for name in ("p", "l", "m"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        p, labels = phantom(number)
        p, labels = p[:, :, :, ::-1], labels[:, :, ::-1]  # as the file has its axes
        np.savez(folder / "p" / f"c{number}.npz", probabilities=p)
        for name, array in (("l", labels), ("m", p.argmax(0))):
            nib.save(nib.Nifti1Image(array.T.astype(np.uint8), AFFINE), folder / name / f"c{number}.nii.gz")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decide")
    write_cases(folder / "val", range(12))
    write_cases(folder / "test", range(100, 104))
    return folder


def folder(world, name, kind="p", labels=True):
    return PredictionFolder(world / name / kind, world / name / "l" if labels else None)


@pytest.fixture(scope="module")
def fitted(world):
    return decide_fit(CaseSource(folder(world, "val")), [Volume(0.8), Margin(0.9, 0.8)], world / "fitted.json").path


def test_the_command_of_the_docs_makes_rules_then_sheets_masks_and_a_page(world, tmp_path, calibseg):
    rules, out = tmp_path / "rules.json", tmp_path / "out"
    val = ("--predictions", world / "val/p", "--labels", world / "val/l")
    code, printed, error = calibseg("decide", "fit", *val, "-o", rules, *FIT)
    assert code == 0, error
    assert "promised: the mask misses at most 0.2 of 1 on average" in printed
    code, printed, error = calibseg("decide", "apply", rules, "--predictions", world / "test/p", "--labels",
                                    world / "test/l", "-o", out)  # fmt: skip
    assert code == 0, error
    assert "over 4 patients, promised 0.2" in printed
    sheet = json.loads((out / "sheet.json").read_text())
    assert [case["look_first"] for case in sheet["cases"]] == [1, 2, 3, 4]
    lowest = [min(s["soft_dice_confidence"] for s in case["structures"].values()) for case in sheet["cases"]]
    assert lowest == sorted(lowest)
    with (out / "sheet.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2
    assert float(rows[0]["volume 0.8 absolute low_ml"]) <= float(rows[0]["expected_volume_ml"])
    page = (out / "sheet.html").read_text()
    assert "Look at these first" in page
    assert "default-src 'none'" in page
    assert {path.name for path in (out / "masks").iterdir()} == {"fnr-0.2", "margin-0.9-0.8"}


def test_a_mask_lies_where_its_case_lies_and_holds_the_voxels_above_the_threshold(world, tmp_path, calibseg):
    rules, out = tmp_path / "rules.json", tmp_path / "out"
    val = ("--predictions", world / "val/p", "--labels", world / "val/l")
    calibseg("decide", "fit", *val, "-o", rules, "--risk", "fnr=0.2")
    calibseg("decide", "apply", rules, "--predictions", world / "test/p", "--labels", world / "test/l", "-o", out)
    image = nib.load(out / "masks/fnr-0.2/2/c101.nii.gz")
    np.testing.assert_array_equal(image.affine, AFFINE)
    least = next(rule.numbers["threshold"] for rule in read_rules(rules).rules if rule.structure == "2")
    p = np.load(world / "test/p/c101.npz")["probabilities"][2].T
    np.testing.assert_array_equal(np.asarray(image.dataobj) == 1, p >= np.float32(least))


def test_masks_alone_give_the_same_margins_as_the_masks_of_probabilities(world, tmp_path):
    plain = decide_fit(CaseSource(folder(world, "val", "m"), masks=True), [Margin(0.9, 0.8)], tmp_path / "m.json")
    soft = decide_fit(CaseSource(folder(world, "val")), [Margin(0.9, 0.8)], tmp_path / "p.json")
    assert [rule.numbers for rule in plain.rules.rules] == [rule.numbers for rule in soft.rules.rules]
    sheet = decide_apply(plain.path, CaseSource(folder(world, "test", "m", labels=False), masks=True), tmp_path / "o")
    assert all(case["look_first"] is None for case in sheet.cases)
    assert not sheet.observed
    grown = nib.load(tmp_path / "o/masks/margin-0.9-0.8/1/c100.nii.gz")
    mask = np.asarray(nib.load(world / "test/m/c100.nii.gz").dataobj) == 1
    assert (np.asarray(grown.dataobj)[mask] == 1).all()
    with pytest.raises(BadInput, match="fitted on masks, and these are probabilities"):
        decide_apply(plain.path, CaseSource(folder(world, "test")), tmp_path / "o2")


def test_an_interrupted_fit_goes_on_where_it_stopped_and_makes_the_same_rules(world, tmp_path, fitted, monkeypatch):
    decisions, seen = [Volume(0.8), Margin(0.9, 0.8)], []

    def stop_after_five(done, total, case):
        seen.append(case)
        if done == 5:
            raise KeyboardInterrupt

    source, path = CaseSource(folder(world, "val")), tmp_path / "rules.json"
    with pytest.raises(KeyboardInterrupt):
        decide_fit(source, decisions, path, progress=stop_after_five)
    assert not path.exists()
    done = decide_fit(source, decisions, path)
    assert done.resumed == 5
    assert path.read_text() == fitted.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["rules.json"]


def test_what_was_applied_is_not_applied_again_unless_something_changed(world, tmp_path, fitted, monkeypatch):
    source, out = CaseSource(folder(world, "test", labels=True)), tmp_path / "out"
    first = decide_apply(fitted, source, out)
    text = (out / "sheet.json").read_text()
    calls = []
    whole = stage._passed
    monkeypatch.setattr(stage, "_passed", lambda *given: calls.append(given[1].case) or whole(*given))
    again = decide_apply(fitted, source, out)
    assert not calls
    assert (out / "sheet.json").read_text() == text
    assert again.observed == first.observed
    next((out / "masks").rglob("c102.nii.gz")).unlink()
    decide_apply(fitted, source, out)
    assert calls == ["c102"]


def test_what_a_killed_call_left_half_written_is_removed(world, tmp_path, fitted):
    out = tmp_path / "out"
    half = out / "masks/margin-0.9-0.8/1/.c100.nii.gz.123.tmp"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    decide_apply(fitted, CaseSource(folder(world, "test")), out)
    assert not list(out.rglob(".*"))


def test_cases_without_labels_get_decisions_and_no_losses(world, tmp_path, fitted):
    for number in range(100, 104):  # an .npz takes its place from the segmentation beside it
        (world / "test/p" / f"c{number}.nii.gz").write_bytes((world / "test/m" / f"c{number}.nii.gz").read_bytes())
    try:
        sheet = decide_apply(fitted, CaseSource(folder(world, "test", labels=False)), tmp_path / "out")
    finally:
        for path in (world / "test/p").glob("*.nii.gz"):
            path.unlink()
    assert not sheet.observed
    assert "loss" not in sheet.cases[0]["structures"]["1"]["rules"]["volume 0.8 absolute"]


def test_rules_are_refused_on_the_patients_they_were_fitted_on(world, tmp_path, fitted):
    with pytest.raises(BadInput, match="was fitted on case 'c0' or its patient: use it on others"):
        decide_apply(fitted, CaseSource(folder(world, "val")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["p", "m"])
def test_a_renamed_case_is_known_as_one_that_rules_were_fitted_on(world, tmp_path, kind):
    masks = kind == "m"
    source = CaseSource(folder(world, "val", kind), masks=masks)
    rules = decide_fit(source, [Margin(0.9, 0.8)], tmp_path / "rules.json").path
    for name in (kind, "l"):
        (old,) = (world / "val" / name).glob("c3.*")
        new = tmp_path / "new" / name / old.name.replace("c3", "somebody")
        new.parent.mkdir(parents=True)
        shutil.copy(old, new)
    with pytest.raises(BadInput, match=r"was fitted on .*somebody.* under another name"):
        decide_apply(rules, CaseSource(folder(tmp_path, "new", kind), masks=masks), tmp_path / "out")


def test_two_empty_masks_are_not_taken_for_one_patient(world, tmp_path):
    for name in ("m", "l"):
        shutil.copytree(world / "val" / name, tmp_path / "val" / name)
        (tmp_path / "new" / name).mkdir(parents=True)
    empty = nib.Nifti1Image(np.zeros(phantom(0)[1].T.shape, np.uint8), AFFINE)
    for path in ("val/m/c20", "val/l/c20", "new/m/c21", "new/l/c21"):
        nib.save(empty, tmp_path / f"{path}.nii")
    masks = [CaseSource(folder(tmp_path, name, "m"), masks=True) for name in ("val", "new")]
    rules = decide_fit(masks[0], [Margin(0.9, 0.8)], tmp_path / "rules.json").path
    assert len(decide_apply(rules, masks[1], tmp_path / "out").cases) == 1


@pytest.mark.parametrize("kind", ["p", "m", "l"])
def test_a_wrong_voxel_is_named_as_its_file_counts(world, tmp_path, kind):
    """The file's x runs to the left, the array's to the right. Of masks (m), also a wrong label (l) of them."""
    shutil.copytree(world / "test", tmp_path / "test")
    if kind == "p":
        p = np.load(world / "test/p/c100.npz")["probabilities"]
        p[0, 3, 2, 1] = np.nan
        np.savez(tmp_path / "test/p/c100.npz", probabilities=p)
    else:
        image = nib.load(world / f"test/{kind}/c100.nii.gz")
        array = np.asarray(image.dataobj).copy()
        array[1, 2, 3] = 77
        nib.save(nib.Nifti1Image(array, AFFINE), tmp_path / f"test/{kind}/c100.nii.gz")
    masks = kind != "p"
    places = ((world, "val"), (tmp_path, "test"))
    fit, new = (CaseSource(folder(*place, "m" if masks else "p"), masks=masks) for place in places)
    rules = decide_fit(fit, [Margin(0.9, 0.8)], tmp_path / "rules.json").path
    with pytest.raises(BadInput, match=r"c100.* at voxel \(x 1, y 2, z 3\) of the NIfTI file"):
        decide_apply(rules, new, tmp_path / "out")


def test_cases_of_one_patient_count_once(world, tmp_path):
    (tmp_path / "who.csv").write_text("case,patient\n" + "".join(f"c{i},p{i // 2}\n" for i in range(12)))
    from dataclasses import replace

    from calibseg.io.conventions import FileConventions

    source = CaseSource(replace(folder(world, "val"), files=FileConventions(patients=tmp_path / "who.csv")))
    done = decide_fit(source, [Volume(0.8)], tmp_path / "rules.json")
    assert [rule.patients for rule in done.rules.rules] == [6, 6]
    with pytest.raises(
        BadInput, match=r"6 patients with '1' cannot keep a promise at level 0.1: at least 9 are needed"
    ):
        decide_fit(source, [Volume(0.9)], tmp_path / "rules.json")


def test_a_region_is_a_structure_too_and_joint_shares_the_level(world, tmp_path, calibseg):
    val = ("--predictions", world / "val/p", "--labels", world / "val/l")
    code, _, error = calibseg("decide", "fit", *val, "-o", tmp_path / "r.json", "--regions", "both=1+2", "--volume",
                              "0.6,scale=relative", "--joint")  # fmt: skip
    assert code == 0, error
    rules = read_rules(tmp_path / "r.json")
    assert [(rule.structure, round(rule.alpha, 6)) for rule in rules.rules] == [
        ("1", 0.133333), ("2", 0.133333), ("both", 0.133333)]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--risk fnr=1.5", "alpha must lie strictly between 0 and 1"),
        ("--risk fnr=0", "alpha must lie strictly between 0 and 1"),
        ("--risk fnr", "not of the form NAME=LEVEL"),
        ("--risk nothing=0.1", "no decision named 'nothing'"),
        ("--risk fnr=0.05", "at least 19 are needed"),
        ("--volume 2", "level must lie strictly between 0 and 1"),
        ("--volume 0.8,scale=other", "scale"),
        ("--margin coverage=0,confidence=0.8", "coverage must lie above 0"),
        ("--margin covering=0.9", "no option of decision 'margin' named 'covering'"),
        ("--volume 0.8 --volume 0.8", "asked for twice"),
        ("", "nothing is to be decided"),
    ],
)
def test_what_cannot_be_promised_is_refused_and_nothing_is_written(world, tmp_path, calibseg, words, complaint):
    val = ("--predictions", world / "val/p", "--labels", world / "val/l")
    code, _, error = calibseg("decide", "fit", *val, "-o", tmp_path / "rules.json", *words.split())
    assert code == 2
    assert complaint in error
    assert not list(tmp_path.iterdir())


def test_masks_are_refused_where_probabilities_are_needed(world, tmp_path, calibseg):
    code, _, error = calibseg("decide", "fit", "--masks", world / "val/m", "--labels", world / "val/l", "-o",
                              tmp_path / "r.json", "--risk", "fnr=0.2")  # fmt: skip
    assert (code, "needs probabilities, and masks alone have none" in error) == (2, True)
