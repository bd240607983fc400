"""`measure`: every metric of arrays in memory, the same to the bit as `calibseg score` of files."""

import nibabel as nib
import numpy as np
import pytest
import torch

from calibseg import BadInput, measure
from calibseg.api import score
from calibseg.stages.score.case import ScoringOptions

SPACING = (2.0, 1.0, 0.5)
RULES = ("truth", "predicted", "all", "boundary")


def volume(seed: int, space=(5, 12, 11), classes: int = 3):
    """Logits float32 [k *space] and labels [*space] of smooth shapes that mostly agree."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(space, np.uint8)
    labels[..., 2:8, 2:7], labels[..., 4:7, 5:9] = 1, 2
    truth = (labels == np.arange(classes).reshape(-1, *[1] * len(space))).astype(np.float32)
    return (3 * truth + rng.normal(0, 1.5, truth.shape)).astype(np.float32), labels


def softmax(logits):
    return torch.from_numpy(logits).softmax(0).numpy()


def same(first, second):
    np.testing.assert_array_equal(first.table["value"], second.table["value"])
    assert list(first.table["metric"]) == list(second.table["metric"])


def test_the_values_are_those_of_calibseg_score_to_the_bit(tmp_path):
    made = {f"case {seed}": volume(seed) for seed in range(2)}
    for name in ("p", "l"):
        (tmp_path / name).mkdir()
    for name, (logits, labels) in made.items():
        np.savez(tmp_path / "p" / f"{name}.npz", logits=logits)
        nib.save(nib.Nifti1Image(labels.T, np.diag((*SPACING[::-1], 1))), tmp_path / "l" / f"{name}.nii.gz")
    options = ScoringOptions(voxels=RULES)
    files = score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "s.csv", kind="logits",
                  file_format="npz", **vars(options)).table.rows  # fmt: skip
    logits, labels = zip(*made.values(), strict=True)
    ours = measure(list(logits), list(labels), kind="logits", spacing_mm=SPACING, voxels=RULES).table
    assert list(ours.columns) == list(files.columns)
    for column in ours.columns:
        np.testing.assert_array_equal(ours[column], files[column], column)
    assert len(ours) > 200


def test_numpy_torch_batches_and_lists_give_the_same():
    cases = [volume(seed) for seed in range(2)]
    logits, labels = np.stack([one for one, _ in cases]), np.stack([one for _, one in cases])
    listed = measure([one for one, _ in cases], [one for _, one in cases], kind="logits", spacing_mm=SPACING)
    same(listed, measure(logits, labels, kind="logits", spacing_mm=SPACING))
    tensor = torch.from_numpy(logits).requires_grad_()
    same(listed, measure(tensor, torch.from_numpy(labels).long(), kind="logits", spacing_mm=SPACING))
    alone = measure(*cases[0], kind="logits", spacing_mm=SPACING)
    one = listed.table[listed.table["case"] == "case 0"]
    np.testing.assert_array_equal(alone.table[alone.table["scope"] == "case"]["value"], one["value"])


def test_the_mean_over_cases_and_the_pooled_value_are_two_things():
    (first, its), (second, others) = volume(0), volume(1, (2, 12, 11))
    both = measure([first, second], [its, others], kind="logits", metrics=("ece", "hd95"), voxels=("all",))
    single = [
        measure(a, b, kind="logits", metrics=("ece",), voxels=("all",)) for a, b in ((first, its), (second, others))
    ]
    mean = np.mean([one.values["ece@all"]["all"] for one in single])
    assert both.values["ece@all"]["all"] == pytest.approx(mean, rel=1e-12)
    assert both.pooled["ece@all"]["all"] != pytest.approx(mean, rel=1e-3)
    assert "hd95" in both.values
    assert "hd95" not in both.pooled


def test_an_image_is_a_volume_of_one_slice():
    logits, labels = volume(0, (12, 11))
    plane = measure(logits, labels, kind="logits", spacing_mm=(1.0, 0.5))
    same(plane, measure(logits[:, None], labels[None], kind="logits", spacing_mm=(7.0, 1.0, 0.5)))
    batch = measure(np.stack([logits] * 4), np.stack([labels] * 4), kind="logits", spacing_mm=(1.0, 0.5))
    assert batch.cases == 4
    np.testing.assert_allclose(batch.values["hd95"]["1"], plane.values["hd95"]["1"], rtol=1e-12)


def test_where_a_volume_and_a_batch_both_fit_the_caller_has_to_say():
    logits, labels = volume(0, (3, 12, 11))
    with pytest.raises(BadInput, match="batch=False or batch=True"):
        measure(logits, labels, kind="logits")
    assert measure(logits, labels, kind="logits", batch=False, metrics=("dsc",)).cases == 1
    assert measure(logits, labels, kind="logits", batch=True, metrics=("dsc",)).cases == 3


def test_without_spacing_distances_are_in_voxels_and_say_so():
    logits, labels = volume(0)
    voxel = measure(logits, labels, kind="logits", metrics=("hd95", "nsd")).table
    unit = measure(logits, labels, kind="logits", metrics=("hd95",), spacing_mm=(1, 1, 1)).table
    assert set(voxel[voxel["metric"] == "hd95"]["unit"]) == {"voxel"}
    assert set(unit["unit"]) == {"mm"}
    rules = {"kind": "logits", "metrics": "ece", "voxels": "boundary"}
    bands = [set(measure(logits, labels, spacing_mm=one, **rules).table["voxels"]) for one in (None, (1, 1, 1))]
    assert "-1 to 1 voxel" in bands[0]
    assert bands[1] == {name.replace("voxel", "mm") for name in bands[0]}
    np.testing.assert_array_equal(voxel[voxel["metric"] == "hd95"]["value"], unit["value"])


def test_an_ignored_voxel_changes_nothing():
    logits, labels = volume(0)
    void = labels.copy()
    void[:, :, 8:] = 9
    spoiled = logits.copy()
    spoiled[:, :, :, 8:] = 5.0
    rules = {"kind": "logits", "ignore_label": 9, "metrics": ("ece", "dsc", "nll")}
    same(measure(logits, void, **rules), measure(spoiled, void, **rules))
    with pytest.raises(BadInput, match="case 0 holds the label 9"):
        measure(logits, void, kind="logits")


def test_sigmoid_channels_are_judged_apart():
    logits, labels = volume(0)
    truth = np.stack([labels > 0, labels == 2]).astype(np.uint8)
    rules = {"metrics": ("dsc", "brier"), "voxels": ("all",), "batch": False}
    measured = measure(logits[1:], truth, kind="logits", activation="sigmoid", **rules)
    said, true = logits[1] > 0, truth[0] > 0
    dice = 2 * (said & true).sum() / (said.sum() + true.sum())
    assert measured.values["dsc"]["0"] == pytest.approx(dice)
    p = 1 / (1 + np.exp(-logits[1].astype(float)))
    assert measured.values["brier@all"]["0"] == pytest.approx(np.mean((p - true) ** 2), abs=1e-7)


def test_logits_of_any_size_are_measured_without_a_warning():
    """A warning is an error here."""
    logits = np.array([-1e4, -800.0, 800.0, 1e4]).reshape(1, 1, 1, 4)
    measured = measure(
        logits, np.array([0, 0, 1, 1]).reshape(1, 1, 1, 4), kind="logits", activation="sigmoid", batch=False
    )
    assert measured.values["interior_confidence"]["0"] == 1.0


@pytest.mark.parametrize("kind", ["logits", "log_probabilities", "probabilities"])
def test_scores_of_an_ignored_voxel_are_not_looked_at_and_nan_elsewhere_is_refused(kind):
    logits, labels = volume(0)
    p = np.exp(logits) / np.exp(logits).sum(0)
    scores = {"logits": logits, "log_probabilities": np.log(p), "probabilities": p}[kind].astype(np.float32)
    labels = labels.astype(np.int16)
    labels[1, 2:4] = 9
    without = scores.copy()
    without[:, 1, 2:4] = np.nan
    same(*(measure(some, labels, kind=kind, ignore_label=9, batch=False) for some in (scores, without)))
    without[:, 0, 1, 3] = np.nan
    with pytest.raises(BadInput, match=r"NaN or infinite at voxel \(z 0, y 1, x 3\)"):
        measure(without, labels, kind=kind, ignore_label=9, batch=False)


@pytest.mark.filterwarnings("error")
def test_logits_of_an_ignored_voxel_may_be_infinite_and_nothing_is_said_about_it():
    logits, labels = volume(0)
    labels[1, 2:4] = 9
    masked, mixed = logits.copy(), logits.copy()
    masked[:, 1, 2:4] = -np.inf  # all classes, as of a mask that is added to logits
    mixed[:, 1, 2:4] = np.array([-np.inf, np.inf, 0])[:, None, None]
    whole, *others = (measure(some, labels, kind="logits", ignore_label=9) for some in (logits, masked, mixed))
    for other in others:
        same(whole, other)


def test_logits_that_are_all_nan_are_not_called_probabilities():
    logits, labels = volume(0)
    with pytest.raises(BadInput, match=r"NaN or infinite at voxel \(z 0, y 0, x 0\)"):
        measure(np.full_like(logits, np.nan), labels, kind="logits", batch=False)


def test_a_wrong_label_of_a_sigmoid_channel_is_not_called_a_raters():
    logits, labels = volume(0)
    channels = np.stack([labels > 0, labels == 2]).astype(np.int16)
    channels[1, 0, 1, 2] = 7
    with pytest.raises(BadInput, match=r"the label 7 at voxel \(z 0, y 1, x 2\) of channel 1, which"):
        measure(logits[1:], channels, kind="logits", activation="sigmoid", batch=False)


def test_a_voxel_that_one_sigmoid_channel_ignores_is_ignored_in_all():
    logits, labels = volume(0)
    in_one = np.stack([labels > 0, labels == 2]).astype(np.int16)
    in_one[0, :, :, 8:] = 9
    in_all = in_one.copy()
    in_all[:, :, :, 8:] = 9
    rules = {"kind": "logits", "activation": "sigmoid", "ignore_label": 9, "batch": False}
    same(measure(logits[1:], in_one, **rules), measure(logits[1:], in_all, **rules))
    same(measure(logits[1:, 0], in_one[:, 0], **rules), measure(logits[1:, 0], in_all[:, 0], **rules))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "probabilities"}, "probabilities lie between 0 and 1"),
        ({"kind": "guess"}, "kind must be logits, log_probabilities or probabilities"),
        ({"voxels": ("near",)}, "no voxel rule named 'near'"),
        ({"metrics": ("ecee",)}, "no metric named 'ecee'. Did you mean 'ece'?"),
        ({"labels": np.zeros((5, 12, 11))}, "must be integers"),
        ({"labels": np.full((5, 12, 11), 3)}, "holds the label 3 at voxel"),
        ({"labels": np.zeros((5, 12, 9), int)}, "labels"),
        ({"spacing_mm": (1, 0, 1)}, "spacing_mm must be positive"),
        ({"spacing_mm": 1.0}, "spacing_mm must be positive"),
        ({"spacing_mm": "abc"}, "spacing_mm must be positive"),
        ({"ignore_label": "1"}, "ignore_label must be an integer or None, not '1'"),
        ({"ignore_label": 1.5}, "ignore_label must be an integer or None, not 1.5"),
        ({"ignore_label": 1}, "ignore_label 1 is one of the 3 classes 0 to 2"),
        ({"labels": np.ma.masked_equal(np.zeros((5, 12, 11), int), 0)}, "a masked array's mask would be passed over"),
        ({"scores": np.ones((3, 5, 12, 11), complex)}, "hold numbers, not complex128"),
        ({"scores": np.ones((3, 0, 12, 11)), "labels": np.ones((0, 12, 11), int)}, "hold no voxel"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, complaint):
    logits, labels = volume(0)
    given = {"scores": logits, "labels": labels, "kind": "logits"} | change
    with pytest.raises(BadInput, match=complaint):
        measure(**given)


def test_probabilities_that_are_called_logits_are_refused():
    logits, labels = volume(0)
    with pytest.raises(BadInput, match="say kind probabilities"):
        measure(softmax(logits), labels, kind="logits")


def test_a_measurement_shows_itself_and_its_reliability_diagram(tmp_path):
    logits, labels = volume(0)
    measured = measure(softmax(logits), labels, kind="probabilities", metrics=("ece", "dsc"), voxels=("all",))
    first, header, *lines = repr(measured).splitlines()
    assert first == "1 case, 3 classes"
    assert header.split() == ["metric", "unit", "all", "background", "1", "2"]
    assert {line.split()[0] for line in lines} == {"ece@all", "dsc"}
    figure = measured.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert f"pooled ECE {measured.pooled['ece@all']['all']:.3f}" in [text.get_text() for text in figure.axes[0].texts]


def test_one_name_may_stand_alone():
    p, labels = np.full((2, 4, 4), 0.5), np.zeros((4, 4), int)
    alone = measure(p, labels, kind="probabilities", voxels="all", metrics="nll")
    assert str(alone) == str(measure(p, labels, kind="probabilities", voxels=("all",), metrics=("nll",)))


def test_arrays_that_were_flipped_are_measured_like_their_copies():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(3, 4, 5, 6)), rng.integers(0, 3, (4, 5, 6))
    flipped, whole = scores[:, ::-1, ::-1, ::-1], labels[::-1, ::-1, ::-1]
    ours = measure(flipped, whole, kind="logits", metrics=["ece", "dsc"])
    copied = measure(flipped.copy(), whole.copy(), kind="logits", metrics=["ece", "dsc"])
    assert ours.table.equals(copied.table)


def test_what_belongs_to_one_case_is_pooled_of_no_number_of_cases():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(2, 3, 8, 8)), rng.integers(0, 3, (2, 8, 8))
    one, two = (measure(scores[:n], labels[:n], kind="logits", metrics=["hd95", "dsc"]) for n in (1, 2))
    assert set(one.pooled) == set(two.pooled) == {"dsc"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": None}, "give the labels"),
        ({"metrics": ["pairwise_dsc"]}, "pairwise_dsc needs members of an ensemble"),
        ({"metrics": ["rater_dsc"]}, "rater_dsc needs labels of several raters"),
        ({"metrics": ["energy_distance"]}, r"members of an ensemble \(energy_distance: and labels of several"),
        ({"metrics": ["tace"], "voxels": ["boundary"]}, "tace is not computed on boundary: name another voxel rule"),
        ({"options": ScoringOptions(metrics=("ece",))}, "say metrics and voxels as arguments of their own"),
        ({"options": ScoringOptions(voxels=("union",))}, "say metrics and voxels as arguments of their own"),
    ],
)
def test_what_cannot_be_measured_is_said(change, said):
    arguments = {"scores": np.zeros((3, 8, 8)), "labels": np.zeros((8, 8), int), "kind": "logits"}
    with pytest.raises(BadInput, match=said):
        measure(**(arguments | change))
