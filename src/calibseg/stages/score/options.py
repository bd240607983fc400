"""What decides the meaning of a score: the options of `calibseg score`, of a grid's [score] and of Python, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

from calibseg.core.coerce import check_fields
from calibseg.core.flag import Flag
from calibseg.core.types import BadInput, Empty, Units, VoxelRule


@dataclass(frozen=True)
class ScoringOptions:
    """Everything that decides what a number means.

    metrics: keys of the metrics to compute; empty: all there are
    options: of single metrics, such as {"hd95.definition": "max_directed", "cece.classes": "released"}
    """

    voxels: Annotated[
        tuple[VoxelRule, ...],
        Flag("which voxels count for calibration: truth (paper rule), predicted, union, all, boundary"),
    ] = ("truth", "predicted", "all")
    boundary_mm: Annotated[float, Flag("how near the true surface the rule boundary reaches")] = 5.0
    metrics: Annotated[tuple[str, ...], Flag("comma-separated keys; default: all, see calibseg list metrics")] = ()
    bins: Annotated[int, Flag("bins of the reliability diagrams")] = 15
    empty: Annotated[Empty, Flag("what a missed organ scores; nan: undefined, counted")] = "nan"
    units: Annotated[Units, Flag("of surface distances")] = "mm"
    options: Annotated[
        Mapping[str, Any],
        Flag(
            "a metric's own option, like hd95.definition=max_directed or cece.classes=released; repeatable",
            ("--option",),
            form="METRIC.OPTION=VALUE",
        ),
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        known = get_args(VoxelRule)
        for voxels in self.voxels or ("",):
            if voxels not in known:
                raise BadInput(f"no voxel rule named {voxels!r}. Known: {', '.join(known)}")
            if self.voxels.count(voxels) > 1:
                raise BadInput(f"the voxel rule {voxels!r} is asked for twice")
        check_fields(self)


@dataclass(frozen=True)
class WorkerOptions:
    """How many processes measure cases, and what becomes of a case that cannot be used.

    workers: None: one for small folders, else as many as there are cores
    skip_bad: leave out what cannot be used and list it, instead of stopping at it
    """

    workers: Annotated[int | None, Flag("processes; default: by the size of the folder")] = None
    skip_bad: Annotated[bool, Flag("leave out what cannot be used, and list it")] = False
