"""How calibrators are fitted and chosen: the options of `calibseg calibrate`, of a grid's [calibrate] and of Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from calibseg.core.coerce import check_fields
from calibseg.core.flag import Flag

ChoiceRule = Literal["keeps-labels", "any"]  # which calibrators may be chosen


@dataclass(frozen=True)
class CalibrationOptions:
    """How calibrators are fitted and one of them is chosen.

    options: of single methods, such as {"local_temperature.epochs": 5}
    """

    fit_on: Annotated[Literal["all", "foreground"], Flag("which voxels are fitted on", ("--fit-on", "--voxels"))] = (
        "all"
    )
    sample: Annotated[int, Flag("at most so many voxels per class and case; 0: all", minimum=0)] = 0
    seed: Annotated[int, Flag("of what is drawn at random", minimum=0)] = 0
    folds: Annotated[int, Flag("of patients, for the choice by cross-fitting", minimum=2)] = 5
    choose: Annotated[
        ChoiceRule,
        Flag(
            "what predict --input will apply: the best that keeps the label of every voxel, so that a segmentation"
            " somebody has validated stays as it is; or the best of any, which may change the segmentation"
        ),
    ] = "keeps-labels"
    options: Annotated[
        Mapping[str, Any],
        Flag(
            "a method's own option, like local_temperature.epochs=5; repeatable",
            ("--option",),
            form="METHOD.OPTION=VALUE",
        ),
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self)
