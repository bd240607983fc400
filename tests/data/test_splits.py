"""Splits: sizes as asked, groups never cross, the same seed the same split."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from calibseg.core import registry
from calibseg.core.types import BadInput, Split
from calibseg.data.split_options import SplitOptions
from calibseg.data.splits import (
    _shuffled,
    check_split,
    few_patients,
    folds,
    leave_one_out,
    require_validation,
    three_way,
)


def patients_of(count, cases_each=1):
    return {f"p{n:03d}_{case}": f"p{n:03d}" for n in range(count) for case in range(cases_each)}


def people(split, patients):
    return [{patients[case] for case in part} for part in (split.train, split.validation, split.test)]


@pytest.mark.parametrize(
    ("key", "count", "cases_each"),
    [
        ("hippocampus", 260, 1),
        ("acdc", 100, 2),
        ("flare", 360, 1),
        ("brats19", 335, 1),
        ("prostate", 32, 1),
        ("promise12", 50, 1),
        ("busi", 647, 1),
    ],
)
def test_the_papers_sizes_are_met_exactly(key, count, cases_each):
    rule = registry.find("datasets", key).facts["split"]
    patients = patients_of(count, cases_each)
    split = three_way(patients, rule["sizes"], unit=rule.get("unit", "patient"))
    check_split(split, patients)
    assert tuple(map(len, people(split, patients))) == rule["sizes"]


def test_flares_361st_volume_goes_to_training():
    patients = patients_of(361)
    assert tuple(map(len, people(three_way(patients, (240, 40, 80)), patients))) == (241, 40, 80)


groups = st.lists(st.integers(1, 4), min_size=3, max_size=40)


@settings(max_examples=60, deadline=None)
@given(groups, st.integers(0, 5), st.sampled_from(["patient", "case"]))
def test_a_group_never_crosses_and_every_case_is_used_once(sizes, seed, unit):
    patients = {f"g{n}_{case}": f"g{n}" for n, size in enumerate(sizes) for case in range(size)}
    split = three_way(patients, (70, 10, 20), seed, unit)
    check_split(split, patients)
    train, validation, test = people(split, patients)
    assert not (train & validation)
    assert not (train & test)
    assert not (validation & test)
    assert train
    assert validation
    assert test
    assert sorted((*split.train, *split.validation, *split.test)) == sorted(patients)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=20, max_size=40), st.integers(0, 3))
def test_sizes_in_cases_are_met_to_the_nearest_group(sizes, seed):
    patients = {f"g{n}_{case}": f"g{n}" for n, size in enumerate(sizes) for case in range(size)}
    quarter = len(patients) // 4
    half = len(patients) - 2 * quarter
    split = three_way(patients, (half, quarter, quarter), seed, "case")
    # A cut lies within half a group of where it should be, and a part has two cuts.
    assert abs(len(split.train) - half) <= 2
    assert abs(len(split.validation) - quarter) <= 4
    assert abs(len(split.test) - quarter) <= 2


def test_the_order_of_the_cases_does_not_matter_and_the_seed_does():
    patients = patients_of(30, 2)
    backwards = dict(reversed(patients.items()))
    assert three_way(patients, (20, 5, 5), 3) == three_way(backwards, (20, 5, 5), 3)
    assert three_way(patients, (20, 5, 5), 3) != three_way(patients, (20, 5, 5), 4)
    assert three_way(patients, (20, 5, 5), 4).split_seed == 4


def test_every_patient_is_tested_once_in_k_folds():
    patients = patients_of(13, 2)
    assert [sizes_of(split) for split in folds(patients, 2)] == [(12, 0, 14), (14, 0, 12)]
    found = folds(patients, 5, validation=2)
    tested = [case for split in found for case in split.test]
    assert sorted(tested) == sorted(patients)
    for split in found:
        check_split(split, patients)
        train, validation, test = people(split, patients)
        assert len(validation) == 2
        assert len(train) + len(test) == 11


def test_leave_one_out_has_no_validation_unless_asked():
    patients = {f"subject_{name}": name for name in ("1", "4", "5", "7", "14", "070", "148")}
    found = leave_one_out(patients)
    assert set(found) == set(patients.values())
    for name, split in found.items():
        assert split.test == (f"subject_{name}",)
        assert split.validation == ()
        assert len(split.train) == 6
        with pytest.raises(BadInput, match=r"crac needs validation cases .* --leave-one-out --validation 1"):
            require_validation(split, "crac")
    inner = leave_one_out(patients, validation=1)
    assert all(len(split.validation) == 1 and len(split.train) == 5 for split in inner.values())
    assert len({split.validation for split in inner.values()}) == 7  # everybody takes a turn
    require_validation(inner["14"], "crac")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: three_way(p, (0, 1, 1)), "train above 0"),
        (lambda p: three_way(dict(list(p.items())[:2]), (7, 1, 2)), "2 patients cannot fill 3 parts"),
        (lambda p: folds(p, 1), "choose 2 to 6"),
        (lambda p: folds(p, 7), "7 folds of 6 patients: choose 2 to 6"),
        (lambda p: folds(p, 3, validation=4), "leave none of 4 to train on"),
        (lambda p: check_split(Split(("p000_0",), (), ("nobody",), 0), p), "'nobody' in test, which is not among"),
        (lambda p: check_split(Split(("p000_0",), (), ("p000_0",), 0), p), "'p000_0' in train and again in test"),
    ],
)
def test_what_cannot_be_split_is_explained(make, said):
    with pytest.raises(BadInput, match=said):
        make(patients_of(6))


def test_a_patient_in_two_parts_is_found():
    with pytest.raises(BadInput, match="cases of patient 'p000' in train and in test"):
        check_split(Split(("p000_0",), (), ("p000_1",), 0), patients_of(2, 2))


def test_drawn_splits_train_on_few_patients_of_the_default_and_change_nothing_else():
    patients = patients_of(30, 2)
    split = three_way(patients, (20, 4, 6), 1)
    found = few_patients(split, patients, (2, 8), 3)
    assert list(found) == [f"train{size}-draw{draw}" for draw in range(3) for size in (2, 8)]
    for name, one in found.items():
        check_split(one, patients)
        assert (one.validation, one.test) == (split.validation, split.test)
        assert set(one.train) < set(split.train)
        assert len(people(one, patients)[0]) == int(name.removeprefix("train").partition("-")[0])  # with both cases
        assert len(one.train) == 2 * len(people(one, patients)[0])
    for draw in range(3):
        assert set(found[f"train2-draw{draw}"].train) < set(found[f"train8-draw{draw}"].train)
    assert len({one.train for one in found.values()}) == 6
    assert few_patients(split, patients, (20,)) == {"train20-draw0": split}  # one draw of all that there are


def test_draws_that_cannot_be_made_are_refused():
    patients = patients_of(10)
    with pytest.raises(BadInput, match="8 training patients cannot be drawn from the 7 that there are"):
        few_patients(three_way(patients, (7, 1, 2)), patients, (2, 8))
    with pytest.raises(BadInput, match="draws must be a whole number of at least 1, not 0"):
        SplitOptions(train_sizes=(8,), draws=0)
    with pytest.raises(BadInput, match=r"draws of \(4, 0\) training patients"):
        SplitOptions(train_sizes=(4, 0))


def sizes_of(split):
    return tuple(len(part) for part in (split.train, split.validation, split.test))


@pytest.mark.parametrize(
    ("count", "wanted", "found"),
    [
        # 10 * (50, 1, 50) / 101 is 4.95, 0.1, 4.95: rounded 5, 0, 5; who was asked for gets one from the largest
        (10, (50, 1, 50), (4, 1, 5)),
        (10, (98, 1, 1), (8, 1, 1)),
        (3, (98, 1, 1), (1, 1, 1)),
        (3, (1, 1, 98), (1, 1, 1)),
        (4, (1, 98, 1), (1, 2, 1)),
        (2, (98, 0, 2), (1, 0, 1)),
        (2, (1, 9, 0), (1, 1, 0)),
        (5, (7, 0, 0), (5, 0, 0)),
        (10, (42, 35, 23), (4, 4, 2)),  # 4.2, 3.5, 2.3: the half is the largest remainder, not the largest part
        (11, (1, 1, 1), (4, 4, 3)),  # equal remainders: the first subsets take what is left
    ],
)
def test_proportions_are_rounded_by_the_largest_remainder_and_no_subset_asked_for_is_empty(count, wanted, found):
    assert sizes_of(three_way(patients_of(count), wanted)) == found


def test_a_large_group_at_the_start_is_not_trained_and_tested():
    patients = {f"{group}{case}": group for group in "AB" for case in range(10)}
    split = three_way(patients, (1, 0, 9), unit="case")  # neither group comes near one tenth
    check_split(split, patients)
    assert sizes_of(split) == (10, 0, 10)


def test_a_large_group_at_the_end_leaves_no_subset_empty():
    patients = {"a": "A", "b": "B", **{f"c{case:02d}": "C" for case in range(10)}}
    seed = next(seed for seed in range(99) if list(_shuffled(patients, seed))[-1] == "C")
    split = three_way(patients, (1, 10, 1), seed, unit="case")  # the second cut would lie nearest behind C
    assert sizes_of(split) == (1, 1, 10)


@pytest.mark.parametrize("unit", ["patient", "case"])
def test_cuts_lie_where_a_loop_over_all_cuts_finds_the_nearest(unit):
    for seed in range(20):
        sizes = [1 + (7 * n + seed) % 4 for n in range(12)]
        patients = {f"g{n:02d}_{case}": f"g{n:02d}" for n, size in enumerate(sizes) for case in range(size)}
        total = 12 if unit == "patient" else len(patients)
        wanted = (total - 2 * (total // 4), total // 4, total // 4)
        split = three_way(patients, wanted, seed, unit)
        count = {part: len(set(names)) if unit == "patient" else len(names) for part, names in (
            ("train", [patients[c] for c in split.train]), ("test", [patients[c] for c in split.test]))}  # fmt: skip
        order = [len(cases) if unit == "case" else 1 for cases in _shuffled(patients, seed).values()]
        ends = [sum(order[:n]) for n in range(1, 13)]
        assert abs(count["train"] - wanted[0]) == min(abs(end - wanted[0]) for end in ends)
        assert abs(count["test"] - wanted[2]) == min(abs(total - end - wanted[2]) for end in ends[:-1])


def test_subsets_are_sorted_and_defaults_are_seed_0_without_validation():
    patients = patients_of(30, 2)
    assert three_way(patients, (20, 5, 5)) == three_way(patients, (20, 5, 5), 0, "patient")
    assert folds(patients, 3) == folds(patients, 3, split_seed=0, validation=0)
    assert leave_one_out(patients) == leave_one_out(patients, split_seed=0, validation=0)
    assert leave_one_out(patients)["p003"].split_seed == 0
    assert list(leave_one_out(patients)) == sorted(set(patients.values()))
    for split in (three_way(patients, (20, 5, 5), 3), *folds(patients, 4, 3, validation=4)):
        for part in (split.train, split.validation, split.test):
            assert list(part) == sorted(part)


def test_the_validation_patients_of_a_fold_are_those_that_follow_the_tested_ones():
    patients = patients_of(6)
    order = list(_shuffled(patients, 5))
    for number, split in enumerate(folds(patients, 3, split_seed=5, validation=2)):
        tested = {order[number], order[number + 3]}
        following = [name for name in order[number + 1 :] + order[: number + 1] if name not in tested]
        assert people(split, patients) == [set(following[2:]), set(following[:2]), tested]


def test_a_case_on_the_way_to_another_subset_is_found_also_between_train_and_calibration():
    with pytest.raises(BadInput, match="cases of patient 'p000' in train and in calibration"):
        check_split(Split(("p000_0",), (), ("p001_0",), 0, ("p000_1",)), patients_of(2, 2))
    with pytest.raises(BadInput, match=r"sizes are three numbers, train above 0, found \(1, 1\)"):
        three_way(patients_of(4), (1, 1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="sizes are three numbers"):
        three_way(patients_of(4), (1, -1, 1))
    with pytest.raises(BadInput, match="sizes are three numbers"):
        three_way(patients_of(4), (1, 1e9, 1))
