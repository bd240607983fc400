r"""Calibrators: what repairs a network's confidence after training, one file each.

    calibrator = Temperature().fit(validation_predictions)      # a list, or anything that can be iterated again
    p = calibrator.transform(logits)                            # [k z y x] -> probabilities float32 [k z y x]

Every calibrator reads log scores that are normalised at each voxel (`log_scores`): logits and their log-softmax give
the same result. `fit` streams: one case in memory at a time, a slab of it at a time in arithmetic.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np

from calibseg.calibrators.solvers.log_scores import LogScores
from calibseg.calibrators.solvers.voxels import IGNORE, ScoreChunk, VoxelRule, VoxelStream
from calibseg.core.options import one_of, whole_number
from calibseg.core.registry import lazy
from calibseg.core.types import Activation, Array, BadInput, Prediction

__all__ = ["IGNORE", "Calibrator", "ScoreChunk", "VoxelStream", "silent"]

__getattr__, __dir__ = lazy(__name__)

Facts = dict[str, Any]
Spacing = tuple[float, float, float]
Watch = Callable[[str], None]  # is told how a long fit goes on


def silent(text: str) -> None:
    """Listens and says nothing. (A function with a name, so that a calibrator can travel to another process.)"""


class Calibrator:
    """What every calibrator shares: options, streaming, checks, and what it was fitted on.

    voxels: learn from all labelled voxels, or from those whose true class is not 0.
    sample: at most so many voxels of each true class of each case, weighted to stand for all; 0: every voxel.
    seed: of the sample, and of whatever else is drawn.
    """

    keeps_argmax: ClassVar[bool]  # whether the likeliest class stays the likeliest
    reach: ClassVar[Literal["voxel", "slice", "volume"]] = "voxel"  # the smallest piece that transform must see at once
    uses_image: ClassVar[bool] = False
    activations: ClassVar[tuple[Activation, ...]] = ("softmax",)

    def __init__(self, voxels: Literal["all", "foreground"] = "all", sample: int = 0, seed: int = 0):
        self.voxels: VoxelRule = one_of("voxels", voxels, ("all", "foreground"))
        self.sample = whole_number("sample", sample, 0)
        self.seed = whole_number("seed", seed, 0)
        self.classes = 0  # 0: not fitted yet
        self.activation: Activation = "softmax"
        self.fitted_on: Facts = {}
        self.watch: Watch = silent

    # ---------------------------------------------------------------- what a subclass says

    def _fit(self, stream: VoxelStream) -> None:
        """Find what is learnt from slabs of voxels that can be iterated again and again."""
        raise TypeError(f"{type(self).__name__} does not say how it learns")

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Probabilities of voxels [k n] from their normalised log scores [k n], which may be overwritten.

        look: what `case_context` saw in the whole case; where: which of its flat voxels these are.
        """
        raise TypeError(f"{type(self).__name__} does not say how it transforms")

    def state(self) -> tuple[Facts, dict[str, Array]]:
        """What was learnt, as JSON facts and arrays; `load_state` takes it back."""
        raise TypeError(f"{type(self).__name__} does not say what it learnt")

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Take back what `state` told."""
        raise TypeError(f"{type(self).__name__} cannot be restored")

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Spacing, slice_axis: int) -> Any:
        """What the whole case tells, for those that need more than a voxel's own scores; nothing for most."""
        return None

    # ---------------------------------------------------------------- what the caller sees

    def fit(self, predictions: Iterable[Prediction]) -> Self:
        """Learn from labelled predictions, which are iterated several times, one case in memory at a time."""
        stream = VoxelStream(
            predictions, self.voxels, self.sample, self.seed, self.activations, self.name, self._case_context
        )
        self._fit(stream)
        self.classes, self.activation = stream.classes, stream.activation
        self.fitted_on = stream.told()
        return self

    def transform(
        self, scores: Any, image: Any = None, *, spacing_mm: Spacing = (1.0, 1.0, 1.0), slice_axis: int = 0
    ) -> Array:
        """Calibrated probabilities float32 [k z y x] of logits or log-probabilities [k z y x], slab by slab."""
        read = self.opened(scores)
        case_context = self.case_context(read, image, spacing_mm, slice_axis)
        found = np.empty((read.classes, int(np.prod(read.shape[1:]))), np.float32)
        for where, part in read.stream():
            found[:, where] = self.apply(part, case_context, where)
        return found.reshape(read.shape)

    def opened(self, scores: Any) -> LogScores:
        """The scores that `transform` was given, checked against what was learnt."""
        if not self.classes:
            raise BadInput(f"{self.name} is not fitted yet: call fit, or load a fitted one")
        scores = scores.detach().cpu().numpy() if hasattr(scores, "detach") else scores  # a tensor
        scores = scores if hasattr(scores, "dtype") and hasattr(scores, "shape") else np.asarray(scores)
        read = LogScores(scores, "logits", self.activation, "scores to transform")
        if read.classes != self.classes:
            raise BadInput(f"{self.name} was fitted on {self.classes} classes, the scores have {read.classes}")
        return read

    @property
    def name(self) -> str:
        """The calibrator's key: its file's name."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def options(self) -> Facts:
        """Every option with its value: what the constructor was given."""
        found = {}
        for cls in type(self).__mro__[:-1]:
            if "__init__" in vars(cls):
                for name, parameter in inspect.signature(cls.__init__).parameters.items():
                    if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                        found[name] = getattr(self, name)
        return found

    def _case_context(self, scores: LogScores, prediction: Prediction) -> Any:
        image = prediction.image if self.uses_image else None
        return self.case_context(scores, image, prediction.spacing_mm, prediction.slice_axis)
