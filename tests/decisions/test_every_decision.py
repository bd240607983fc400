"""What every decision promises, whichever the registry finds."""

import json
from fractions import Fraction
from math import isfinite, isnan, nan

import numpy as np
import pytest

from calibseg import decisions
from calibseg.core.files import write_json
from calibseg.core.registry import members
from calibseg.core.types import BadInput, Prediction
from calibseg.decisions import FNR, Evidence, Inner, Margin, Volume, cell_of
from calibseg.decisions.fitted.rules import FoundCase, _mark, fit_rules, parts_of, read_rules
from calibseg.decisions.maths.conformal import patients_needed
from calibseg.decisions.maths.findings import Structure, pass_over
from support.decision_cases import SPACING, phantoms

MEMBERS = members("decisions")
CHOICES = [(key, options) for key, member in MEMBERS.items() for options in member.load().contract_options]
POOL = 80  # phantoms that patients are drawn from
STRUCTURES = [Structure("1", (1,), (1,)), Structure("2", (2,), (2,)), Structure("both", (1, 2), (1, 2))]


@pytest.fixture(params=CHOICES, ids=lambda choice: f"{choice[0]}-{'-'.join(map(str, choice[1].values()))}")
def decision(request):
    key, options = request.param
    return MEMBERS[key].load()(**options)


@pytest.fixture(scope="module")
def pool():
    """What a pass over each of many phantoms found."""
    found = []
    for p, labels in zip(*phantoms(POOL), strict=True):
        case = Prediction("c", "p", p, "probabilities", SPACING, labels=labels)
        found.append(pass_over(case, STRUCTURES, ("in_truth", "in_rest", "outward", "inward")).findings)
    return found


def rules_of(decision, pool, drawn, joint=False, structures=STRUCTURES[:1]):
    cases = [FoundCase(f"c{number}", f"p{number}", pool[index]) for number, index in enumerate(drawn)]
    return fit_rules([decision], cases, structures, joint=joint)


def assert_alike(numbers, others):
    assert set(numbers) == set(others)
    for name, value in numbers.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-9)


def test_the_decisions_of_the_plan_exist():
    assert {"fnr", "fpr", "margin", "volume", "inner"} <= set(MEMBERS)


def test_it_says_what_it_is_and_promises_something_about_a_structure(decision):
    assert MEMBERS[decision.name].summary.endswith(".") if decision.name in MEMBERS else True
    assert "liver" in decision.promise("liver")
    assert decision.label.startswith(decision.name)
    assert type(decision)(**decision.options).options == decision.options
    assert 0 < decision.alpha < 1


def test_the_promise_is_kept_over_500_draws_of_patients(decision, pool):
    """The mean loss of new patients, over draws of 25 labelled ones, is at most alpha within its own error."""
    if decision.makes == "threshold" and decision.options.get("confidence"):
        pytest.skip("a promise with high probability has a test of its own")
    rng = np.random.default_rng(0)
    scores = [decision.score(found["1"]) for found in pool]
    risks = []
    for _ in range(500):
        evidence = Evidence("1", Fraction(repr(decision.alpha)), present=True)
        for index in rng.integers(0, POOL, 25):
            decision.add(evidence, [scores[index]])
        rule = decision.choose(evidence)
        if decision.makes == "threshold":
            losses = [scores[index][cell_of(rule["threshold"])] for index in rng.integers(0, POOL, 25)]
        else:
            losses = [decision.size(scores[index]) > rule["quantile"] for index in rng.integers(0, POOL, 25)]
        risks.append(np.mean(losses))
    error = 3 * np.std(risks) / np.sqrt(len(risks))
    assert np.mean(risks) <= decision.alpha + error
    if decision.name in ("fnr", "volume"):
        assert np.mean(risks) >= decision.alpha - 0.1  # nor is the promise kept by saying nothing


def test_with_confidence_the_risk_is_kept_by_nine_draws_of_ten(pool):
    """The high-probability version: over draws of labelled patients, the risk exceeds alpha in at most a tenth."""
    rng, decision = np.random.default_rng(0), decisions.FNR(alpha=0.2, confidence=0.9)
    curves = np.array([decision.score(found["1"]) for found in pool])
    broken = 0
    for _ in range(200):
        evidence = Evidence("1", Fraction("0.2"), present=True)
        for index in rng.integers(0, POOL, 40):
            decision.add(evidence, [curves[index]])
        broken += curves[:, cell_of(decision.choose(evidence)["threshold"])].mean() > 0.2
    assert broken <= 200 * 0.1 + 3 * np.sqrt(200 * 0.1 * 0.9)


def test_too_few_patients_are_refused_with_the_number_that_is_needed(decision, pool):
    sure = getattr(decision, "confidence", None) if decision.makes == "threshold" else None
    needed = patients_needed(Fraction(repr(decision.alpha)), None if sure is None else 1 - Fraction(repr(sure)))
    assert rules_of(decision, pool, range(needed)).rules[0].patients == needed
    with pytest.raises(BadInput, match=f"{needed - 1} patients? with '1' cannot keep .* at least {needed} are needed"):
        rules_of(decision, pool, range(needed - 1))
    shared_sure = None if sure is None else (1 - Fraction(repr(sure))) / 3
    shared = patients_needed(Fraction(repr(decision.alpha)) / 3, shared_sure)
    with pytest.raises(BadInput, match=f"at least {shared} are needed"):  # three structures share the level
        rules_of(decision, pool, range(shared - 1), joint=True, structures=STRUCTURES)


def test_a_structure_that_no_case_has_is_refused(decision):
    p, labels = phantoms(12)
    with pytest.raises(BadInput, match="no case has '2', so nothing can be promised"):
        decisions.fit([decision], p, [np.where(one == 2, 0, one) for one in labels], kind="probabilities")


def test_a_patient_with_copies_of_a_case_counts_once(decision, pool):
    """Three scans of one patient are no three patients, neither for the level nor for the rule."""
    once = rules_of(decision, pool, range(20)).rules[0]
    cases = [FoundCase(f"c{i}-{scan}", f"p{i}", pool[i]) for i in range(20) for scan in range(3)]
    thrice = fit_rules([decision], cases, STRUCTURES[:1]).rules[0]
    assert thrice.patients == once.patients == 20
    assert_alike(thrice.numbers, once.numbers)


def test_the_order_of_patients_changes_nothing_and_a_patients_cases_must_follow_each_other(decision, pool):
    forward = rules_of(decision, pool, range(20)).rules[0].numbers
    assert_alike(rules_of(decision, pool, range(19, -1, -1)).rules[0].numbers, forward)
    cases = [FoundCase(str(i), f"p{i % 10}", pool[i]) for i in range(20)]
    with pytest.raises(BadInput, match="do not follow each other"):
        fit_rules([decision], cases, STRUCTURES[:1])


def test_joint_rules_are_more_careful(decision, pool):
    alone = rules_of(decision, pool, range(60), structures=STRUCTURES)
    joint = rules_of(decision, pool, range(60), joint=True, structures=STRUCTURES)
    for one, other in zip(alone.rules, joint.rules, strict=True):
        assert other.alpha == pytest.approx(one.alpha / 3)
        mean = [
            np.nanmean([decision.loss(rule.numbers, found[rule.structure]) for found in pool]) for rule in (one, other)
        ]
        assert mean[1] <= mean[0]


def test_rules_from_a_file_decide_the_same(decision, tmp_path):
    p, labels = phantoms(12)
    rules = decisions.fit([decision], p, labels, kind="probabilities", spacing_mm=SPACING, regions={"both": (1, 2)})
    again = read_rules(rules.save(tmp_path / "rules.json"))
    fresh = phantoms(2, first=900)[0]
    for one, other in zip(rules.apply(fresh, spacing_mm=SPACING), again.apply(fresh, spacing_mm=SPACING), strict=True):
        assert one.values == other.values
        assert set(one.masks) == set(other.masks)
        assert all((one.masks[key] == other.masks[key]).all() for key in one.masks)
        assert {structure for _, structure in one.masks} in (set(), {"1", "2", "both"})
    held = rules.save(tmp_path / "held.json")
    for change, complaint in (
        (lambda facts: facts["structures"][0].update(name="../x"), "cannot be a name of a structure"),
        (lambda facts: facts["structures"][0].update(labels=[-1]), "negative ones"),
        (lambda facts: facts["rules"][0].update(structure="other"), "about no known structure"),
        (lambda facts: facts["rules"][0]["numbers"].clear(), f"holds no {decision.holds}"),
    ):
        facts = json.loads(held.read_text())
        change(facts)
        del facts["format"], facts["mark"]
        write_json(tmp_path / "bad.json", "rules", {**facts, "mark": _mark(facts)})
        with pytest.raises(BadInput, match=complaint):
            read_rules(tmp_path / "bad.json")
    text = (tmp_path / "rules.json").read_text()
    (tmp_path / "rules.json").write_text(text.replace('"patients": 12', '"patients": 13', 1))
    with pytest.raises(BadInput, match="changed after they were written"):
        read_rules(tmp_path / "rules.json")


def test_what_it_says_about_a_case_is_numbers_that_json_holds(decision):
    p, labels = phantoms(12)
    rules = decisions.fit([decision], p, labels, kind="probabilities", spacing_mm=SPACING)
    for one in rules.apply(p[:2], labels=labels[:2], spacing_mm=SPACING):
        told = one.values["1"][decision.label]
        assert 0 <= told["loss"] <= 1 or isnan(told["loss"])
        assert all(isinstance(value, float) and isfinite(value) for value in told.values())
        json.dumps(one.values, allow_nan=False)


def test_the_mask_loses_what_the_loss_says(decision):
    """The loss from the findings is the loss of the mask itself, by the mask's own voxels."""
    p, labels = phantoms(12)
    rules = decisions.fit([decision], p, labels, kind="probabilities", spacing_mm=SPACING)
    for one, truth in zip(rules.apply(p, labels=labels, spacing_mm=SPACING), labels, strict=True):
        said = one.values["1"][decision.label]["loss"]
        mask, organ = one.masks.get((decision.label, "1")), truth == 1
        if decision.name == "fnr":
            assert said == pytest.approx((organ & ~mask).sum() / organ.sum())
        elif decision.name == "fpr":
            assert said == pytest.approx((mask & ~organ).sum() / (~organ).sum())
        elif decision.name == "margin":
            assert said == float((organ & mask).sum() < decision.coverage * organ.sum() - 1e-9)
        elif decision.name == "inner":
            assert said == float((mask & ~organ).sum() > (1 - decision.purity) * one.findings["1"].predicted + 1e-9)


def test_the_parts_that_it_needs_are_known(decision):
    assert parts_of([decision]) <= {"in_truth", "in_rest", "outward", "inward"}
    assert decision.needs in ("masks", "probabilities")


def test_joint_rules_share_the_confidence_too(pool):
    """Of two structures each must keep half the level with half the doubt, as it would alone."""
    structures = [Structure(name, (1,), (1,)) for name in ("left", "right")]
    found = [dict.fromkeys(("left", "right"), one["1"]) for one in pool]
    joint = rules_of(decisions.FNR(alpha=0.2, confidence=0.8), found, range(POOL), joint=True, structures=structures)
    alone, bolder = (rules_of(decisions.FNR(alpha=0.1, confidence=sure), pool, range(POOL)) for sure in (0.9, 0.8))
    thresholds = [one.rules[0].numbers["threshold"] for one in (joint, alone, bolder)]
    assert thresholds[0] == thresholds[1] < thresholds[2]


def test_a_region_may_not_have_the_name_of_a_class():
    masks = [np.eye(6, dtype=int)] * 6
    with pytest.raises(BadInput, match="two structures are called '1'"):
        decisions.fit([decisions.Margin()], masks, masks, kind="masks", regions={"1": (1,)})


@pytest.mark.parametrize("form", [list, np.array])
def test_patients_may_be_an_array(form):
    masks = [np.eye(6, dtype=int)] * 12
    rules = decisions.fit([decisions.Margin()], masks, masks, kind="masks", patients=form([*"aabcdefghijk"]))
    assert len(rules.fitted_on["patients"]) == 11


MASKS = [np.eye(6, dtype=int)] * 12
P = np.stack([1 - np.eye(6, dtype=np.float32), np.eye(6, dtype=np.float32)]) * 0.8 + 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ignore_label": 0}, "ignore_label 0 is one of the 2 classes"),
        ({"activation": "sigmoid"}, "masks are label maps of classes that exclude each other"),
        ({"batch": True}, "masks do not know the option 'batch'; several cases are a list of masks"),
        ({"foo": 3}, "masks do not know the option 'foo'"),
    ],
)
def test_an_option_that_masks_do_not_know_is_refused(given, message):
    with pytest.raises(BadInput, match=message):
        decisions.fit([decisions.Margin()], MASKS, MASKS, kind="masks", **given)


@pytest.mark.parametrize(
    ("scores", "given", "message"),
    [
        (
            np.concatenate([P / 2, np.full((1, 6, 6), 0.5, np.float32)]),
            {},
            "3 classes, but the rules are about classes 0 to 1",
        ),
        (P, {"labels": [MASKS[0] * 7]}, "7"),
        (P, {"patients": ["b"]}, "is of the patient 'b', on whom the rules were fitted"),
    ],
)
def test_rules_are_refused_on_other_classes_unknown_labels_and_patients_that_they_know(scores, given, message):
    levels = np.linspace(0.4, 0.5, 2)  # numpy's own floats are levels as well
    rules = decisions.fit(
        [decisions.FNR(alpha=levels[0])], [P] * 12, MASKS, kind="probabilities", patients=[*"abcdefghijkl"]
    )
    assert len(rules.apply([P], patients=["new"], labels=[MASKS[0]])) == 1
    with pytest.raises(BadInput, match=message):
        rules.apply([scores], **given)


@pytest.mark.parametrize("kind", ["probabilities", "masks"])
def test_a_class_cannot_be_ignored_in_new_cases_either(kind):
    scores = [P] * 12 if kind == "probabilities" else MASKS
    rules = decisions.fit([decisions.Margin(confidence=0.8)], scores, MASKS, kind=kind)
    rules.apply(scores[:1], labels=MASKS[:1], ignore_label=2)
    with pytest.raises(BadInput, match="ignore_label 1 is one of the 2 classes 0 to 1"):
        rules.apply(scores[:1], labels=MASKS[:1], ignore_label=1)


@pytest.mark.parametrize("kind", ["probabilities", "masks"])
def test_a_picture_is_1_mm_thick_unless_its_thickness_is_said(kind):
    labels = [np.array([[1] * k + [0] * (10 - k)]) for k in (4, 5, 6, 7)]
    masks = [np.array([[1] * 5 + [0] * 5])] * 4
    scores = masks if kind == "masks" else [np.stack([1.0 - mask, 1.0 * mask]) for mask in masks]
    volume = decisions.Volume(level=0.8)
    for spacing, mm3 in (((2.0, 3.0), 6), ((1.0, 2.0, 3.0), 6), ((4.0, 2.0, 3.0), 24), (None, 1)):
        rules = decisions.fit([volume], scores, labels, kind=kind, spacing_mm=spacing)
        assert rules.rules[0].numbers["quantile"] == pytest.approx(2 * mm3 / 1000)


def test_a_voxel_that_one_sigmoid_channel_ignores_is_ignored_in_all():
    rng = np.random.default_rng(0)
    logits, in_one = rng.normal(size=(4, 2, 1, 6, 7)), rng.integers(0, 2, (4, 2, 1, 6, 7))
    in_one[:, 0, :, :3] = 255
    in_all = in_one.copy()
    in_all[:, :, :, :3] = 255
    fits = [decisions.fit([decisions.Volume(level=0.7)], list(logits), list(labels), kind="logits",
                          activation="sigmoid") for labels in (in_one, in_all)]  # fmt: skip
    assert [rule.numbers for rule in fits[0].rules] == [rule.numbers for rule in fits[1].rules]
    with pytest.raises(BadInput, match=r"the label 7 at voxel \(z 0, y 3, x 0\) of channel 0"):
        fits[0].apply([logits[0]], labels=[np.where(in_one[0] == 255, 255, 7)])


def test_single_precision_numbers_are_taken_as_they_are_written(tmp_path):
    made = [FNR(np.float32(0.4), np.float32(0.6)), Margin(np.float32(0.9), np.float32(0.6)), Volume(np.float32(0.6))]
    plain = [FNR(0.4, 0.6), Margin(0.9, 0.6), Volume(0.6)]
    assert [(one.label, one.alpha) for one in made] == [(one.label, one.alpha) for one in plain]
    mask = np.array([[0, 1, 1, 0]])
    decisions.fit([Inner(np.float32(0.9), np.float32(0.6))], [mask] * 4, [mask] * 4, kind="masks").save(tmp_path / "r")


@pytest.mark.parametrize(("decision", "option"), [(Margin, "coverage"), (Inner, "purity")])
@pytest.mark.parametrize("value", ["0.9", None, True, 0, 1.1, nan])
def test_what_is_no_share_is_refused(decision, option, value):
    with pytest.raises(BadInput, match=f"{option} must lie above 0 and be at most 1, not {value!r}"):
        decision(**{option: value})


def test_a_mask_that_fills_the_image_is_not_called_empty():
    full, truth = np.ones((4, 4), int), np.eye(4, dtype=int)
    with pytest.raises(BadInput, match="'1', which is predicted everywhere in 9 of 9 patients that have it"):
        decisions.fit([Inner()], [full] * 9, [truth] * 9, kind="masks")


def test_no_patient_is_counted_in_the_plural():
    """An organ that fills the image leaves nothing outside it that could slip in."""
    with pytest.raises(BadInput, match="0 patients with '1' cannot keep a promise"):
        decisions.fit([decisions.FPR(alpha=0.4)], [P] * 12, [np.ones_like(MASKS[0])] * 12, kind="probabilities")


def test_sigmoid_channels_have_no_regions():
    with pytest.raises(BadInput, match="regions unite classes that exclude each other"):
        decisions.fit([decisions.FNR(alpha=0.4)], [P] * 9, [np.stack([MASKS[0]] * 2)] * 9, kind="probabilities",
                      activation="sigmoid", regions={"w": (1,)})  # fmt: skip
