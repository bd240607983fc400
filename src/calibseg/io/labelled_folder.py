"""The cases of one or several folders of predictions and one folder of labels; each case once."""

from typing import NamedTuple

from calibseg.core.types import BadInput
from calibseg.io.conventions import PredictionFolder
from calibseg.io.file_matching import nifti_by_case
from calibseg.io.predictions import NoPrediction, PredictionFiles, copies, match_files


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
    if not unpredicted or by_case:
        first = f"{len(unpredicted)} of {len(labels)} label maps in {folder.labels} have no prediction, like"
        return Matched(list(by_case.values()), wrong, [f"{first} {labels[unpredicted[0]].name}"] if unpredicted else [])
    return Matched([], [*wrong, *missing.values()], [])
