"""`score` with several raters and with the members of an ensemble: folders, runs, the phantom and LIDC."""

import numpy as np
import pytest

from calibseg import api
from calibseg.analysis import table
from calibseg.core.types import BadInput
from calibseg.data.datasets import LIDC4, Phantom
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.stages.score.channels import agreed
from support.calibrated_folders import run_cli
from support.real_data import DATA
from support.scored_folders import random_case, save, save_case

RATERS = ("rater_dsc", "rater_ece", "consensus_dsc", "consensus_confidence", "thresholded_dsc", "volume_crps")


def value(path, metric, voxels="", name="1", case="a"):
    rows = table.plain(table.read(path).rows)
    chosen = (rows["metric"] == metric) & (rows["voxels"] == voxels) & (rows["class"] == name) & (rows["case"] == case)
    (found,) = rows[chosen]["value"]
    return found


@pytest.fixture
def study(tmp_path):
    """Two cases, each with three raters (r1 is l) and an ensemble of three."""
    for name, seed in (("a", 0), ("b", 7)):
        p, labels = random_case(seed)
        save_case(tmp_path, name, p, labels)
        for rater in (1, 2):
            moved = np.roll(labels, rater, 0)
            save(tmp_path / f"r{rater}" / f"{name}.nii.gz", moved.astype(np.uint8))
        for member in range(3):
            own, _ = random_case(seed + 100 * (member + 1))
            save_case(tmp_path / f"m{member}", name, own, labels)
    return tmp_path


def score(study, output="scores.csv", *words):
    where = ["--predictions", study / "p", "-o", study / output, *words]
    done = run_cli(["score", *where])
    assert done.exit_code == 0, done.exception or done.output
    return study / output


def test_each_rater_has_the_values_of_a_table_of_his_own(study):
    several = score(study, "all.csv", "--labels", study / "l", "--raters", study / "r1", "--raters", study / "r2")
    for number, folder in enumerate(("l", "r1", "r2"), start=1):
        alone = score(study, f"{folder}.csv", "--labels", study / folder)
        assert value(several, "rater_dsc", f"rater {number}") == pytest.approx(value(alone, "dsc"), abs=1e-9)
        for rule in ("predicted", "all"):
            of_rater = value(several, "rater_ece", f"{rule} rater {number}", "all")
            assert of_rater == pytest.approx(value(alone, "ece", rule, "all"), abs=1e-9)
    assert value(several, "rater_dsc") == pytest.approx(
        np.mean([value(several, "rater_dsc", f"rater {number}") for number in (1, 2, 3)])
    )
    assert value(several, "rater_ece", "all", "all") >= value(several, "ece", "all", "all")


def test_the_truth_of_calibration_is_the_share_of_the_raters(study):
    several = score(study, "all.csv", "--raters", study / "l", "--raters", study / "r1", "--raters", study / "r2")
    p, labels = random_case(0)
    raters = np.stack([labels, np.roll(labels, 1, 0), np.roll(labels, 2, 0)])
    share = np.stack([(raters == k).mean(0) for k in range(3)])
    wanted = ECE().value(calibration_statistics(p, share, kind="probabilities").on("all"))[None]
    assert value(several, "ece", "all", "all") == pytest.approx(wanted, abs=1e-9)


def test_a_rater_who_ignores_a_voxel_has_no_vote_in_the_label_that_most_gave(study):
    """Two of three raters ignore half of the case: what is left is the third's label, as in the share."""
    _, labels = random_case(0)
    for rater in (1, 2):
        half = np.where(np.arange(labels.shape[0])[:, None, None] < labels.shape[0] // 2, 9, labels)
        save(study / f"h{rater}" / "a.nii.gz", half.astype(np.uint8))
    words = ("--ignore-label", "9", "--voxels", "all,boundary")
    several = score(study, "all.csv", "--labels", study / "l", "--raters", study / "h1", "--raters", study / "h2",
                    "--skip-bad", *words)  # fmt: skip
    alone = score(study, "alone.csv", "--labels", study / "l", *words)
    for metric, rule in (("dsc", ""), ("hd95", ""), ("ece", "boundary"), ("ece", "all")):
        name = "all" if rule else "1"
        assert value(several, metric, rule, name) == pytest.approx(value(alone, metric, rule, name), abs=1e-9)


def test_an_ignored_label_wins_no_tie_whatever_its_number():
    raters = np.array([[1, -1, 2, -1], [-1, -1, 0, 2]], np.int16).reshape(2, 1, 1, 4)
    assert agreed(raters, -1).ravel().tolist() == [1, -1, 0, 2]
    raters = np.where(raters == -1, 255, raters).astype(np.uint8)
    assert agreed(raters, 255).ravel().tolist() == [1, 255, 0, 2]


def test_labels_and_raters_are_the_same_as_raters_alone_and_as_python(study):
    one = score(study, "one.csv", "--labels", study / "l", "--raters", study / "r1")
    other = score(study, "other.csv", "--raters", study / "l", "--raters", study / "r1")
    assert table.read(one).rows.equals(table.read(other).rows)
    api.score(predictions=study / "p", raters=[study / "l", study / "r1"], output=study / "python.csv")
    assert table.read(one).rows.equals(table.read(study / "python.csv").rows)


def test_one_rater_has_no_rows_of_several(study):
    alone = score(study, "alone.csv", "--labels", study / "l")
    assert not set(RATERS) & set(table.read(alone).rows["metric"])


def test_sigmoid_channels_have_raters_too(study):
    for name in ("a", "b"):
        p = np.load(study / "p" / f"{name}.npz")["probabilities"]
        np.savez(study / "p" / f"{name}.npz", probabilities=p[1:])
    words = ("--labels", study / "l", "--raters", study / "r1", "--activation", "sigmoid", "--classes", "none,x,y")
    both = score(study, "both.csv", *words)
    alone = score(study, "alone.csv", "--labels", study / "r1", *words[4:])
    assert value(both, "rater_dsc", "rater 2", "x") == pytest.approx(value(alone, "dsc", "", "x"))
    assert value(both, "rater_ece", "all rater 2", "y") == pytest.approx(value(alone, "ece", "all", "y"))
    assert 0 <= value(both, "thresholded_dsc", "", "y") <= 1


def test_members_of_an_ensemble_agree_as_their_label_maps_do(study):
    members = [word for number in range(3) for word in ("--members", study / f"m{number}" / "p")]
    both = score(study, "both.csv", "--labels", study / "l", "--raters", study / "r1", *members)
    maps = [random_case(100 * (number + 1))[0].argmax(0) == 1 for number in range(3)]
    dice = [2 * (maps[a] & maps[b]).sum() / (maps[a].sum() + maps[b].sum()) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert value(both, "pairwise_dsc") == pytest.approx(np.mean(dice))
    assert value(both, "energy_distance") > 0
    without = score(study, "without.csv", "--labels", study / "l", *members)
    assert "energy_distance" not in set(table.read(without).rows["metric"])
    assert value(without, "pairwise_dsc") == pytest.approx(np.mean(dice))


@pytest.mark.parametrize("method", ["temperature", "local_temperature"])
def test_a_calibrated_prediction_keeps_its_raters_and_members(study, method):
    for name in ("a", "b", "va", "vb"):  # local temperatures look at images
        image = np.random.default_rng(0).random(random_case(0)[1].shape)
        save(study / "images" / f"{name}.nii.gz", image.astype(np.float32))
    images = ("--images", study / "images")
    words = ["--predictions", study / "m0" / "p", "--labels", study / "m0" / "l", "--patients", study / "who.csv"]
    for name in ("a", "b"):
        for end, folder in ((".npz", "p"), (".nii.gz", "l")):
            (study / "m0" / folder / f"{name}{end}").rename(study / "m0" / folder / f"v{name}{end}")
    (study / "who.csv").write_text("case,patient\nva,p1\nvb,p2\n")
    words += [*images, "--option", "local_temperature.epochs=1"] if method == "local_temperature" else []
    assert run_cli(["calibrate", *words, "--method", method, "-o", study / "fit"]).exit_code == 0
    members = [word for number in (1, 2) for word in ("--members", study / f"m{number}" / "p")]
    more = ("--labels", study / "l", "--raters", study / "r1", *members)
    plain, calibrated = (
        score(study, f"{name}.csv", *more, "--calibrator", fitted, *(images if name == "calibrated" else ()))
        for name, fitted in (("plain", "none"), ("calibrated", study / "fit" / method))
    )
    assert value(calibrated, "rater_dsc") == pytest.approx(value(plain, "rater_dsc"))
    assert value(calibrated, "pairwise_dsc") == pytest.approx(value(plain, "pairwise_dsc"))
    if method == "temperature":  # one epoch does not move local temperatures from 1 here
        assert value(calibrated, "volume_crps") != pytest.approx(value(plain, "volume_crps"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--raters", "l"], "--raters names one folder"),
        (["--raters", "l", "--raters", "l"], "named as the labels of two raters"),
        (["--raters", "l", "--raters", "nowhere"], "no folder"),
        (["--labels", "l", "--raters", "short"], "holds no label map of the case 'b'"),
        (["--labels", "l", "--members", "m0/p", "--members", "few"], "holds no prediction by that member of the case"),
        (["--labels", "l", "--metrics", "rater_dsc"], "rater_dsc needs labels of several raters"),
        (["--labels", "l", "--metrics", "pairwise_dsc"], "pairwise_dsc needs members of an ensemble"),
        (["--labels", "l", "--raters", "turned"], "turned/a.nii.gz"),
        (["--labels", "l", "--raters", "linked"], "named as the labels of two raters"),
        (["--labels", "l", "--members", "m0/p"], "an ensemble has two members or more"),
        (["--labels", "l", "--members", "m0/p", "--members", "m0/p"], "named as two members of an ensemble"),
        (
            ["--labels", "l", "--members", "m0/p", "--members", "wrong"],
            "wrong/b.npz holds scores that are NaN or infinite",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence_and_nothing_is_written(study, words, sentence):
    save(study / "short" / "a.nii.gz", np.zeros((9, 8, 7), np.uint8))
    for name in ("a", "b"):
        save(study / "turned" / f"{name}.nii.gz", np.zeros((9, 8, 7), np.uint8), np.diag([2.0, 1, 1, 1]))
    (study / "few").mkdir()
    (study / "few" / "a.npz").write_bytes((study / "m1" / "p" / "a.npz").read_bytes())
    (study / "linked").symlink_to("l")
    (study / "wrong").mkdir()
    for name, factor in (("a", 1), ("b", np.nan)):
        np.savez(study / "wrong" / f"{name}.npz", probabilities=random_case(3)[0].transpose(0, 3, 2, 1) * factor)
    given = [str(study / word) if not word.startswith("--") and "_" not in word else word for word in words]
    done = run_cli(["score", "--predictions", study / "p", *given, "-o", study / "out.csv"])
    assert isinstance(done.exception, BadInput)
    assert sentence in str(done.exception)
    assert not (study / "out.csv").exists()


def test_skip_bad_leaves_a_case_out_that_a_rater_did_not_label(study):
    save(study / "short" / "a.nii.gz", random_case(0)[1].astype(np.uint8))
    found = score(study, "some.csv", "--labels", study / "l", "--raters", study / "short", "--skip-bad")
    assert set(table.read(found).rows["case"]) - {""} == {"a"}


def test_true_probabilities_of_the_phantom_are_better_than_sharpened_ones(tmp_path):
    """Known p: raters drew from it, so that no other map is better against their share and their volumes."""
    cases = list(Phantom(cases=6, size=(8, 24, 24), seed=3).cases())
    sharp = {}
    for case in cases:
        p = np.asarray(case.true_p, np.float64)
        sharp[case.id] = (p**4 / (p**4).sum(0), p)
    scored = {}
    for kind, number in (("sharp", 0), ("true", 1)):
        folder = tmp_path / kind
        for case in cases:
            assert case.labels is not None
            save_case(
                folder, case.id, sharp[case.id][number].transpose(0, 3, 2, 1).astype(np.float32), case.labels[0].T
            )
            for rater in range(1, len(case.labels)):
                save(folder / f"r{rater}" / f"{case.id}.nii.gz", case.labels[rater].T.astype(np.uint8))
        raters = [word for rater in range(1, 4) for word in ("--raters", folder / f"r{rater}")]
        rows = table.plain(table.read(score(folder, "scores.csv", "--labels", folder / "l", *raters)).rows)
        scored[kind] = rows[rows["scope"] == "case"].groupby(["metric", "voxels"])["value"].mean()
    for metric, rule in (("ece", "all"), ("nll", "all"), ("brier", "all"), ("volume_crps", ""), ("rater_ece", "all")):
        assert scored["true"][metric, rule] < scored["sharp"][metric, rule], metric
    assert scored["true"]["thresholded_dsc", ""] > scored["sharp"]["thresholded_dsc", ""]
    assert scored["true"]["rater_dsc", ""] == pytest.approx(scored["sharp"]["rater_dsc", ""])  # the same label maps


LIDC = DATA / "lidc-four-raters"


@pytest.mark.skipif(not LIDC.is_dir(), reason="LIDC is not here")
def test_on_lidc_a_rater_left_out_is_met_as_well_as_raters_meet_each_other(tmp_path):
    """Three raters' share as a prediction of the fourth: nothing else than what raters know of each other."""
    dataset = LIDC4()
    for study in dataset.find(LIDC)[:12]:
        case = dataset.read(study)
        assert case.labels is not None
        share = np.clip(case.labels[:3].mean(0), 0.02, 0.98)[:, ::-1, ::-1].astype(np.float32)
        save_case(
            tmp_path, case.id, np.stack([1 - share, share]).transpose(0, 3, 2, 1), case.labels[3, :, ::-1, ::-1].T
        )
        for rater in range(3):
            save(tmp_path / f"r{rater}" / f"{case.id}.nii.gz", case.labels[rater, :, ::-1, ::-1].T.astype(np.uint8))
    raters = [word for rater in range(3) for word in ("--raters", tmp_path / f"r{rater}")]
    rows = table.plain(table.read(score(tmp_path, "s.csv", "--labels", tmp_path / "l", *raters)).rows)
    mean = rows[(rows["scope"] == "case")].groupby(["metric", "voxels"])["value"].mean()
    others = [mean["rater_dsc", f"rater {number}"] for number in (2, 3, 4)]
    assert 0.5 < mean["rater_dsc", "rater 1"] < min(others)  # the one who was not asked
    assert mean["consensus_dsc", ""] > max(others)
    assert mean["ece", "all"] < mean["rater_ece", "all"]


def test_a_folder_that_is_named_twice_is_refused_in_python_too(study):
    with pytest.raises(BadInput, match="two raters"):
        api.score(predictions=study / "p", labels=study / "l", raters=[study / "l"], output=study / "o.csv")
