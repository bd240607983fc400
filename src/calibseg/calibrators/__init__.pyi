# Written by scripts/stubs.py (make stubs): do not edit.
import inspect
from collections.abc import Callable as Callable
from collections.abc import Iterable as Iterable
from collections.abc import Mapping as Mapping
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal
from typing import Self as Self

import numpy as np

from calibseg.calibrators.solvers.log_scores import LogScores as LogScores
from calibseg.calibrators.solvers.voxels import IGNORE as IGNORE
from calibseg.calibrators.solvers.voxels import ScoreChunk as ScoreChunk
from calibseg.calibrators.solvers.voxels import VoxelRule as VoxelRule
from calibseg.calibrators.solvers.voxels import VoxelStream as VoxelStream
from calibseg.core.options import one_of as one_of
from calibseg.core.options import whole_number as whole_number
from calibseg.core.registry import lazy as lazy
from calibseg.core.types import Activation as Activation
from calibseg.core.types import Array as Array
from calibseg.core.types import BadInput as BadInput
from calibseg.core.types import Prediction as Prediction

__all__ = ["IGNORE", "Calibrator", "ScoreChunk", "VoxelStream", "silent"]
Facts = dict[str, Any]
Spacing = tuple[float, float, float]
Watch = Callable[[str], None]

def silent(text: str) -> None:
    """Listens and says nothing. (A function with a name, so that a calibrator can travel to another process.)"""

class Calibrator:
    """What every calibrator shares: options, streaming, checks, and what it was fitted on.

    voxels: learn from all labelled voxels, or from those whose true class is not 0.
    sample: at most so many voxels of each true class of each case, weighted to stand for all; 0: every voxel.
    seed: of the sample, and of whatever else is drawn.
    """

    keeps_argmax: ClassVar[bool]
    reach: ClassVar[Literal["voxel", "slice", "volume"]] = "voxel"
    uses_image: ClassVar[bool] = False
    activations: ClassVar[tuple[Activation, ...]] = ("softmax",)
    voxels: VoxelRule
    sample: int
    seed: int
    classes: int
    activation: Activation
    fitted_on: Facts
    watch: Watch

    def __init__(self, voxels: Literal["all", "foreground"] = "all", sample: int = 0, seed: int = 0): ...
    def _fit(self, stream: VoxelStream) -> None:
        """Find what is learnt from slabs of voxels that can be iterated again and again."""

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Probabilities of voxels [k n] from their normalised log scores [k n], which may be overwritten.

        look: what `case_context` saw in the whole case; where: which of its flat voxels these are.
        """

    def state(self) -> tuple[Facts, dict[str, Array]]:
        """What was learnt, as JSON facts and arrays; `load_state` takes it back."""

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Take back what `state` told."""

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Spacing, slice_axis: int) -> Any:
        """What the whole case tells, for those that need more than a voxel's own scores; nothing for most."""

    def fit(self, predictions: Iterable[Prediction]) -> Self:
        """Learn from labelled predictions, which are iterated several times, one case in memory at a time."""

    def transform(
        self, scores: Any, image: Any = None, *, spacing_mm: Spacing = (1.0, 1.0, 1.0), slice_axis: int = 0
    ) -> Array:
        """Calibrated probabilities float32 [k z y x] of logits or log-probabilities [k z y x], slab by slab."""

    def opened(self, scores: Any) -> LogScores:
        """The scores that `transform` was given, checked against what was learnt."""

    @property
    def name(self) -> str:
        """The calibrator's key: its file's name."""

    @property
    def options(self) -> Facts:
        """Every option with its value: what the constructor was given."""

    def _case_context(self, scores: LogScores, prediction: Prediction) -> Any: ...

from calibseg.calibrators.class_temperature import ClassTemperature as ClassTemperature
from calibseg.calibrators.dirichlet import Dirichlet as Dirichlet
from calibseg.calibrators.histogram import Histogram as Histogram
from calibseg.calibrators.image_temperature import ImageTemperature as ImageTemperature
from calibseg.calibrators.isotonic import Isotonic as Isotonic
from calibseg.calibrators.local_temperature import LocalTemperature as LocalTemperature
from calibseg.calibrators.region_temperature import RegionTemperature as RegionTemperature
from calibseg.calibrators.temperature import Temperature as Temperature
from calibseg.calibrators.vector import Vector as Vector
