"""Scoring anybody's folder, through the command line: known answers."""

import json
import math

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.api import score
from support.real_data import DATA
from support.scored_folders import QUICK, random_case, row_of_voxels, save, save_case, values_of


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
    assert meta["rules"]["least_probability"] == 2.0**-24
    assert meta["clipped_voxels"] == 0
    assert sorted(path.name for path in output.parent.iterdir()) == ["bins.csv", "scores.csv", "scores.meta.json"]


def test_the_nll_of_a_stored_zero_is_the_same_in_every_file_and_counted(tmp_path):
    for bits in (16, 32, 64):
        folder = tmp_path / str(bits)
        probabilities, labels = row_of_voxels([1.0, 0.5, 0.0], [0, 1, 0])
        save_case(folder, "a", probabilities.astype(f"float{bits}"), labels)
        score(predictions=folder / "p", labels=folder / "l", output=folder / "scores.csv", metrics=("nll",))
        found = values_of(folder / "scores.csv", metric="nll", voxels="all", class_="all", scope="case")
        assert found == pytest.approx([25 * math.log(2) / 3], rel=1e-12)
        assert json.loads((folder / "scores.meta.json").read_text())["clipped_voxels"] == 1


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


HIPPOCAMPUS = DATA / "Task04_Hippocampus"


@pytest.mark.skipif(
    not HIPPOCAMPUS.is_dir(), reason="the hippocampus data of the Medical Segmentation Decathlon is not here"
)
def test_decathlon_labels_bring_their_names(tmp_path):
    (tmp_path / "labelsTr").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "dataset.json").write_text((HIPPOCAMPUS / "dataset.json").read_text())
    for path in sorted((HIPPOCAMPUS / "labelsTr").glob("h*.nii.gz"))[:2]:
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
