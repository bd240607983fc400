"""Scoring anybody's folder, through the command line: known answers, bad input, resuming, workers."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from calibseg import cli
from calibseg.analysis import table
from calibseg.api import score

QUICK = ("dsc", "ece", "hd95")


def save(path, array, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine), path)


def save_case(folder, name, p, labels, affine=None):
    """p [k x y z] and labels [x y z], as NIfTI has its axes; the prediction as nnU-Net stores it."""
    (folder / "p").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "p" / f"{name}.npz", probabilities=p.transpose(0, 3, 2, 1))
    save(folder / "l" / f"{name}.nii.gz", labels.astype(np.uint8), affine)


def row_of_voxels(foreground, labels):
    """Two classes, a row of voxels along x."""
    one = np.array(foreground, np.float32)[:, None, None]
    return np.stack([1 - one, one]), np.array(labels)[:, None, None]


def random_case(seed, shape=(9, 8, 7), classes=3):
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, int)
    labels[2:6, 2:6, 2:5] = 1
    labels[5:8, 3:7, 3:6] = classes - 1
    scores = np.stack([labels == k for k in range(classes)]) * 2.0 + rng.normal(size=(classes, *shape))
    p = np.exp(scores)
    return (p / p.sum(0)).astype(np.float32), labels


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        save_case(tmp_path, f"case{number}", *random_case(number), affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    return tmp_path


def values_of(path, **chosen):
    rows = table.read(path).rows
    for column, value in chosen.items():
        rows = rows[rows[column.rstrip("_")] == value]
    return rows["value"].tolist()


# --- known answers ---------------------------------------------------------------------------------------------------


def test_a_folder_with_known_answers(tmp_path, calibseg):
    # predicted 1 1 1 0; truth 1 0 1 0
    save_case(tmp_path, "a", *row_of_voxels([0.9, 0.9, 0.6, 0.2], [1, 0, 1, 0]), affine=np.diag([2.0, 1.0, 1.0, 1.0]))
    (tmp_path / "p" / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "organ": 1}}))
    output = tmp_path / "out" / "scores.csv"
    code, out, _ = calibseg("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l", "-o", output)
    assert code == 0

    def value(metric, voxels="", class_="all", scope="case"):
        return pytest.approx(values_of(output, metric=metric, voxels=voxels, class_=class_, scope=scope)[0], abs=1e-6)

    assert value("ece", "predicted") == (2 * abs(0.9 - 1 / 2) + abs(0.6 - 1)) / 3
    assert value("ece", "truth") == (abs(0.9 - 1) + abs(0.6 - 1)) / 2
    assert value("ece", "all") == (2 * abs(0.9 - 1 / 2) + abs(0.6 - 1) + abs(0.8 - 1)) / 4
    assert value("nll", "all") == -(math.log(0.9) + math.log(0.1) + math.log(0.6) + math.log(0.8)) / 4
    assert value("brier", "all") == 2 * (0.01 + 0.81 + 0.16 + 0.04) / 4
    assert value("dsc", class_="organ") == 2 * 2 / (2 + 3)
    assert value("dsc", class_="organ", scope="pooled") == 0.8
    assert value("hd", class_="organ") == 0.0  # along a row both have their ends at 0 and 4 mm
    assert not values_of(output, metric="hd95", scope="pooled")  # distances belong to a case
    assert "truth (paper rule)" in out
    assert "a perfect predictor does not score 0 here" in out
    assert "1 of 1" in out
    bins = pd.read_csv(tmp_path / "out" / "bins.csv")
    chosen = bins[(bins["voxels"] == "predicted") & (bins["class"] == "all") & (bins["scope"] == "case")]
    assert chosen["count"].sum() == 3
    assert chosen[chosen["count"] == 2]["accuracy"].tolist() == [0.5]
    meta = json.loads((tmp_path / "out" / "scores.meta.json").read_text())
    assert meta["rules"]["datasets"] == {"": {"classes": ["background", "organ"], "regions": {}, "ignore_label": None}}
    assert meta["headline"] == ["ece@predicted", "nll@all", "brier@all"]
    assert sorted(path.name for path in output.parent.iterdir()) == ["bins.csv", "scores.csv", "scores.meta.json"]


def test_distances_are_in_mm_or_in_voxels(tmp_path):
    labels = np.array([0, 0, 0, 1])[:, None, None]
    affine = np.array([[0.0, 0, 3, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 1]])  # the file's first axis is z, 2 mm
    save_case(tmp_path, "a", row_of_voxels([0.9, 0.1, 0.1, 0.1], [])[0], labels, affine=affine)
    for units, expected in (("mm", 6.0), ("voxel", 3.0)):
        rules = {"metrics": ("hd",), "units": units}
        score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "scores.csv", **rules)
        assert values_of(tmp_path / "scores.csv", metric="hd", unit=units) == [expected]


def by_hand(p, labels, keep):
    """ECE of the voxels in `keep`, bin by bin."""
    confidence, right = p.max(0)[keep].astype(float), (p.argmax(0) == labels)[keep]
    error = 0.0
    for low in range(15):
        here = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if here.any():
            error += abs(confidence[here].mean() - right[here].mean()) * here.sum()
    return error / keep.sum()


def test_cases_and_pool_agree_with_a_calculation_by_hand(folder):
    output = folder / "scores.csv"
    score(predictions=folder / "p", labels=folder / "l", output=output, metrics=QUICK)
    found = [random_case(number) for number in range(4)]
    expected = [by_hand(p, y, p.argmax(0) > 0) for p, y in found]
    assert values_of(output, metric="ece", voxels="predicted", class_="all", scope="case") == pytest.approx(expected)
    assert values_of(output, metric="ece", voxels="truth", class_="all", scope="case") == pytest.approx(
        [by_hand(p, y, y > 0) for p, y in found]
    )
    p, y = np.concatenate([p for p, _ in found], axis=1), np.concatenate([y for _, y in found])
    pooled = values_of(output, metric="ece", voxels="all", class_="all", scope="pooled")
    assert pooled == [pytest.approx(by_hand(p, y, y >= 0))]
    both, sizes = ((p.argmax(0) == 2) & (y == 2)).sum(), (p.argmax(0) == 2).sum() + (y == 2).sum()
    assert values_of(output, metric="dsc", class_="2", scope="pooled") == [2 * both / sizes]


def test_every_format_gives_the_same_table(folder):
    affine = np.diag([1.0, 2.0, 3.0, 1.0])
    for number in range(4):
        p, _ = random_case(number)
        last = np.moveaxis(p, 0, -1)
        save(folder / "nifti" / f"case{number}.nii", last, affine)
        for k in range(3):
            save(folder / "classes" / f"case{number}_class{k}.nii.gz", last[..., k], affine)
    texts = []
    for name in ("p", "nifti", "classes"):
        output = folder / f"out-{name}" / "scores.csv"
        score(predictions=folder / name, labels=folder / "l", output=output)
        texts.append(output.read_text())
    assert texts[0] == texts[1] == texts[2]


def test_logits_give_what_their_probabilities_give(tmp_path):
    p, labels = random_case(0)
    save_case(tmp_path, "a", p, labels)
    (tmp_path / "logits").mkdir()
    np.savez(tmp_path / "logits" / "a.npz", logits=np.log(p.transpose(0, 3, 2, 1)) + 3)
    score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "one.csv")
    score(predictions=tmp_path / "logits", labels=tmp_path / "l", output=tmp_path / "two.csv", kind="logits")
    one, two = table.read(tmp_path / "one.csv").rows, table.read(tmp_path / "two.csv").rows
    assert np.allclose(one["value"], two["value"], atol=1e-6, equal_nan=True)


def test_regions_and_metric_options_from_the_command_line(folder, calibseg):
    output = folder / "scores.csv"
    code, _, _ = calibseg(
        "score", "--predictions", folder / "p", "--labels", folder / "l", "-o", output, "--metrics", "dsc,hd95",
        "--classes", "background,head,tail", "--regions", "whole=head+tail", "--units", "voxel", "--tag", "loss=nacl",
        "--tag", "dataset=hippo", "--option", "hd95.definition=max_directed",
    )  # fmt: skip
    assert code == 0
    read = table.read(output)
    assert set(read.rows["class"]) == {"head", "tail", "whole"}
    assert set(read.rows.loc[read.rows["metric"] == "hd95", "unit"]) == {"voxel"}
    assert set(read.rows["loss"]) == {"nacl"}
    assert read.rules is not None
    assert read.rules["metrics"]["hd95"] == {"definition": "max_directed", "empty": "nan"}
    assert read.rules["datasets"]["hippo"]["regions"] == {"whole": [1, 2]}
    p, y = random_case(0)
    both, sizes = ((p.argmax(0) > 0) & (y > 0)).sum(), (p.argmax(0) > 0).sum() + (y > 0).sum()
    assert values_of(output, metric="dsc", class_="whole", case="case0") == [2 * both / sizes]


def test_sigmoid_channels_are_the_regions_of_nnunet(tmp_path):
    labels = np.array([0, 1, 2, 2])[:, None, None]
    whole, core = [0.2, 0.9, 0.8, 0.3], [0.1, 0.6, 0.9, 0.7]  # whole is 0 1 1 1, core 0 0 1 1
    save_case(tmp_path, "a", np.array([whole, core], np.float32)[:, :, None, None], labels)
    (tmp_path / "p" / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "whole": [1, 2], "core": 2}}))
    score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "scores.csv", activation="sigmoid")
    rows = tmp_path / "scores.csv"
    assert values_of(rows, metric="dsc", class_="whole", scope="case") == [2 * 2 / (2 + 3)]
    assert values_of(rows, metric="dsc", class_="core", scope="case") == [2 * 2 / (3 + 2)]
    nll = -(math.log(0.8) + math.log(0.9) + math.log(0.8) + math.log(0.3)) / 4
    assert values_of(rows, metric="nll", voxels="all", class_="whole", scope="case") == [pytest.approx(nll)]


def test_ignored_voxels_count_for_nobody(tmp_path):
    p, labels = row_of_voxels([0.9, 0.9, 0.6, 0.2], [1, 0, 1, 0])
    save_case(tmp_path, "a", p, labels)
    save_case(tmp_path / "more", "a", *row_of_voxels([0.9, 0.9, 0.6, 0.2, 0.7, 0.1], [1, 0, 1, 0, 2, 2]))
    (tmp_path / "more" / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "organ": 1, "ignore": 2}}))
    calibration = {"metrics": ("ece", "nll", "brier", "dsc")}
    score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "one.csv", **calibration)
    score(
        predictions=tmp_path / "more" / "p", labels=tmp_path / "more" / "l", output=tmp_path / "two.csv", **calibration
    )
    one, two = table.read(tmp_path / "one.csv").rows, table.read(tmp_path / "two.csv").rows
    assert np.array_equal(one["value"], two["value"], equal_nan=True)


def test_a_missed_organ_is_undefined_and_counted_or_the_worst(tmp_path, calibseg):
    save_case(tmp_path, "found", *row_of_voxels([0.9, 0.1, 0.1], [1, 0, 0]))
    save_case(tmp_path, "missed", *row_of_voxels([0.1, 0.1, 0.1], [1, 0, 0]))
    folders = ("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l")
    code, out, _ = calibseg(*folders, "-o", tmp_path / "scores.csv")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("hd95") and "1 of 2" in line]
    assert math.isnan(values_of(tmp_path / "scores.csv", metric="hd95", case="missed")[0])
    assert math.isnan(values_of(tmp_path / "scores.csv", metric="ece", voxels="predicted", case="missed")[0])
    calibseg(*folders, "--empty", "worst", "-o", tmp_path / "worst.csv")
    assert values_of(tmp_path / "worst.csv", metric="hd95", case="missed") == [pytest.approx(math.sqrt(9 + 1 + 1))]


def test_a_folder_in_which_nothing_is_predicted_is_scored(tmp_path):
    save_case(tmp_path, "missed", *row_of_voxels([0.1, 0.1, 0.1], [1, 0, 0]))
    found = score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "scores.csv").summary
    chosen = found[(found["metric"] == "ece") & (found["voxels"] == "predicted") & (found["class"] == "all")].iloc[0]
    assert (chosen["defined"], chosen["cases"]) == (0, 1)
    assert found[["mean", "low", "high"]].isna().all(axis=1).any()


def test_boundary_voxels_and_the_curve_over_distance(tmp_path):
    save_case(tmp_path, "a", *row_of_voxels([0.1, 0.1, 0.3, 0.8, 0.9, 0.9], [0, 0, 0, 1, 1, 1]))
    rules = {"voxels": ("boundary", "all"), "metrics": ("ece", "tace"), "boundary_mm": 1.0}
    score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "scores.csv", **rules)
    # the two voxels at the boundary are 1 mm from the other side: confidence 0.7 and 0.8, both right
    near = values_of(tmp_path / "scores.csv", metric="ece", voxels="boundary", class_="all", scope="case")
    assert near == [pytest.approx((0.3 + 0.2) / 2)]
    far = values_of(tmp_path / "scores.csv", metric="ece", voxels="1 to 2 mm", class_="all", scope="case")
    assert far == [pytest.approx(0.1)]
    assert values_of(tmp_path / "scores.csv", metric="tace", voxels="all", class_="all", scope="case")


def test_patients_of_several_cases_are_resampled_together(folder, calibseg):
    (folder / "who.csv").write_text("case,patient\ncase0,anna\ncase1,anna\ncase2,ben\ncase3,ben\n")
    found = score(
        predictions=folder / "p",
        labels=folder / "l",
        output=folder / "scores.csv",
        metrics=QUICK,
        patients=folder / "who.csv",
    )
    row = found.summary[(found.summary["metric"] == "dsc") & (found.summary["class"] == "1")].iloc[0]
    each = values_of(folder / "scores.csv", metric="dsc", class_="1", scope="case")
    anna, ben = (each[0] + each[1]) / 2, (each[2] + each[3]) / 2
    assert (row["low"], row["high"]) == pytest.approx((min(anna, ben), max(anna, ben)))


DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[3] / "shared" / "data")) / "Task04_Hippocampus"


@pytest.mark.skipif(not DATA.is_dir(), reason="the hippocampus data of the Medical Segmentation Decathlon is not here")
def test_decathlon_labels_bring_their_names(tmp_path):
    (tmp_path / "labelsTr").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "dataset.json").write_text((DATA / "dataset.json").read_text())
    for path in sorted((DATA / "labelsTr").glob("h*.nii.gz"))[:2]:
        (tmp_path / "labelsTr" / path.name).write_bytes(path.read_bytes())
        image = nib.load(path)
        labels = np.asanyarray(image.dataobj)
        sure = np.stack([np.where(labels == k, 0.98, 0.01) for k in range(3)], axis=-1).astype(np.float32)
        nib.save(nib.Nifti1Image(sure, image.affine), tmp_path / "p" / path.name)
    found = score(
        predictions=tmp_path / "p", labels=tmp_path / "labelsTr", output=tmp_path / "scores.csv", metrics=QUICK
    )
    summary = found.summary.set_index(["metric", "voxels", "class"])["mean"]
    assert summary["dsc", "", "Anterior"] == summary["dsc", "", "Posterior"] == 1.0
    assert summary["dsc", "", "(mean)"] == 1.0
    assert summary["ece", "all", "all"] == pytest.approx(0.02, abs=1e-6)  # 98 % sure and always right


# --- bad input -------------------------------------------------------------------------------------------------------


def spoil(change):
    p, labels = random_case(0)
    change(p)
    return p, labels


BAD = {
    "does not sum to 1": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[1].__setitem__((1, 2, 3), p[1, 1, 2, 3] + 0.25))),
        r"p/a\.npz: probabilities sum to 1\.25 instead of 1 at voxel \(3, 2, 1\)",
    ),
    "NaN": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan))),
        r"p/a\.npz: .*NaN.* at voxel \(0, 0, 0\)",
    ),
    "negative": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[:, 0, 0, 0].__setitem__(slice(None), [-1.0, 1.0, 1.0]))),
        r"p/a\.npz: probabilities are -1, 1, 1 at voxel \(0, 0, 0\)",
    ),
    "label outside": (
        lambda f: save_case(f, "a", random_case(0)[0], random_case(0)[1] + 1),
        r"l/a\.nii\.gz holds the label 3 at voxel \(\d+, \d+, \d+\), which is none of the 3 classes 0 to 2",
    ),
    "other shape": (
        lambda f: save_case(f, "a", random_case(0)[0], random_case(0, (9, 8, 6))[1]),
        r"p/a\.npz has the shape \(3, 7, 8, 9\), but .*l/a\.nii\.gz asks for \(classes, 6, 8, 9\)",
    ),
    "other place": (
        lambda f: (
            save(f / "p" / "a.nii.gz", np.moveaxis(random_case(0)[0], 0, -1), np.diag([2.0, 1, 1, 1])),
            save(f / "l" / "a.nii.gz", random_case(0)[1].astype(np.uint8)),
        ),
        r"p/a\.nii\.gz lies elsewhere than .*l/a\.nii\.gz: their affines put one corner 8 mm apart",
    ),
    "missing pair": (
        lambda f: (save_case(f, "a", *random_case(0)), save(f / "l" / "b.nii.gz", np.zeros((2, 2, 2), np.uint8))),
        r"l/b\.nii\.gz has no prediction in .*p: no b\.npz there",
    ),
    "no labels": (
        lambda f: (save_case(f, "a", *random_case(0)), (f / "l" / "a.nii.gz").unlink()),
        r"l holds no label file",
    ),
    "no folder": (lambda f: None, r"no folder .*p"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_exit_code_2_and_no_file(tmp_path, calibseg, make, message):
    make(tmp_path)
    output = tmp_path / "out" / "scores.csv"
    code, _, err = calibseg("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l", "-o", output)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert not output.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--voxels", "foreground"], "no voxel rule named 'foreground'. Known: truth, predicted, union, all, boundary"),
        (["--metrics", "dcs"], "no metric named 'dcs'. Did you mean 'dsc'?"),
        (["--option", "hd95.definitoin=pooled"], "metric 'hd95' has no option 'definitoin'. Known: definition, empty"),
        (["--option", "hd95"], "--option 'hd95' is not of the form METRIC.OPTION=VALUE"),
        (["--tag", "los=nacl"], "no experiment column named 'los'"),
        (["--classes", "background,a"], "has 3 channels"),
        (["--classes", "background,a,a"], "the name 'a' stands for two of: background, a, a, all"),
        (["--regions", "x=7"], "region 'x' holds class 7; the foreground classes are 1 to 2"),
        (["--workers", "0"], "--workers is 0"),
        (["--patients", "nobody.csv"], "nobody.csv cannot be read as a table of patients"),
        (["--activation", "sigmoid"], "3 sigmoid channels: --classes or --regions must say what they stand for"),
    ],
)
def test_wrong_options_are_one_sentence_and_no_file(folder, calibseg, arguments, message):
    output = folder / "out" / "scores.csv"
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "-o", output, *arguments)
    code, _, err = calibseg(*given)
    assert code == 2
    assert message in err
    assert not output.parent.exists()


def test_skip_bad_goes_on_and_lists_what_it_left_out(folder, calibseg):
    save_case(folder, "case1", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))
    (folder / "l" / "case2.nii.gz").unlink()
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "--metrics", "dsc,ece")
    code, out, _ = calibseg(*given, "--skip-bad", "-o", folder / "out" / "scores.csv")
    assert code == 0
    assert set(values_cases(folder / "out" / "scores.csv")) == {"case0", "case3"}
    assert "left out:" in out
    left_out = json.loads((folder / "out" / "scores.meta.json").read_text())["left_out"]
    assert ["case2.npz has no label" in left_out[0], "case1.npz" in left_out[1], len(left_out)] == [True, True, 2]


def values_cases(path):
    rows = table.read(path).rows
    return rows.loc[rows["scope"] == "case", "case"].tolist()


def test_skip_bad_with_nothing_left_is_an_error(tmp_path, calibseg):
    save_case(tmp_path, "a", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))
    given = ("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l", "--skip-bad")
    code, _, err = calibseg(*given, "-o", tmp_path / "out" / "scores.csv")
    assert code == 2
    assert "could be scored: " in err
    assert not (tmp_path / "out").exists()


def test_files_with_different_numbers_of_classes_are_not_mixed(folder, calibseg):
    save_case(folder, "case3", *random_case(3, classes=4))
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "--metrics", "dsc")
    code, _, err = calibseg(*given, "-o", folder / "out" / "scores.csv")
    assert code == 2
    assert "the prediction of case case3 has 4 classes, but that of case case0 has 3" in err


# --- resuming and workers --------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from calibseg.api import score

def stop(done, total, case):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
score(predictions=folder / "p", labels=folder / "l", output=folder / "out" / "scores.csv",
      metrics=("dsc", "ece", "hd95", "tace"), progress=stop)
"""
RESUMED = {"metrics": ("dsc", "ece", "hd95", "tace")}


def test_a_killed_run_goes_on_where_it_stopped_and_ends_the_same(folder):
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, folder], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    output, other = folder / "out" / "scores.csv", folder / "other" / "scores.csv"
    assert not output.exists()
    assert len(list((folder / "out" / ".scores.unfinished").iterdir())) == 2
    shutil.copytree(folder / "out", folder / "other")

    resumed = score(predictions=folder / "p", labels=folder / "l", output=output, **RESUMED)
    assert resumed.resumed == 2
    fresh = score(predictions=folder / "p", labels=folder / "l", output=folder / "fresh" / "scores.csv", **RESUMED)
    assert fresh.resumed == 0
    for name in ("scores.csv", "bins.csv", "scores.meta.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "fresh" / name).read_bytes()
    assert not (folder / "out" / ".scores.unfinished").exists()

    kept = next((folder / "other" / ".scores.unfinished").glob("case1*"))
    kept.write_bytes(kept.read_bytes()[:100])  # what is damaged is measured again, and so is a file that has changed
    save_case(folder, "case0", *random_case(9), affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    assert score(predictions=folder / "p", labels=folder / "l", output=other, **RESUMED).resumed == 0
    changed = score(predictions=folder / "p", labels=folder / "l", output=folder / "fresh" / "scores.csv", **RESUMED)
    assert table.read(other).rows.equals(changed.table.rows)
    assert not fresh.table.rows.equals(changed.table.rows)


def test_the_number_of_workers_changes_nothing(folder):
    save_case(folder, "case4", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))  # also what is wrong comes back
    left_out = []
    for workers in (1, 2):
        output = folder / str(workers) / "scores.csv"
        left_out.append(
            score(predictions=folder / "p", labels=folder / "l", output=output, workers=workers, skip_bad=True).bad
        )
    assert "case4.npz: " in left_out[0][0]
    assert left_out[0] == left_out[1]
    for name in ("scores.csv", "bins.csv", "scores.meta.json"):
        assert (folder / "1" / name).read_bytes() == (folder / "2" / name).read_bytes()


# --- ranking what was scored -----------------------------------------------------------------------------------------


def test_strangers_folders_are_ranked_by_name(folder, calibseg):
    for number in range(4):
        p, labels = random_case(number)
        sharp = p**3 / (p**3).sum(0)
        save_case(folder / "sharp", f"case{number}", sharp, labels, affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    rules = {"metrics": ("dsc", "hd95", "ece", "cece", "nll")}
    score(predictions=folder / "p", labels=folder / "l", output=folder / "plain.csv", **rules)
    score(predictions=folder / "sharp" / "p", labels=folder / "sharp" / "l", output=folder / "sharp.csv", **rules)
    given = ("rank", "--method", f"plain={folder}/plain.csv", "--method", f"sharp={folder}/sharp.csv")
    code, out, _ = calibseg(
        *given, "--metrics", "dsc,nll,ece@truth", "--compare", "plain,sharp", "-o", folder / "ranks.csv"
    )
    assert code == 0
    assert "plain minus sharp" in out
    ranks = pd.read_csv(folder / "ranks.csv", keep_default_na=False)
    columns = ranks[ranks["ranking"] == "column"].set_index(["metric", "method"])
    assert columns.loc[("dsc", "plain"), "rank"] == columns.loc[("dsc", "sharp"), "rank"] == 1.0  # the same argmax
    plain = values_of(folder / "plain.csv", metric="nll", voxels="all", class_="all", scope="case")
    assert float(columns.loc[("nll@all", "plain"), "mean"]) == pytest.approx(np.mean(plain))
    meta = json.loads((folder / "ranks.meta.json").read_text())
    assert meta["format"] == "calibseg-ranks/1"
    assert meta["parts"][0]["friedman_tests"]["nll@all"]["blocks"] == 4
    assert [row["metric"] for row in meta["parts"][0]["differences"]] == ["dsc", "nll@all", "ece@truth"]


def test_unnamed_or_differently_scored_tables_are_not_ranked(folder, calibseg):
    score(predictions=folder / "p", labels=folder / "l", output=folder / "a.csv", metrics=QUICK)
    score(predictions=folder / "p", labels=folder / "l", output=folder / "b.csv", metrics=QUICK, units="voxel")
    code, _, err = calibseg("rank", folder / "a.csv", folder / "a.csv")
    assert code == 2
    assert "rows appear twice" in err
    given = ("rank", folder / "a.csv", "--method", f"b={folder}/b.csv", "-o", folder / "ranks.csv")
    code, _, err = calibseg(*given)
    assert code == 2
    assert 'units is "voxel" in it, not "mm"' in err
    assert not (folder / "ranks.csv").exists()


def test_datasets_can_be_ranked_apart(folder, calibseg):
    for dataset in ("one", "two"):
        for loss in ("ce", "nacl"):
            tags = {"dataset": dataset, "loss": loss}
            output = folder / f"{dataset}-{loss}.csv"
            score(predictions=folder / "p", labels=folder / "l", output=output, metrics=QUICK, experiment=tags)
    paths = sorted(folder.glob("*-*.csv"))
    paths = [path for path in paths if "bins" not in path.name]
    code, out, _ = calibseg("rank", *paths, "--metrics", "dsc,ece", "--by", "dataset", "-o", folder / "ranks.csv")
    assert code == 0
    assert "dataset one" in out
    assert set(pd.read_csv(folder / "ranks.csv")["part"]) == {"one", "two"}


@pytest.mark.parametrize("command", ["score", "rank"])
def test_help_has_examples_and_is_quick_to_load(command):
    code = (
        "import sys\nfrom calibseg.cli import main\nsys.argv = ['calibseg', sys.argv[1], '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, command], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert f"calibseg {command}" in done.stdout.decode()
