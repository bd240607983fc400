"""Patients to train, validation and test: a group never crosses.

A case belongs to a group: its patient, or for sets without patients the images that look alike. Groups are shuffled by
`split_seed` and cut in three; the training seed has no part in it. Sizes that add up to what there is are met exactly
(by cases: to the nearest whole group); other sizes are taken as proportions.

>>> patients = {f"p{i}_{phase}": f"p{i}" for i in range(10) for phase in ("ED", "ES")}
>>> split = three_way(patients, sizes=(7, 1, 2), split_seed=0)
>>> len(split.train), len(split.validation), len(split.test)        # cases: two per patient
(14, 2, 4)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from calibseg.core.options import seed_number
from calibseg.core.types import BadInput, Split

Patients = Mapping[str, str]  # case id -> patient


def three_way(
    patients: Patients,
    sizes: tuple[float, float, float],
    split_seed: int = 0,
    unit: Literal["patient", "case"] = "patient",
) -> Split:
    """Train, validation and test of the given sizes, counted in patients or in cases."""
    if len(sizes) != 3 or not all(0 <= size < 1e9 for size in sizes) or sizes[0] <= 0:
        raise BadInput(f"sizes are three numbers, train above 0, found {tuple(sizes)}")
    groups = _shuffled(patients, split_seed)
    subsets = sum(size > 0 for size in sizes)
    if len(groups) < subsets:
        raise BadInput(f"{len(groups)} patients cannot fill {subsets} parts; give fewer parts or use leave-one-out")
    counts = np.array([1 if unit == "patient" else len(cases) for cases in groups.values()])
    first, second = _cuts(counts, _scaled(sizes, int(counts.sum())))
    names = list(groups)
    return _split(groups, (names[:first], names[first:second], names[second:]), split_seed)


def folds(patients: Patients, k: int, split_seed: int = 0, validation: int = 0) -> list[Split]:
    """k splits; every patient is tested once. `validation` patients are taken out of each training subset."""
    groups = _shuffled(patients, split_seed)
    names = list(groups)
    if not 2 <= k <= len(names):
        raise BadInput(f"{k} folds of {len(names)} patients: choose 2 to {len(names)}")
    splits = []
    for fold in range(k):
        tested = set(names[fold::k])
        # The patients that follow the tested ones select: over the folds all take their turn.
        rest = [name for name in names[fold + 1 :] + names[: fold + 1] if name not in tested]
        if len(rest) <= validation:
            raise BadInput(f"{validation} validation patients leave none of {len(rest)} to train on; ask for fewer")
        splits.append(_split(groups, (rest[validation:], rest[:validation], tested), split_seed))
    return splits


def leave_one_out(patients: Patients, split_seed: int = 0, validation: int = 0) -> dict[str, Split]:
    """One split per patient, by the patient that is tested. Validation is empty unless subjects are asked for."""
    number = len(set(patients.values()))
    splits = folds(patients, number, split_seed, validation)
    return dict(sorted((patients[split.test[0]], split) for split in splits))


def few_patients(split: Split, patients: Patients, sizes: Sequence[int], draws: int = 1) -> dict[str, Split]:
    """Splits that train on so few patients, drawn from the split's own so often: `train16-draw0`, ...

    A draw's smaller subsets are parts of its larger ones. The rest of the training cases is left out; validation and
    test stay as they are, so that results of all draws are about the same cases.
    """
    pool = sorted({patients[case] for case in split.train})
    if max(sizes) > len(pool):
        raise BadInput(f"{max(sizes)} training patients cannot be drawn from the {len(pool)} that there are")
    splits = {}
    for draw in range(draws):
        order = np.random.default_rng([split.split_seed, draw]).permutation(len(pool))
        for size in sizes:
            drawn = {pool[index] for index in order[:size]}
            train = tuple(case for case in split.train if patients[case] in drawn)
            splits[f"train{size}-draw{draw}"] = replace(split, train=train)
    return splits


def require_validation(split: Split, who: str) -> None:
    """Stop, where somebody needs validation cases and the split has none."""
    if not split.validation:
        raise BadInput(
            f"{who} needs validation cases and this split has none; ask for an inner validation subject: "
            "calibseg split WORK --leave-one-out --validation 1"
        )


def check_split(split: Split, patients: Patients) -> None:
    """Every case known, in one subset only, and no patient in two subsets."""
    subset_of: dict[str, str] = {}
    owner: dict[str, str] = {}
    for subset in ("train", "validation", "calibration", "test"):
        for case in getattr(split, subset):
            if case not in patients:
                raise BadInput(f"the split names case {case!r} in {subset}, which is not among the prepared cases")
            if case in subset_of:
                raise BadInput(f"the split names case {case!r} in {subset_of[case]} and again in {subset}")
            subset_of[case] = subset
            if owner.setdefault(patients[case], subset) != subset:
                raise BadInput(
                    f"the split puts cases of patient {patients[case]!r} in {owner[patients[case]]} and in {subset}"
                )


def _shuffled(patients: Patients, split_seed: int) -> dict[str, list[str]]:
    """Patient -> cases, patients in an order that depends on their names and the seed only."""
    seed_number("split_seed", split_seed)
    groups: dict[str, list[str]] = {}
    for case, patient in patients.items():
        groups.setdefault(patient, []).append(case)
    names = sorted(groups)
    order = np.random.default_rng(split_seed).permutation(len(names))
    return {names[index]: groups[names[index]] for index in order}


def _split(groups: Mapping[str, list[str]], parts: tuple[Iterable[str], ...], split_seed: int) -> Split:
    """The cases of the patients that train, select and test."""
    train, validation, test = (tuple(sorted(case for name in part for case in groups[name])) for part in parts)
    return Split(train, validation, test, split_seed)


def _scaled(sizes: tuple[float, float, float], total: int) -> list[int]:
    """Whole numbers that add up to the total in these proportions (largest remainder)."""
    exact = np.array(sizes, float) * total / sum(sizes)
    counts = np.floor(exact).astype(int)
    for index in np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]:
        counts[index] += 1
    for index in np.nonzero((counts == 0) & (np.array(sizes) > 0))[0]:  # a subset that was asked for is not empty
        counts[index] += 1
        counts[np.argmax(counts)] -= 1
    return counts.tolist()


def _cuts(counts: np.ndarray, sizes: list[int]) -> tuple[int, int]:
    """Where to cut the row of groups so that the subsets come nearest to the sizes."""
    ends = np.cumsum(counts)
    middle, last = (int(size > 0) for size in sizes[1:])  # groups that these subsets have at least
    first, second = (1 + int(np.abs(ends - size).argmin()) for size in (sizes[0], sizes[0] + sizes[1]))
    first = min(first, len(counts) - middle - last)
    return first, min(max(second, first + middle), len(counts) - last)
