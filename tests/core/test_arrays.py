"""The caller's arrays: one case, a batch or a list, numpy or torch, and what their values prove."""

import numpy as np
import pytest
import torch

from calibseg.core.arrays import case_spacing, check_kind, mark_ignored, predictions, split_cases, to_numpy
from calibseg.core.types import BadInput

RNG = np.random.default_rng(0)


def logits(*shape):
    return RNG.normal(size=shape) * 3


def softmax(scores, axis=0):
    p = np.exp(scores - scores.max(axis, keepdims=True))
    return p / p.sum(axis, keepdims=True)


def labels(*shape, k=3):
    return RNG.integers(0, k, shape)


@pytest.mark.parametrize(
    ("scores", "target", "number"),
    [
        ((3, 8, 9), (8, 9), 1),
        ((3, 4, 8, 9), (4, 8, 9), 1),
        ((3, 4, 8, 9), (2, 4, 8, 9), 1),  # two raters
        ((5, 3, 8, 9), (5, 8, 9), 5),
        ((5, 3, 8, 9), (5, 2, 8, 9), 5),  # two raters
        ((2, 3, 4, 8, 9), (2, 4, 8, 9), 2),
    ],
)
def test_the_labels_shape_tells_a_case_from_a_batch(scores, target, number):
    cases = split_cases(logits(*scores), labels(*target))
    assert len(cases) == number
    assert cases.scores[0].shape == (scores if number == 1 else scores[1:])
    assert cases.labels[0].shape == (target if number == 1 else target[1:])


def test_where_both_fit_the_caller_must_say_batch():
    for scores, target in (((3, 3, 8, 9), (3, 8, 9)), ((2, 3, 8, 9), (2, 3, 8, 9))):
        with pytest.raises(BadInput, match="say batch=False or batch=True"):
            split_cases(logits(*scores), labels(*target))
        assert len(split_cases(logits(*scores), labels(*target), batch=True)) == scores[0]
        assert len(split_cases(logits(*scores), labels(*target), batch=False)) == 1
    with pytest.raises(BadInput, match=r"scores \[3, 8, 9\] are one case: batch=True"):
        split_cases(logits(3, 8, 9), labels(8, 9), batch=True)


def test_without_labels_the_number_of_classes_tells():
    assert len(split_cases(logits(3, 4, 8, 9), classes=3)) == 1
    assert len(split_cases(logits(4, 3, 8, 9), classes=3)) == 4
    with pytest.raises(BadInput, match=r"\[3, 3, 8, 9\] of 3 classes may be one volume or a batch of 3 images"):
        split_cases(logits(3, 3, 8, 9), classes=3)


def test_shapes_that_fit_nothing_are_refused():
    with pytest.raises(BadInput, match=r"fit scores .* neither as one volume"):
        split_cases(logits(3, 4, 8, 9), labels(5, 8, 9))
    with pytest.raises(BadInput, match="must be one case"):
        split_cases(logits(3, 8), labels(8))
    with pytest.raises(BadInput, match=r"a batch of 2 cases, and labels \[3, 4, 8, 9\] of 3"):
        split_cases(logits(2, 3, 4, 8, 9), labels(3, 4, 8, 9))
    with pytest.raises(BadInput, match="2 cases of scores, but 1 of labels"):
        split_cases([logits(3, 8, 9)] * 2, [labels(8, 9)])
    with pytest.raises(BadInput, match="not nested lists of numbers"):
        split_cases([[[[0.5]]]], [[[0]]])


def test_results_come_back_as_the_scores_were_given():
    array = logits(4, 3, 8, 9).astype(np.float32)
    for given in (array, torch.tensor(array, requires_grad=True), list(array), list(torch.tensor(array))):
        cases = split_cases(given, classes=3)
        back = cases.like_given(cases.scores)
        assert type(back) is (np.ndarray if isinstance(given, np.ndarray) else type(given))
        pairs = zip(back, given, strict=True)
        assert all(type(one) is type(other) and (to_numpy(one) == to_numpy(other)).all() for one, other in pairs)


def test_tensors_of_any_kind_become_numpy():
    tensor = torch.tensor([0.5, 1.25], requires_grad=True)
    assert to_numpy(tensor).tolist() == [0.5, 1.25]
    assert to_numpy(tensor.bfloat16()).dtype == np.float32
    assert to_numpy(tensor.half()).dtype == np.float16
    monai = pytest.importorskip("monai.data")
    meta = monai.MetaTensor(torch.tensor([[1.0, 2.0]]))
    assert type(to_numpy(meta)) is np.ndarray
    cases = split_cases(monai.MetaTensor(torch.zeros(3, 4, 8, 9)), classes=3)
    assert type(cases.like_given(cases.scores)) is torch.Tensor


def test_values_that_prove_another_kind_are_refused():
    z = logits(3, 4, 8, 9)
    check_kind([z], "logits")
    check_kind([softmax(z)], "probabilities")
    check_kind([softmax(z).astype(np.float16)], "probabilities")
    check_kind([np.log(softmax(z))], "log_probabilities")
    check_kind([np.log(softmax(z))], "logits")  # they are logits too
    check_kind([softmax(z), z], "logits")  # one case alone proves nothing about the whole
    check_kind([1 / (1 + np.exp(-z))], "probabilities", "sigmoid")
    check_kind([softmax(z)], "logits", "sigmoid")  # a sigmoid's logits may be anything
    with pytest.raises(BadInput, match="called logits, but all of them lie between 0 and 1 and sum to 1"):
        check_kind([softmax(z), softmax(z)], "logits")
    with pytest.raises(BadInput, match=r"case 1: probabilities lie between 0 and 1, not .* say kind='logits'"):
        check_kind([softmax(z), z], "probabilities")
    with pytest.raises(BadInput, match=r"the probabilities of a voxel sum to 1, not 1.5"):
        check_kind([np.full((3, 4, 8, 9), 0.5)], "probabilities")
    with pytest.raises(BadInput, match="log-probabilities are at most 0, not"):
        check_kind([z], "log_probabilities")
    with pytest.raises(BadInput, match="kind must be logits, log_probabilities or probabilities, not 'scores'"):
        check_kind([z], "scores")
    with pytest.raises(BadInput, match="activation must be softmax or sigmoid, not 'relu'"):
        check_kind([z], "logits", "relu")


def test_a_single_voxel_that_does_not_sum_to_1_is_no_proof_of_probabilities():
    p = softmax(logits(3, 4, 8, 9))
    p[0, -1, -1, -1] += 0.01
    check_kind([p], "logits")
    with pytest.raises(BadInput, match=r"sum to 1, not 1\.01"):
        check_kind([p], "probabilities")


def test_2d_cases_become_volumes_of_one_plane():
    z, y, image = logits(3, 8, 9), labels(8, 9), logits(2, 8, 9)
    y[2:4] = 7
    (case,) = predictions(split_cases(z, y), "logits", images=image, spacing_mm=(0.5, 2.0), ignore_label=7)
    assert (case.scores == z[:, None]).all()
    assert case.labels.tolist() == np.where(y == 7, 255, y)[None].tolist()
    assert (case.image == image[:, None]).all()
    assert (case.case_id, case.patient, case.spacing_mm) == ("case 0", "case 0", (2.0, 0.5, 2.0))
    (soft,) = predictions(split_cases(z, softmax(logits(3, 8, 9))), "logits")
    assert soft.labels.shape == (3, 1, 8, 9)


def test_what_is_said_for_each_case_must_be_said_for_all():
    z, y = logits(2, 3, 4, 8, 9), labels(2, 4, 8, 9)
    cases = predictions(split_cases(z, y), "logits", patients=["a", "a"], spacing_mm=[(1, 2, 3), (2, 2, 2)])
    assert [case.patient for case in cases] == ["a", "a"]
    assert [case.spacing_mm for case in cases] == [(1.0, 2.0, 3.0), (2.0, 2.0, 2.0)]
    for given in ({"patients": ["a"]}, {"spacing_mm": [(1, 1, 1)]}, {"images": logits(3, 1, 4, 8, 9)}):
        with pytest.raises(BadInput, match="one for each case"):
            predictions(split_cases(z, y), "logits", **given)
    for spacing in ((1, 1), (1, 0, 1), (1, 1, float("nan"))):
        with pytest.raises(BadInput, match="spacing_mm must be positive numbers"):
            case_spacing(spacing, 3)


def test_an_ignored_label_becomes_255_whatever_its_type():
    for kind in (np.int8, np.int16, np.int64):
        assert mark_ignored(np.array([-1, 0, 2], kind), -1).tolist() == [255, 0, 2]
    assert mark_ignored(np.array([3, 0, 2], np.uint8), 3).tolist() == [255, 0, 2]
    assert mark_ignored(np.array([True, False]), None).dtype == np.uint8


def test_255_beside_another_ignored_label_is_refused():
    with pytest.raises(BadInput, match="labels hold 255, which is no class, and the ignored label is 7"):
        mark_ignored(np.array([0, 7, 255]), 7)
