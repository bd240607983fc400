r"""Calibrators: what repairs a network's confidence after training, one file each.

    calibrator = Temperature().fit(validation_logits, validation_labels, kind="logits")
    p = calibrator.transform(test_logits)                       # calibrated probabilities, float32
    calibrator.as_module()                                      # the same as an nn.Module, to be exported
    calibrator.save("calibrator")                               # a folder; calibseg.calibrators.load reads it back

Scores and labels are numpy arrays or torch tensors on any device: one case [k *space] with labels [*space], a batch
[n k *space] with labels [n *space], or lists of cases; space is (y, x) or (z, y, x). What comes back has the form of
what was given: numpy for numpy, a plain tensor on the same device for a tensor (a MONAI MetaTensor too), a list for a
list. `core/arrays` tells a volume from a batch of images, and refuses values that cannot be what `kind` says.

>>> import numpy as np
>>> from calibseg.calibrators import Temperature
>>> logits = np.array([[0.0] * 4, [2.0] * 4]).reshape(2, 2, 2)              # says 88 % four times, is right thrice
>>> Temperature().fit(logits, np.array([[1, 1], [1, 0]]), kind="logits").transform(logits)[1].round(2).tolist()
[[0.75, 0.75], [0.75, 0.75]]

The stages of a run work on files: `fit_predictions` streams any re-iterable of `Prediction`, one case in memory at a
time and a chunk of it at a time in arithmetic, and `transform_prediction` takes one of them. Arrays go the same way.

A calibrator is a file with one class that says `_fit`, `apply` and what was `learnt` (or `state` and `load_state`). It
sees log scores that are normalised at each voxel (`log_scores`), so that logits and their log-softmax give the same.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import nn

from calibseg.calibrators.solvers.log_scores import LogScores
from calibseg.calibrators.solvers.voxels import FitOn
from calibseg.calibrators.solvers.voxels import ScoreChunk as ScoreChunk
from calibseg.calibrators.solvers.voxels import VoxelStream as VoxelStream
from calibseg.core.arrays import Spacing, case_spacing, predictions, split_cases
from calibseg.core.options import one_of, seed_number, whole_number
from calibseg.core.registry import lazy
from calibseg.core.types import Activation, Array, BadInput, Prediction, ScoreKind

if TYPE_CHECKING:
    from calibseg.calibrators._members import *
else:
    __getattr__, __dir__ = lazy(__name__)

Facts = dict[str, Any]
Watch = Callable[[str], None]  # a callback that gets lines of text on the progress of a long fit


def silent(text: str) -> None:
    """A no-op callback that can be pickled, so that a calibrator can be sent to another process."""


class Calibrator:
    """What every calibrator shares: options, arrays and streams, checks, and what it was fitted on.

    fit_on: all labelled voxels, or the foreground: those whose true class is not 0.
    sample: at most so many voxels of each true class of each case, weighted to stand for all; 0: every voxel.
    seed: of the sample, and of whatever else is drawn.
    """

    keeps_argmax: ClassVar[bool]  # whether the likeliest class stays the likeliest
    reach: ClassVar[Literal["voxel", "slice", "volume"]] = "voxel"  # the smallest chunk that `apply` must see at once
    takes_slices = False  # whether a volume is looked at slice by slice, so that their axis matters
    uses_image: ClassVar[bool] = False
    uses_spacing: ClassVar[bool] = False
    activations: ClassVar[tuple[Activation, ...]] = ("softmax",)
    learnt: ClassVar[tuple[str, ...]] = ()  # the attributes that `state` keeps: numbers and lists, or arrays
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ()  # sets of own options that the contract tests try

    def __init__(self, fit_on: Literal["all", "foreground"] = "all", sample: int = 0, seed: int = 0):
        self.fit_on: FitOn = one_of("fit_on", fit_on, ("all", "foreground"))
        self.sample = whole_number("sample", sample, 0)
        self.seed = seed_number("seed", seed)
        self.classes = 0  # 0: not fitted yet
        self.activation: Activation = "softmax"
        self.kind: ScoreKind = "logits"  # of the scores it was fitted on
        self.fitted_on: Facts = {}
        self.facts: Facts = {}  # how the fit went, for the record
        self.watch: Watch = silent

    # ---------------------------------------------------------------- what a subclass says

    def _fit(self, stream: VoxelStream) -> None:
        """Find the parameters from chunks of voxels that can be iterated again and again.

        How many classes there are, and the activation, is known of the stream beforehand.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is fitted")

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Probabilities of voxels [k n] from their normalised log scores [k n], which may be overwritten.

        case_context: what `case_context` computed from the whole case; where: which of its flat voxels these are.
        """
        raise TypeError(f"{type(self).__name__} does not say how it transforms")

    def state(self) -> tuple[Facts, dict[str, Array]]:
        """The fitted parameters and `facts`, as JSON values and arrays; `load_state` takes them back."""
        if not self.learnt:
            raise TypeError(f"{type(self).__name__} does not say what was fitted")
        values = {name: getattr(self, name) for name in self.learnt}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in values.items() if name not in arrays} | self.facts, arrays

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Take back what `state` gave."""
        self.facts = {name: value for name, value in facts.items() if name not in self.learnt}
        for name in self.learnt:
            setattr(self, name, np.array(arrays[name]) if name in arrays else facts[name])
        return self

    @property
    def looks_at_image(self) -> bool:
        """Whether this one does: a method that can may have been fitted without images."""
        return self.uses_image and bool(self.facts.get("image_channels", 1))

    def parameters(self) -> int:
        """How many numbers were learnt: of two calibrators that do equally well, the one with fewer is recommended."""
        values, arrays = self.state()
        learnt = [value for name, value in values.items() if name not in self.facts]
        tables = [list(value.values()) if isinstance(value, dict) else value for value in learnt]
        return sum(int(np.size(value)) for value in (*tables, *arrays.values()))

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Spacing, slice_axis: int) -> Any:
        """Computed from the whole case, for those that need more than a voxel's own scores; nothing for most."""
        return None

    def _module(self, spacing_mm: Spacing) -> nn.Module:
        """The fitted calibrator as a module: normalised log scores [n k *space], image -> probabilities."""
        raise BadInput(f"{self.name} has no torch module: it does not say `_module`")

    # ---------------------------------------------------------------- on arrays

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
        cases = split_cases(scores, labels, batch=batch)
        inputs = predictions(cases, kind, activation, images, spacing_mm, patients, ignore_label)
        self.fit_predictions(inputs)
        if self.uses_spacing and spacing_mm is None:
            self.fitted_on["distances"] = "voxels"
        return self

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
        self._check_fitted()
        self._check_spacing(spacing_mm)
        cases = split_cases(scores, classes=self.classes, batch=batch)
        inputs = predictions(cases, kind or self.kind, self.activation, image, spacing_mm)
        transformed = map(self.transform_prediction, inputs)
        return cases.like_given([p.reshape(given.shape) for p, given in zip(transformed, cases.scores, strict=True)])

    def as_module(self, *, kind: ScoreKind | None = None, spacing_mm: Any = None) -> nn.Module:
        """A torch module: scores [n k *space] (and the image, for those that look at it) -> probabilities.

        kind: of the scores; unless said, that of the scores it was fitted on.
        spacing_mm: of every case, for those that measure distances; None: 1, as in `fit`.
        """
        from calibseg.calibrators.fitted.module import CalibratorModule

        self._check_fitted()
        self._check_spacing(spacing_mm)
        formula = self._module(case_spacing(spacing_mm, 2 if np.size(spacing_mm) == 2 else 3))
        return CalibratorModule(formula, one_of("kind", kind or self.kind, get_args(ScoreKind)), self.activation).eval()

    def save(self, path: Path | str) -> Path:
        """Write the fitted calibrator into a folder; return the path of its JSON file."""
        from calibseg.calibrators.fitted.files import save_calibrator

        return save_calibrator(path, self)

    # ---------------------------------------------------------------- on predictions, as stages read them from files

    def fit_predictions(self, predictions: Iterable[Prediction]) -> Self:
        """Fit on labelled predictions, which are iterated several times, one case in memory at a time."""
        self.classes, self.fitted_on = 0, {}  # a fit that fails leaves none that is half of the one before
        stream = VoxelStream(
            predictions, self.fit_on, self.sample, self.seed, self.activations, self.name, self._case_context
        )
        stream.peek()
        self._fit(stream)
        self.classes, self.activation, self.kind = stream.classes, stream.activation, stream.kind
        self.fitted_on = stream.fit_record()
        if self.takes_slices:
            self.fitted_on["slice_axis"] = stream.slice_axes.pop() if len(stream.slice_axes) == 1 else None
        return self

    def transform_prediction(self, prediction: Prediction) -> Array:
        """Calibrated probabilities float32 [k z y x] of one case, chunk by chunk."""
        scores = self.open_scores(prediction)
        case_context = self._case_context(scores, prediction)
        p = np.empty((scores.classes, int(np.prod(scores.shape[1:]))), np.float32)
        for where, chunk in scores.stream():
            p[:, where] = self.apply(chunk, case_context, where)
        return p.reshape(scores.shape)

    def open_scores(self, prediction: Prediction) -> LogScores:
        """The log scores of a case, checked against what the calibrator was fitted on."""
        self._check_fitted()
        if prediction.activation != self.activation:
            raise BadInput(
                f"{self.name} was fitted on {self.activation} scores, and these are for a {prediction.activation}"
            )
        name = f"case {prediction.case_id!r}"
        scores = LogScores(prediction.scores, prediction.kind, self.activation, name, prediction.voxel_name)
        if scores.classes != self.classes:
            raise BadInput(f"{self.name} was fitted on {self.classes} classes, the scores have {scores.classes}")
        return scores

    @property
    def name(self) -> str:
        """The calibrator's key: its file's name."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def options(self) -> Facts:
        """Every option with its value: what the constructor was given."""
        values = {}
        for cls in type(self).__mro__[:-1]:
            if "__init__" in vars(cls):
                for name, parameter in inspect.signature(cls.__init__).parameters.items():
                    if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                        values[name] = getattr(self, name)
        return values

    def slice_axis_of(self, prediction: Prediction) -> int:
        """Of (z, y, x), along which a case's slices lie: where it does not say, as those that were fitted on."""
        axis = self.fitted_on.get("slice_axis", 0) if prediction.slice_axis is None else prediction.slice_axis
        if axis is None:
            raise BadInput(
                f"{self.name} was fitted on slices along several axes, and this case does not say along which its own"
                " lie: use it on predictions of its run"
            )
        return axis

    def _check_fitted(self) -> None:
        if not self.classes:
            raise BadInput(f"{self.name} is not fitted yet: call fit, or load a fitted one")

    def _check_spacing(self, spacing_mm: Any) -> None:
        if self.uses_spacing and (spacing_mm is None) != (self.fitted_on.get("distances") == "voxels"):
            fitted, given = ("with", "without") if spacing_mm is None else ("without", "with")
            raise BadInput(f"{self.name} measures distances: it was fitted {fitted} spacing_mm, this is {given} it")

    def _case_context(self, scores: LogScores, prediction: Prediction) -> Any:
        image = prediction.image if self.uses_image else None
        in_voxels = self.fitted_on.get("distances") == "voxels"
        spacing_mm = (1.0, 1.0, 1.0) if in_voxels else prediction.spacing_mm
        return self.case_context(scores, image, spacing_mm, self.slice_axis_of(prediction))


def load(path: Path | str) -> Calibrator:
    """The fitted calibrator in a folder that `Calibrator.save`, or `calibseg calibrate`, wrote."""
    from calibseg.calibrators.fitted.files import load_calibrator

    return load_calibrator(path)
