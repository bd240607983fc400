"""MONAI: a metric, handlers for its engines and bundles, and a post-transform that calibrates.

    metric = CalibrationMetric("ece")                              # exact; pooled over cases, or per case
    metric(y_pred=probabilities, y=labels)                         # [b c *space] and one-hot or [b 1 *space], or lists
    metric.aggregate()

    SupervisedEvaluator(..., key_val_metric={"ece": CalibrationHandler("ece")}, metric_cmp_fn=operator.lt)
    SupervisedTrainer(..., train_handlers=[ValidationHandler(1, evaluator), LearnOnValidation(loss, evaluator)])
    Compose([Calibrated("pred", "runs/a/calibrators/temperature", kind="logits")])

Losses need no adapter: a calibseg loss is MONAI's `loss_function` as it is. MONAI's own CalibrationErrorMetric is the
metric `cece` here with reduction="mean": the mean over cases and classes of each class's error; it has no pooled value,
and adds up in float32.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from monai.engines.evaluator import Evaluator
from monai.engines.utils import IterationEvents, default_metric_cmp_fn
from monai.handlers.ignite_metric import IgniteMetricHandler
from monai.handlers.utils import from_engine
from monai.metrics.metric import CumulativeIterationMetric
from monai.metrics.utils import do_metric_reduction
from monai.transforms.transform import MapTransform
from monai.utils.enums import CommonKeys
from monai.utils.type_conversion import convert_to_dst_type
from torch import Tensor

from calibseg.calibrators import Calibrator, load
from calibseg.core.arrays import predictions, split_cases, to_numpy
from calibseg.core.distributed import is_distributed, reduce_sum
from calibseg.core.options import one_of
from calibseg.core.types import Activation, BadInput, ScoreKind, VoxelRule
from calibseg.integrations.hosts import missing
from calibseg.losses import Loss
from calibseg.metrics.statistics.calibration import CalibrationStatistics
from calibseg.metrics.statistics.monitor import CalibrationMonitor

Reduction = Literal["pooled", "none", "mean", "sum", "mean_batch", "sum_batch", "mean_channel", "sum_channel"]
NO_CASE = -1  # what no sum is
PRED_AND_LABEL = from_engine([CommonKeys.PRED, CommonKeys.LABEL])


class CalibrationMetric(CumulativeIterationMetric):
    """A calibration metric of cases: exact integer sums of each are kept, gathered over ranks, and made into values.

    metric: a key of a calibration metric, see `calibseg list metrics`
    voxels: which voxels count: all, predicted, truth or union
    num_bins: equal-width bins of confidence
    reduction: "pooled" (all voxels of all cases together), or how MONAI reduces the values of the cases: "mean", ...
    per_class: a value for each class, where otherwise there is one for all classes together
    kind: what y_pred is: probabilities, logits or log_probabilities
    activation: softmax (classes exclude each other) or sigmoid (each channel is its own yes-or-no question)
    ignore_label: voxels with this label are ignored, as are those whose one-hot labels are all 0
    """

    def __init__(
        self,
        metric: str = "ece",
        voxels: VoxelRule = "all",
        num_bins: int = 15,
        reduction: Reduction = "pooled",
        per_class: bool = False,
        kind: ScoreKind = "probabilities",
        activation: Activation = "softmax",
        ignore_label: int | None = None,
    ) -> None:
        super().__init__()
        self.metric, self.per_class = metric, per_class
        self.voxels: VoxelRule = voxels
        self.reduction: Reduction = reduction
        self._options: dict[str, Any] = {
            "kind": kind,
            "activation": activation,
            "bins": num_bins,
            "ignore_label": ignore_label,
        }
        self._monitor = self._of(2)  # a wrong option is refused now; the number of classes is seen with the first case

    @property
    def higher_is_better(self) -> bool:
        return self._monitor.metrics[self.metric].higher_is_better

    def aggregate(self, reduction: Reduction | None = None) -> Tensor:
        """The value of everything seen on all ranks; NaN where it is undefined."""
        reduction = reduction or self.reduction
        sums = self._sums()
        if sums is None:
            raise BadInput("CalibrationMetric has seen no case: call metric(y_pred, y) before aggregate()")
        if reduction == "pooled":
            return self._values(sums.sum(0)).squeeze()
        values, defined = do_metric_reduction(torch.stack([self._values(case) for case in sums]), reduction)
        return values if reduction == "none" else values.where(defined > 0, torch.nan)  # MONAI has 0, a perfect error

    def get_buffer(self) -> Tensor | None:
        """The values of every case on all ranks [n 1], or [n classes] with per_class."""
        sums = self._sums()
        return None if sums is None else torch.stack([self._values(case) for case in sums])

    def _sums(self) -> Tensor | None:
        """The sums of every case on all ranks, without the rows of ranks that saw none."""
        sums = super().get_buffer()
        return sums[(sums != NO_CASE).any(1)] if isinstance(sums, Tensor) else None

    def _sync(self) -> None:
        """MONAI's, in which a rank that saw no case takes part as well: the others would wait for it."""
        if is_distributed() and not self._synced:
            seen = self._buffers is not None
            votes = torch.tensor([self._monitor.statistics.classes if seen else 0, int(seen)])
            reduce_sum(votes)
            classes, ranks = votes.tolist()
            if ranks and not seen:
                self._monitor = self._of(classes // ranks)
                length = sum(int(np.prod(shape)) for shape in self._monitor.statistics.shapes.values())
                device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
                self._buffers = [[torch.full((length,), NO_CASE, device=device)]]
        super()._sync()

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The sums of each case, int64 [b s]."""
        if y is None or y_pred.ndim < 3:
            raise BadInput(
                f"CalibrationMetric compares y_pred [b c *space] with y; got {list(y_pred.shape)}, {type(y)}"
            )
        if y_pred.shape[1] != self._monitor.statistics.classes:
            self._monitor = self._of(y_pred.shape[1])
        rows = []
        for scores, labels in zip(y_pred, _labels(y, y_pred, self._options["activation"]), strict=True):
            self._monitor.reset()
            self._monitor.update(scores[None], labels[None])
            rows.append(np.concatenate([sums.reshape(-1) for sums in self._monitor.statistics.sums.values()]))
        return torch.from_numpy(np.stack(rows)).to(y_pred.device)

    def _of(self, classes: int) -> CalibrationMonitor:
        return CalibrationMonitor(classes, (self.metric,), (self.voxels,), **self._options)

    def _values(self, flat: Tensor) -> Tensor:
        """[1] or [classes] from the sums [s] of some cases."""
        empty: CalibrationStatistics = self._monitor.statistics
        cuts = np.cumsum([int(np.prod(shape)) for shape in empty.shapes.values()])[:-1]
        parts = zip(empty.shapes.items(), np.split(flat.cpu().numpy(), cuts), strict=True)
        curves = empty.with_sums({name: part.reshape(shape) for (name, shape), part in parts}).on(self.voxels)
        values = self._monitor.metrics[self.metric].value(curves)
        chosen = range(empty.classes) if self.per_class else (None,)
        return torch.tensor([values[k] for k in chosen], dtype=torch.float32, device=flat.device)


def _labels(y: Tensor, y_pred: Tensor, activation: Activation) -> Tensor:
    """What MONAI calls y, as a target: channels of one-hot are shares, a single channel may hold labels as floats."""
    if activation == "sigmoid":
        return y.long() if y.is_floating_point() and bool((y == y.round()).all()) else y
    if y.shape[1] == y_pred.shape[1] != 1:
        return y.float()
    if y.is_floating_point():
        if not bool((y == y.round()).all()):
            raise BadInput(f"y {list(y.shape)} holds labels that are no whole numbers; expected class ids or one-hot")
        y = y.long()
    return y


class CalibrationHandler(IgniteMetricHandler):
    """An Ignite metric for `key_val_metric` and `additional_metrics` of MONAI's engines and bundles.

    metric, **options: those of CalibrationMetric
    output_transform: (y_pred, y) of the engine's output; default: its keys pred and label
    save_details: whether the values of every case go to engine.state.metric_details
    """

    def __init__(
        self,
        metric: str = "ece",
        output_transform: Callable[..., Any] = PRED_AND_LABEL,
        save_details: bool = True,
        **options: Any,
    ) -> None:
        self.calibration = CalibrationMetric(metric, **options)
        super().__init__(self.calibration, output_transform=output_transform, save_details=save_details)

    def attach(self, engine: Any, name: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        is_key = getattr(engine.state, "key_metric_name", None) == name
        keeps_highest = getattr(engine, "metric_cmp_fn", None) is default_metric_cmp_fn
        if is_key and keeps_highest and not self.calibration.higher_is_better:
            raise BadInput(
                f"the key metric {name!r} is the better the lower it is, and the engine would keep the highest: say "
                "metric_cmp_fn=operator.lt (and key_metric_negative_sign=True of a CheckpointSaver)"
            )
        super().attach(engine, name)


class LearnOnValidation:
    """A handler of the trainer for losses that learn on validation data, such as CRaC.

    It shows the evaluator's raw output to the loss, and has the loss update between two epochs, once for all that was
    seen in an epoch. Only validation after some training counts: not one before the first step, nor one by hand after
    the last. What `end_epoch` returns goes to trainer.state.metrics. Put the handler itself into a CheckpointSaver's
    save_dict: it holds the loss's state and whether an update is due.

    loss: a calibseg loss that is set up
    validator: the evaluator that the trainer's ValidationHandler runs; None: the handler is among its val_handlers too
        (in bundles, where a CheckpointSaver of the evaluator refers to the handler, which may then not refer to it)
    pred, label: keys of its output
    """

    def __init__(
        self, loss: Loss, validator: Any = None, pred: str = CommonKeys.PRED, label: str = CommonKeys.LABEL
    ) -> None:
        self.loss, self.validator, self.keys = loss, validator, (pred, label)
        self.trainer: Any = None
        self.observed, self.updated_at = False, 0  # whether an update is due; the trainer's iteration at the last one

    def attach(self, engine: Any) -> None:
        try:
            from ignite.engine import Events
        except ImportError as error:
            raise missing("ignite", error) from error
        if isinstance(engine, Evaluator):
            self.validator = engine
            engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self.observe)
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.remember)
            return
        self.trainer = engine
        engine.add_event_handler(Events.STARTED, self.check)
        engine.add_event_handler(Events.EPOCH_STARTED | Events.COMPLETED, self.update)
        if self.validator is not None:
            self.attach(self.validator)

    def check(self, trainer: Any) -> None:
        """Before training: somebody must validate."""
        self.updated_at = min(self.updated_at, trainer.state.iteration)  # a trainer that was not restored counts anew
        if self.validator is None:
            raise BadInput("LearnOnValidation knows no evaluator: say validator, or put it among the val_handlers too")

    def observe(self, evaluator: Any) -> None:
        """Show a validation batch to the loss."""
        if self._counts():
            self.loss.observe(*(evaluator.state.output[key] for key in self.keys))
            self.observed = True  # now: a CheckpointSaver may come before `remember`

    def remember(self, evaluator: Any) -> None:
        """That this epoch has validated, also on a rank that had no batch."""
        self.observed |= self._counts()

    def update(self, trainer: Any) -> None:
        """Have the loss learn from what it was shown."""
        if self.observed:
            self.observed, self.updated_at = False, trainer.state.iteration
            trainer.state.metrics.update(self.loss.end_epoch())

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss.state_dict(), "observed": self.observed, "updated_at": self.updated_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self.observed, self.updated_at = bool(state["observed"]), int(state["updated_at"])

    def _counts(self) -> bool:
        return self.trainer is not None and self.trainer.state.iteration > self.updated_at


class Calibrated(MapTransform):
    """A post-transform: calibrated probabilities in place of a case's predicted scores [c *space].

    keys: of the scores
    calibrator: a fitted one, or the folder in which `calibseg calibrate` or `Calibrator.save` left it
    kind: what the scores are: logits, log_probabilities or probabilities
    image_key: of the image as the calibrator was fitted with it, for those that look at it
    slice_axis: of MONAI's (x, y, z) along which slices were predicted, for those that care; None: as it was fitted

    Spacings are those of the MetaTensor; axes are reversed on the way in and back on the way out, because calibseg's
    are (z, y, x).
    """

    def __init__(
        self,
        keys: Hashable | Sequence[Hashable],
        calibrator: str | Path | Calibrator,
        kind: ScoreKind = "probabilities",
        image_key: str | None = None,
        slice_axis: int | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)  # pyright: ignore[reportArgumentType]
        self.calibrator = calibrator if isinstance(calibrator, Calibrator) else load(calibrator)
        self.kind: ScoreKind = kind
        self.image_key, self.slice_axis = image_key, one_of("slice_axis", slice_axis, (None, 0, 1, 2))
        if self.calibrator.looks_at_image and image_key is None:
            raise BadInput(f"{self.calibrator.name} looks at the image of a case: say image_key")

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        done = dict(data)
        for key in self.key_iterator(done):  # pyright: ignore[reportArgumentType]
            image = None if self.image_key is None else _reversed(done[self.image_key])
            done[key] = self._calibrated(done[key], image)
        return done

    def _calibrated(self, given: Any, image: Any) -> Any:
        scores = _reversed(given)
        spacing = None
        if self.calibrator.uses_spacing and self.calibrator.fitted_on.get("distances") != "voxels":
            if not hasattr(given, "pixdim"):
                raise BadInput(
                    f"{self.calibrator.name} measures distances in mm: give a MetaTensor, which has spacings"
                )
            spacing = tuple(float(step) for step in given.pixdim)[::-1]
        cases = split_cases(scores, classes=self.calibrator.classes, batch=False)
        one = predictions(cases, self.kind, self.calibrator.activation, image, spacing)[0]
        if one.slice_axis is None and self.slice_axis is not None:
            one = replace(one, slice_axis=2 - self.slice_axis)
        p = self.calibrator.transform_prediction(one).reshape(scores.shape)
        return convert_to_dst_type(p.transpose(0, *range(p.ndim - 1, 0, -1)).copy(), given, dtype=torch.float32)[0]


def _reversed(given: Any) -> np.ndarray:
    """[c x y z] as [c z y x], in numpy."""
    array = to_numpy(given)
    return array.transpose(0, *range(array.ndim - 1, 0, -1))
