"""Metrics: one file each. A metric turns statistics that were computed once per case into numbers.

The statistics are additive, so the same metric serves one case, a pooled set of cases, a worker's share or a DDP rank.
"""

from typing import Any, ClassVar, Literal

from calibseg.core.registry import lazy

__getattr__, __dir__ = lazy(__name__)

# class id or region name -> value; None: all classes together. NaN: undefined, and counted as such
Values = dict[int | str | None, float]


class Metric:
    """One number per class from statistics computed once per case."""

    needs: ClassVar[Literal["calibration", "equal_mass", "overlap", "surface"]]
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str] = ""

    def value(self, statistics: Any) -> Values:
        """The metric per class, and under None for all classes together where that has a meaning."""
        raise TypeError(f"{type(self).__name__} does not say how to compute its value")
