"""What every calibrator promises, whichever the registry finds."""

import gc
import json
import weakref
from dataclasses import replace

import numpy as np
import pytest

from calibseg.calibrators.fitted.files import load_calibrator, read_calibrator, save_calibrator
from calibseg.core.types import BadInput, Prediction
from calibseg.data.datasets.phantom import Phantom
from calibseg.metrics import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from support.calibration_cases import MEMBERS, SHAPE, K, equal, example, made, shown


@pytest.fixture(params=sorted(MEMBERS))
def key(request):
    return request.param


@pytest.fixture(scope="module")
def fitted():
    kept = {}

    def get(key):
        if key not in kept:
            kept[key] = made(key).fit_predictions(example())
        return kept[key]

    return get


def test_the_calibrators_of_the_plan_exist():
    plan = {"temperature", "class_temperature", "region_temperature", "image_temperature", "vector", "dirichlet"}
    assert plan | {"isotonic", "histogram"} <= set(MEMBERS)


def test_it_says_what_it_is(key, fitted):
    member = MEMBERS[key]
    assert member.summary.endswith(".")
    assert "Paper:" in member.doc
    assert "Differs:" in member.doc
    assert type(member.facts["keeps_argmax"]) is bool
    assert fitted(key).reach in ("voxel", "slice", "volume")
    assert fitted(key).name == key


def test_it_says_how_many_numbers_it_learnt(key, fitted, tmp_path):
    of_k_classes = {"temperature": 1, "class_temperature": K, "region_temperature": 2 * K, "vector": 2 * K}
    of_k_classes["dirichlet"] = K * (K + 1)
    number = fitted(key).parameters()
    assert number == of_k_classes.get(key, number) > 0
    assert read_calibrator(save_calibrator(tmp_path, fitted(key)).parent)["parameters"] == number


def test_it_gives_probabilities_in_the_shape_of_the_scores(key, fitted):
    case = example(1)[0]
    kinds = [case.scores, case.scores.astype(np.float32), case.scores.astype(np.float16)]
    for scores in (*kinds, case.scores.astype(">f4"), np.asfortranarray(case.scores)):
        p = shown(fitted(key), case, scores)
        assert p.shape == case.scores.shape
        assert p.dtype == np.float32
        assert (p >= 0).all()
        assert np.abs(p.sum(0) - 1).max() < 1e-5


def test_the_likeliest_class_stays_where_it_says_so(key, fitted):
    calibrator = fitted(key)
    unseen = example(2, seed=9)
    wild = np.random.default_rng(4).normal(size=(K, *SHAPE)) * 20
    for case in (*unseen, replace(unseen[0], scores=wild)):
        moved = (shown(calibrator, case).argmax(0) != case.scores.argmax(0)).any()
        assert not (calibrator.keeps_argmax and moved)


def test_a_number_added_to_all_scores_of_a_voxel_changes_nothing(key, fitted):
    shift = np.random.default_rng(1).normal(size=SHAPE) * 30
    case = example(1)[0]
    assert shown(fitted(key), case, case.scores + shift) == pytest.approx(shown(fitted(key), case), abs=2e-6)
    moved = made(key).fit_predictions([replace(case, scores=case.scores + shift) for case in example()])
    assert shown(moved, case) == pytest.approx(shown(fitted(key), case), abs=1e-4)


@pytest.mark.parametrize("kind", ["log_probabilities", "probabilities"])
def test_log_probabilities_and_probabilities_teach_the_same_as_logits(key, fitted, kind):
    cases = []
    for case in example():
        log_p = case.scores - np.log(np.exp(case.scores).sum(0))
        cases.append(replace(case, scores=np.exp(log_p) if kind == "probabilities" else log_p, kind=kind))
    case = example(1)[0]
    assert shown(made(key).fit_predictions(cases), case) == pytest.approx(shown(fitted(key), case), abs=1e-4)


def test_saved_and_loaded_it_is_the_same_bit_for_bit(key, fitted, tmp_path):
    calibrator, case = fitted(key), example(1, seed=5)[0]
    save_calibrator(tmp_path, calibrator, {"seconds": 1.5, "fitted_on": {"subset": "validation"}})
    again = load_calibrator(tmp_path)
    assert type(again) is type(calibrator)
    assert equal(calibrator, again, case)
    assert again.options == calibrator.options
    assert again.fitted_on == calibrator.fitted_on
    assert again.state()[0] == calibrator.state()[0]
    about = read_calibrator(tmp_path)
    assert about["method"] == key
    assert about["seconds"] == 1.5
    assert about["fitted_on"]["subset"] == "validation"
    assert about["fitted_on"]["patients"] == ["patient 0", "patient 1", "patient 2"]
    assert about["fitted_on"]["voxels_counted"] == 3 * np.prod(SHAPE)
    assert about["keeps_argmax"] is calibrator.keeps_argmax
    save_calibrator(tmp_path / "again", again, {"seconds": 1.5, "fitted_on": {"subset": "validation"}})
    assert (tmp_path / "again" / "calibrator.json").read_bytes() == (tmp_path / "calibrator.json").read_bytes()


class Counted:
    """Cases that are made when they are asked for, and that count how many of them live at once."""

    def __init__(self, cases):
        self.cases, self.made, self.most, self.passes = cases, [], 0, 0

    def __iter__(self):
        self.passes += 1
        for case in self.cases:
            gc.collect()
            fresh = replace(case)
            self.made.append(weakref.ref(fresh))
            self.most = max(self.most, sum(one() is not None for one in self.made))
            yield fresh
            del fresh

    def __len__(self):
        return len(self.cases)


def test_one_case_at_a_time_is_in_memory(key):
    counted = Counted(example(6))
    calibrator = made(key).fit_predictions(counted)
    assert counted.most <= (3 if calibrator.uses_image else 1)  # where slabs become whole volumes, neighbours meet
    assert counted.passes >= 1
    assert equal(calibrator, made(key).fit_predictions(example(6)), counted.cases[0])


def test_the_same_cases_teach_the_same(key, fitted):
    assert equal(made(key).fit_predictions(example()), fitted(key), example(1)[0])


def test_a_generator_is_refused(key):
    with pytest.raises(BadInput, match="give a list, not a generator"):
        made(key).fit_predictions(case for case in example())


def test_nothing_to_learn_from_is_refused(key):
    with pytest.raises(BadInput, match="nothing to learn from: no prediction"):
        made(key).fit_predictions([])
    with pytest.raises(BadInput, match="nothing to learn from: no voxel of 1 cases counts"):
        made(key).fit_predictions([replace(case, labels=np.full(SHAPE, 255, np.uint8)) for case in example(1)])
    with pytest.raises(BadInput, match="case 'case 0' has no labels"):
        made(key).fit_predictions([replace(example(1)[0], labels=None)])


def test_a_case_given_twice_is_refused(key):
    with pytest.raises(BadInput, match="case 'case 0' is given twice"):
        made(key).fit_predictions([*example(1), *example(1)])


def test_scores_that_are_not_a_number_are_refused_with_the_case(key):
    cases = example()
    cases[1].scores[1, 2, 3, 4] = np.nan
    with pytest.raises(BadInput, match="case 'case 1': scores are NaN or infinite"):
        made(key).fit_predictions(cases)


def test_labels_that_do_not_exist_are_refused_with_the_case(key):
    cases = example()
    cases[2].labels[0, 0, 0] = 7
    with pytest.raises(
        BadInput, match=r"case 'case 2': the label 7 at voxel \(z \d+, y \d+, x \d+\) is none of the 3 classes"
    ):
        made(key).fit_predictions(cases)
    cases[2] = replace(cases[2], labels=cases[2].labels[:, 1:])
    with pytest.raises(BadInput, match=r"case 'case 2': the target has the shape .* expected integer labels"):
        made(key).fit_predictions(cases)


def test_cases_with_other_classes_are_refused(key):
    cases = example()
    cases[1] = replace(cases[1], scores=np.concatenate([cases[1].scores, cases[1].scores[:1]]))
    with pytest.raises(BadInput, match=r"case 'case 1' has 4 softmax channels, those before it had 3"):
        made(key).fit_predictions(cases)


def test_it_must_be_fitted_first_and_to_as_many_classes(key, fitted, tmp_path):
    case = example(1)[0]
    with pytest.raises(BadInput, match="not fitted yet"):
        shown(made(key), case)
    with pytest.raises(BadInput, match="not fitted yet"):
        save_calibrator(tmp_path, made(key))
    with pytest.raises(BadInput, match="fitted on 3 classes, the scores have 2"):
        shown(fitted(key), case, case.scores[:2])


def test_sigmoid_scores_are_taken_or_refused_with_a_sentence(key):
    cases = []
    for case in example():
        labels = np.stack([case.labels == 1, case.labels == 2]).astype(np.uint8)
        cases.append(replace(case, scores=case.scores[1:], activation="sigmoid", labels=labels))
    calibrator = made(key)
    if "sigmoid" in calibrator.activations:
        p = shown(calibrator.fit_predictions(cases), cases[0])
        assert p.shape == (2, *SHAPE)
        assert ((p >= 0) & (p <= 1)).all()
    else:
        with pytest.raises(BadInput, match=f"{key} is defined for softmax scores"):
            calibrator.fit_predictions(cases)


def test_several_raters_teach_the_share_of_each_class(key):
    raters, shares = [], []
    for case in example():
        rng = np.random.default_rng(len(case.case_id))
        other = np.where(rng.random(SHAPE) < 0.2, rng.integers(0, K, SHAPE), case.labels).astype(np.uint8)
        both = np.stack([case.labels, other])
        raters.append(replace(case, labels=both))
        shares.append(replace(case, labels=np.stack([(both == k).mean(0) for k in range(K)])))
    assert equal(made(key).fit_predictions(raters), made(key).fit_predictions(shares), raters[0])


def test_one_rater_is_as_good_as_a_label_map_and_as_certain_shares(key, fitted):
    case = example(1)[0]
    one = made(key).fit_predictions([replace(case, labels=case.labels[None]) for case in example()])
    assert equal(one, fitted(key), case)
    certain = [replace(c, labels=(c.labels == np.arange(K)[:, None, None, None]).astype(np.float32)) for c in example()]
    assert shown(made(key).fit_predictions(certain), case) == pytest.approx(shown(fitted(key), case), abs=1e-5)


def test_a_voxel_labelled_255_or_without_shares_counts_for_nobody(key):
    hard, soft, junk = [], [], []
    for case in example():
        labels = case.labels.copy()
        labels[:, 2:5] = 255
        hard.append(replace(case, labels=labels))
        soft.append(replace(case, labels=(labels == np.arange(K)[:, None, None, None]).astype(np.float64)))
        scores = case.scores.copy()
        scores[:, :, 2:5] = np.random.default_rng(3).normal(size=scores[:, :, 2:5].shape) * 9
        junk.append(replace(case, scores=scores, labels=labels))
    calibrator, case = made(key).fit_predictions(hard), example(1)[0]
    assert calibrator.fitted_on["voxels_counted"] == 3 * (np.prod(SHAPE) - SHAPE[0] * 3 * SHAPE[2])
    assert shown(made(key).fit_predictions(soft), case) == pytest.approx(shown(calibrator, case), abs=1e-5)
    if calibrator.reach == "voxel":
        assert equal(made(key).fit_predictions(junk), calibrator, case)


def test_a_class_that_never_occurs_is_no_accident(key):
    cases = [replace(case, labels=np.minimum(case.labels, 1)) for case in example()]
    calibrator = made(key).fit_predictions(cases)
    p = shown(calibrator, cases[0])
    assert np.isfinite(p).all()
    assert p[2].max() > 1e-4  # what was never seen is not ruled out
    assert isinstance(calibrator.state()[0]["fallbacks"], list)


def test_a_single_case_is_enough(key):
    calibrator = made(key).fit_predictions(example(1))
    assert np.isfinite(shown(calibrator, example(1)[0])).all()
    assert calibrator.fitted_on["cases"] == ["case 0"]


def test_foreground_voxels_only(key):
    calibrator = made(key, fit_on="foreground").fit_predictions(example())
    assert calibrator.fitted_on["voxels_counted"] == sum(int((case.labels > 0).sum()) for case in example())
    assert calibrator.options["fit_on"] == "foreground"


def test_a_sample_is_drawn_by_its_seed_and_stands_for_all(key, fitted):
    case = example(1)[0]
    one, same, other = (made(key, sample=60, seed=seed).fit_predictions(example()) for seed in (1, 1, 2))
    assert one.fitted_on["voxels_counted"] == 3 * 60 * K
    assert (one.fitted_on["sample"], one.fitted_on["seed"]) == (60, 1)
    assert equal(one, same, case)
    assert not equal(one, other, case)
    if not MEMBERS[key].facts.get("uses_image"):  # a seed that starts a network changes it as well
        whole = made(key, sample=10**6).fit_predictions(example())
        assert shown(whole, case) == pytest.approx(shown(fitted(key), case), abs=1e-6)


def test_on_the_phantom_it_comes_nearer_to_the_known_truth(key):
    cases = []
    for c in Phantom(cases=4, size=(8, 32, 32)).cases():
        logits = np.log(np.maximum(c.true_p.astype(np.float64), 1e-7)) / 0.4
        cases.append((Prediction(c.id, c.patient, logits, "logits", c.spacing_mm, labels=c.labels, image=c.image), c))
    calibrator = made(key).fit_predictions([prediction for prediction, _ in cases[:3]])
    prediction, c = cases[3]
    sharp = np.exp(prediction.scores - prediction.scores.max(0))
    before, after = (sharp / sharp.sum(0)).astype(np.float32), shown(calibrator, prediction)
    away = [np.abs(p - c.true_p).mean() for p in (before, after)]
    top = [calibration_statistics(p, c.true_p, kind="probabilities").on("all") for p in (before, after)]
    ece = [ECE().value(curves)[None] for curves in top]
    share = 1.0 if "epochs" in calibrator.options else 0.5  # a hasty network need not halve it
    assert ece[1] < share * ece[0]
    if key != "histogram":  # whose first bin gives sure voxels the frequency of all that are below 1/15
        assert away[1] < share * away[0]


@pytest.mark.parametrize(("option", "value"), [("fit_on", "some"), ("sample", -1), ("seed", -1)])
def test_an_option_out_of_range_is_refused(key, option, value):
    with pytest.raises(BadInput, match=f"{option} must be"):
        made(key, **{option: value})


def test_a_changed_or_foreign_file_is_refused(key, fitted, tmp_path):
    with pytest.raises(BadInput, match=r"holds no calibrator \(calibrator.json is missing\)"):
        load_calibrator(tmp_path)
    path = save_calibrator(tmp_path, fitted(key))
    about = json.loads(path.read_text())
    state = next(name for name in about["learnt"] if name != "fallbacks" or len(about["learnt"]) == 1)
    path.write_text(json.dumps(about | {state: ["changed"]}))
    with pytest.raises(BadInput, match="was changed after it was written"):
        load_calibrator(tmp_path)
    path.write_text(json.dumps(about | {"format": "calibseg-calibrator/9"}))
    with pytest.raises(BadInput, match="this version reads 'calibseg-calibrator/1'"):
        load_calibrator(tmp_path)
    path.write_text(json.dumps({name: value for name, value in about.items() if name != "options"}))
    with pytest.raises(BadInput, match="options is missing"):
        load_calibrator(tmp_path)
    if about["arrays"]:
        path.write_text(json.dumps(about))
        (tmp_path / "calibrator.safetensors").write_bytes(b"\x80\x04K\x01.")
        with pytest.raises(BadInput, match="cannot be read as safetensors"):
            load_calibrator(tmp_path)
