"""The cases of one or several folders of predictions and one folder of labels; each case once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from calibseg.core.types import BadInput
from calibseg.io.conventions import PredictionFolder
from calibseg.io.file_matching import nifti_by_case
from calibseg.io.predictions import NoPrediction, PredictionFiles, copies, match_files


def several_raters(labels: Path | None, raters: Sequence[Path]) -> tuple[Path | None, tuple[Path, ...]]:
    """The folder of the first rater, which is `labels` where that is given (None: there is none), and of the others."""
    every = [*((labels,) if labels else ()), *raters]
    if raters and len(every) < 2:
        raise BadInput(f"--raters names one folder, {raters[0]}: several raters are two or more, a folder each")
    _check_apart(every, "the labels of two raters")
    return (every[0], tuple(every[1:])) if every else (None, ())


def check_members(folders: Sequence[Path]) -> None:
    """Refuse an ensemble of one, and one in which a member stands twice."""
    if len(folders) == 1:
        raise BadInput(f"--members names one folder, {folders[0]}: an ensemble has two members or more, a folder each")
    _check_apart(folders, "two members of an ensemble")


def _check_apart(folders: Sequence[Path], what: str) -> None:
    places = [path.resolve() for path in folders]
    for path, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise BadInput(f"{path} is named as {what}")


class Matched(NamedTuple):
    """The cases of folders, what is wrong with others, and one sentence about labels without a prediction, if any."""

    pairs: list[PredictionFiles]
    unmatched: list[BadInput]
    left_out: list[str]


def match_folder(folder: PredictionFolder) -> Matched:
    """The cases of folders with labels. Labels without a prediction are counted; they are wrong if all are."""
    if folder.labels is None:
        raise BadInput(f"{folder.predictions} has no folder of labels beside it: both are needed")
    labels = nifti_by_case(folder.labels) if folder.labels.is_dir() else {}
    by_case: dict[str, PredictionFiles] = {}
    wrong: list[BadInput] = []
    unpredicted, missing = list(labels), {}  # in every folder, in this one
    for path in folder.all_predictions:
        pairs, unmatched = match_files(path, folder.labels, folder.files)
        for pair in pairs:
            if (twin := by_case.setdefault(pair.case, pair)) is not pair:
                raise BadInput(f"{pair.files[0]} and {twin.files[0]} predict the same case: give every case once")
        missing = {error.case: error for error in unmatched if isinstance(error, NoPrediction)}
        unpredicted = [case for case in unpredicted if case in missing]
        wrong += [error for error in unmatched if not isinstance(error, NoPrediction)]
    if folder.more:
        twins = copies(list(by_case.values()))
        wrong += twins.values()
        by_case = {case: pair for case, pair in by_case.items() if case not in twins}
    if by_case and (folder.raters or folder.members):
        by_case, more = _joined(folder, by_case)
        wrong += more
    if not unpredicted or by_case:
        first = f"{len(unpredicted)} of {len(labels)} label maps in {folder.labels} have no prediction, like"
        return Matched(list(by_case.values()), wrong, [f"{first} {labels[unpredicted[0]].name}"] if unpredicted else [])
    return Matched([], [*wrong, *missing.values()], [])


def _joined(
    folder: PredictionFolder, pairs: dict[str, PredictionFiles]
) -> tuple[dict[str, PredictionFiles], list[BadInput]]:
    """The cases with the label maps of further raters and the predictions of an ensemble's members; all, or none."""
    assert folder.labels is not None
    check_members(folder.members)
    for path in folder.raters:
        if not path.is_dir():
            raise BadInput(f"no folder {path}")
    raters = [(path, nifti_by_case(path)) for path in folder.raters]
    by_case = [
        (path, {pair.case: pair for pair in match_files(path, folder.labels, folder.files)[0]})
        for path in folder.members
    ]
    joined: dict[str, PredictionFiles] = {}
    wrong: list[BadInput] = []
    for case, pair in pairs.items():
        missing = [path for path, files in (*raters, *by_case) if case not in files]
        if missing:
            what = "label map" if missing[0] in folder.raters else "prediction by that member"
            wrong.append(BadInput(f"{missing[0]} holds no {what} of the case {case!r}"))
            continue
        joined[case] = replace(
            pair,
            raters=tuple(files[case] for _, files in raters),
            members=tuple(files[case] for _, files in by_case),
        )
    return joined, wrong
