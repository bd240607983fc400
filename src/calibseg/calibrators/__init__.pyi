# Written by scripts/stubs.py (make stubs): do not edit.
import inspect
from collections.abc import Callable as Callable
from collections.abc import Iterable as Iterable
from collections.abc import Mapping as Mapping
from collections.abc import Sequence as Sequence
from pathlib import Path as Path
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal
from typing import Self as Self
from typing import cast as cast
from typing import get_args as get_args

import numpy as np
from torch import nn as nn

from calibseg.calibrators.solvers.log_scores import LogScores as LogScores
from calibseg.calibrators.solvers.voxels import FitOn as FitOn
from calibseg.calibrators.solvers.voxels import ScoreChunk as ScoreChunk
from calibseg.calibrators.solvers.voxels import VoxelStream as VoxelStream
from calibseg.core.arrays import Spacing as Spacing
from calibseg.core.arrays import case_spacing as case_spacing
from calibseg.core.arrays import predictions as predictions
from calibseg.core.arrays import split_cases as split_cases
from calibseg.core.options import one_of as one_of
from calibseg.core.options import seed_number as seed_number
from calibseg.core.options import whole_number as whole_number
from calibseg.core.registry import lazy as lazy
from calibseg.core.types import Activation as Activation
from calibseg.core.types import Array as Array
from calibseg.core.types import BadInput as BadInput
from calibseg.core.types import Prediction as Prediction
from calibseg.core.types import ScoreKind as ScoreKind

__all__ = ["Calibrator", "ScoreChunk", "VoxelStream", "load", "silent"]
Facts = dict[str, Any]
Watch = Callable[[str], None]

def silent(text: str) -> None:
    """A no-op callback that can be pickled, so that a calibrator can be sent to another process."""

class Calibrator:
    """What every calibrator shares: options, arrays and streams, checks, and what it was fitted on.

    voxels: fit on all labelled voxels, or on those whose true class is not 0.
    sample: at most so many voxels of each true class of each case, weighted to stand for all; 0: every voxel.
    seed: of the sample, and of whatever else is drawn.
    """

    keeps_argmax: ClassVar[bool]
    reach: ClassVar[Literal["voxel", "slice", "volume"]] = "voxel"
    uses_image: ClassVar[bool] = False
    uses_spacing: ClassVar[bool] = False
    activations: ClassVar[tuple[Activation, ...]] = ("softmax",)
    learnt: ClassVar[tuple[str, ...]] = ()
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ()
    voxels: FitOn
    sample: int
    seed: int
    classes: int
    activation: Activation
    kind: ScoreKind
    fitted_on: Facts
    facts: Facts
    watch: Watch

    def __init__(self, voxels: Literal["all", "foreground"] = "all", sample: int = 0, seed: int = 0): ...
    def _fit(self, stream: VoxelStream) -> None:
        """Find the parameters from chunks of voxels that can be iterated again and again."""

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Probabilities of voxels [k n] from their normalised log scores [k n], which may be overwritten.

        case_context: what `case_context` computed from the whole case; where: which of its flat voxels these are.
        """

    def state(self) -> tuple[Facts, dict[str, Array]]:
        """The fitted parameters and `facts`, as JSON values and arrays; `load_state` takes them back."""

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Take back what `state` gave."""

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Spacing, slice_axis: int) -> Any:
        """Computed from the whole case, for those that need more than a voxel's own scores; nothing for most."""

    def _module(self, spacing_mm: Spacing) -> nn.Module:
        """The fitted calibrator as a module: normalised log scores [n k *space], image -> probabilities."""

    def fit(
        self,
        scores: Any,
        labels: Any,
        *,
        kind: ScoreKind,
        images: Any = None,
        spacing_mm: Any = None,
        patients: Sequence[str] | None = None,
        activation: Activation = "softmax",
        ignore_label: int | None = None,
        batch: bool | None = None,
    ) -> Self:
        """Fit on labelled scores: one case, a batch or a list of cases.

        kind: logits, log_probabilities or probabilities.
        images: [c *space] of each case, in the form of the scores, for those that look at images (`uses_image`).
        spacing_mm: for all cases or a list of one for each; None: distances count voxels, here and in `transform`.
        patients: whose each case is; unless said, each case is a patient of its own.
        ignore_label: voxels with this label are ignored; 255 always is.
        batch: says whether scores of four axes are a batch of images, where the labels' shape does not tell.
        """

    def transform(
        self,
        scores: Any,
        image: Any = None,
        *,
        spacing_mm: Any = None,
        kind: ScoreKind | None = None,
        batch: bool | None = None,
    ) -> Any:
        """Calibrated probabilities, float32, of one case, a batch or a list of cases, in the form of the scores.

        image, spacing_mm: as in `fit`; kind: unless said, that of the scores it was fitted on.
        """

    def as_module(self, *, kind: ScoreKind | None = None, spacing_mm: Any = None) -> nn.Module:
        """A torch module: scores [n k *space] (and the image, for those that look at it) -> probabilities.

        kind: of the scores; unless said, that of the scores it was fitted on.
        spacing_mm: of every case, for those that measure distances; None: 1, as in `fit`.
        """

    def save(self, path: Path | str) -> Path:
        """Write the fitted calibrator into a folder; return the path of its JSON file."""

    def fit_predictions(self, predictions: Iterable[Prediction]) -> Self:
        """Fit on labelled predictions, which are iterated several times, one case in memory at a time."""

    def transform_prediction(self, prediction: Prediction) -> Array:
        """Calibrated probabilities float32 [k z y x] of one case, chunk by chunk."""

    def open_scores(self, prediction: Prediction) -> LogScores:
        """The log scores of a case, checked against what the calibrator was fitted on."""

    @property
    def name(self) -> str:
        """The calibrator's key: its file's name."""

    @property
    def options(self) -> Facts:
        """Every option with its value: what the constructor was given."""

    def _check_fitted(self) -> None: ...
    def _check_spacing(self, spacing_mm: Any) -> None: ...
    def _case_context(self, scores: LogScores, prediction: Prediction) -> Any: ...

def load(path: Path | str) -> Calibrator:
    """The fitted calibrator in a folder that `Calibrator.save`, or `calibseg calibrate`, wrote."""

from calibseg.calibrators.class_temperature import ClassTemperature as ClassTemperature
from calibseg.calibrators.dirichlet import Dirichlet as Dirichlet
from calibseg.calibrators.histogram import Histogram as Histogram
from calibseg.calibrators.image_temperature import ImageTemperature as ImageTemperature
from calibseg.calibrators.isotonic import Isotonic as Isotonic
from calibseg.calibrators.local_temperature import LocalTemperature as LocalTemperature
from calibseg.calibrators.region_temperature import RegionTemperature as RegionTemperature
from calibseg.calibrators.temperature import Temperature as Temperature
from calibseg.calibrators.vector import Vector as Vector
