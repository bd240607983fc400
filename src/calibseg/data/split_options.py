"""How prepared cases are split: the options of `calibseg split`, of a grid's [split] and of Python, once."""

from dataclasses import dataclass
from typing import Annotated

from calibseg.core.coerce import check_fields
from calibseg.core.flag import Flag
from calibseg.core.types import BadInput

Sizes = tuple[float, float, float]


@dataclass(frozen=True)
class SplitOptions:
    """One of sizes, folds and leave-one-out; without any, the dataset's own rule.

    train_sizes, draws: splits `train16-draw0`, ... that train on 16, ... patients drawn from those of `default`
    """

    sizes: Annotated[Sizes | None, Flag("train, validation and test; default: as in the papers, or 70 10 20")] = None
    folds: Annotated[int | None, Flag("k-fold cross-validation instead", minimum=2)] = None
    leave_one_out: Annotated[bool, Flag("one split per patient instead", ("--leave-one-out",))] = False
    validation: Annotated[int, Flag("patients that select, in folds and leave-one-out", minimum=0)] = 0
    train_sizes: Annotated[
        tuple[int, ...], Flag("also splits that train on so few patients, e.g. 8,16: train8-draw0, ...")
    ] = ()
    draws: Annotated[int, Flag("how often each of --train-sizes is drawn", minimum=1)] = 1
    split_seed: Annotated[int, Flag("which split; a training seed never changes it", minimum=0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if sum([self.sizes is not None, self.folds is not None, self.leave_one_out]) > 1:
            raise BadInput("choose one of sizes, folds and leave-one-out")
        if min(self.train_sizes, default=1) < 1:
            raise BadInput(f"{self.draws} draws of {self.train_sizes} training patients: both must be at least 1")
        if self.draws > 1 and not self.train_sizes:
            raise BadInput(f"{self.draws} draws are for train_sizes: there is nothing to draw")
        if self.draws > 1000:
            raise BadInput(f"{self.draws} draws of each size of training subset are too many: at most 1000")
