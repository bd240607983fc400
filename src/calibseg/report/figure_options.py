"""What a figure can be asked to show: the options of `calibseg plot` and of Python, once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from calibseg.core.flag import Flag

Logits = Literal["signed", "absolute", "distance", "raw", "magnitude"]
SUBSET = "whose scores: test, validation, ...; default: test where a table holds several, else the only one"


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """What a figure shows of its sources; metrics: empty: the figure's own."""

    subset: Annotated[str, Flag(SUBSET, ("--subset", "--cases"))] = ""
    voxels: Annotated[
        str, Flag("reliability, signed, slices, training: truth (paper rule), predicted, union, all, boundary")
    ] = "predicted"
    metrics: Annotated[tuple[str, ...], Flag("like dsc,ece,ece@truth; training: columns of log.csv")] = ()
    of: Annotated[str, Flag("reliability: of one class's probability", ("--class",))] = "all"
    option: Annotated[str, Flag("sensitivity: which option was varied, like loss.margin")] = ""
    show: Annotated[
        Logits,
        Flag(
            "logits: centred means, of absolute values, or distances; as printed: raw (MbLS Fig. 4), magnitude"
            " (NACL Fig. 2)"
        ),
    ] = "signed"
    case: Annotated[str | None, Flag("slices: which case, default the first; reliability: of one case")] = None
    index: Annotated[
        int | None, Flag("slices: from 0; default: that with the largest true foreground", ("--slice",))
    ] = None
    work: Annotated[Path | None, Flag("slices: the prepared cases, if they were moved")] = None
