"""Metrics: one file each. A metric turns statistics that were computed once per case into numbers.

The statistics are additive, so the same metric serves one case, a pooled set of cases, a worker's share or a DDP rank.
"""

from typing import Any, ClassVar, Literal

from calibseg.core.registry import lazy

__getattr__, __dir__ = lazy(__name__)

# class id or region name -> value; None: all classes together. NaN: undefined, and counted as such
Values = dict[int | str | None, float]


class Metric:
    """One number per class from statistics computed once per case.

    acronym: how tables and figures write it
    needs: the statistics that `value` takes
    headline: its place among the metrics that a report shows first, and the voxel rule it is shown on ("" without)
    by_distance: whether it is also computed in each band of distance to the true surface, where a score has them
    """

    acronym: ClassVar[str]
    needs: ClassVar[Literal["calibration", "equal_mass", "overlap", "surface"]]
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str] = ""
    headline: ClassVar[tuple[int, str] | None] = None
    by_distance: ClassVar[bool] = False

    def value(self, statistics: Any) -> Values:
        """The metric per class, and under None for all classes together where that has a meaning."""
        raise TypeError(f"{type(self).__name__} does not say how to compute its value")
