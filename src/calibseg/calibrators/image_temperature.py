r"""One temperature for each image, predicted from what the network says about the whole of it.

$$ p = \mathrm{softmax}(l / T_n), \qquad \log T_n = \theta_0 + \sum_j \theta_j \frac{f_{nj} - \bar f_j}{\sigma_j} $$

f are the mean entropy of the image's voxels, the mean entropy of those predicted as foreground, and the logarithm of
their share. So an image on which the network hesitates more than usual may get another temperature than one on which it
does not. Labels stay as they are. Here an image is a case: a volume, or a 2-D image as a volume of one slice.

Paper: Ding et al., Local temperature scaling for semantic segmentation calibration, ICCV 2021, section 3 (image-based
    temperature scaling, IBTS).
Differs: the paper predicts the temperature by a small network from logits and image; here it is log-linear in three
    numbers, fitted by the NLL in a few streamed passes, which suits some tens of validation cases. theta_j is drawn to
    0 by the curvature that `shrinkage` cases have on average; on the voxels it was fitted on the NLL is at most that of
    one common temperature. With a single case, or where a feature does not vary, its theta is 0 and `fallbacks` says
    so. log T is kept within [-4, 4]. Works on log-softmax scores.

>>> import numpy as np
>>> l = np.array([[0.0] * 4, [2.0] * 4]).reshape(2, 1, 4)
>>> calibrator = ImageTemperature().fit(l, np.array([[1, 1, 1, 0]]), kind="logits")      # one case: its temperature
>>> round(calibrator.common_temperature, 4), len(calibrator.facts["fallbacks"])
(1.8205, 1)
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, ScoreChunk, VoxelStream
from calibseg.calibrators.fitted.module import Formula, predicted
from calibseg.calibrators.solvers.log_scores import LogScores, softmax
from calibseg.calibrators.solvers.search import BOUND
from calibseg.calibrators.solvers.temperatures import Likelihoods, best_common, softmax_part
from calibseg.core.labels import likeliest_class
from calibseg.core.options import at_least
from calibseg.core.types import Array

FEATURES = ("entropy", "foreground_entropy", "log_foreground_share")
PASSES = 12
CLOSE = 1e-10  # nats per voxel that another step could still gain


class ImageTemperature(Calibrator):
    """Image-based temperature scaling, log-linear in three features of the scores.

    shrinkage: > 0, how many cases' worth of curvature draw the features' weights to 0.
    """

    keeps_argmax = True
    learnt = ("common_temperature", "theta", "mean", "spread")
    contract_options = ({"shrinkage": 0.5},)
    reach = "volume"

    def __init__(self, shrinkage: float = 10.0, **common: Any):
        super().__init__(**common)
        self.shrinkage = float(at_least("shrinkage", shrinkage, 0, above=True))
        self.common_temperature = 1.0  # of an image whose features are the mean ones
        self.theta, self.mean, self.spread = (np.zeros(len(FEATURES)) for _ in range(3))

    def _fit(self, stream: VoxelStream) -> None:
        stream.normalised = False
        features_of: dict[int, Array] = {}

        def parts(chunk: ScoreChunk):
            features_of[chunk.case] = chunk.case_context
            return [softmax_part(chunk, chunk.case)]

        with Likelihoods(stream, parts) as likelihoods:
            common, passes = best_common(likelihoods)
            counted = likelihoods.number > 0
            features = np.array([features_of.get(case, np.full(len(FEATURES), np.nan)) for case in range(len(counted))])
            self.mean, spread = features[counted].mean(0), features[counted].std(0)
            constant = spread <= 1e-9 * (1 + np.abs(self.mean))
            self.spread = np.where(constant, np.inf, spread)  # so that a constant feature says nothing
            x = np.where(counted[:, None], np.nan_to_num((features - self.mean) / self.spread), 0)
            x = np.concatenate([np.ones((len(x), 1)), x], 1)
            theta, value, more = _descend(likelihoods, x, float(np.log(1 / common)), self.shrinkage)
            number, before = likelihoods.number.sum(), likelihoods.first.sum()
        self.common_temperature, self.theta = float(np.exp(theta[0])), theta[1:]
        if counted.sum() == 1:
            fallbacks = ["a single case: every image takes its temperature"]
        else:
            fallbacks = [f"{name} does not vary: it says nothing" for name in np.array(FEATURES)[constant]]
        self.facts = {
            "features": list(FEATURES),
            "temperature_per_case": [float(t) for t in np.exp(np.clip(x @ theta, -BOUND, BOUND))[counted]],
            "nll_before": float(before / number),
            "nll_after": float(value / number),
            "passes": passes + more,
            "fallbacks": fallbacks,
        }

    def case_context(self, scores: LogScores, image: Any, spacing_mm: tuple[float, ...], slice_axis: int) -> Array:
        """The features of a case, from all its voxels."""
        entropy, inside, foreground, number = 0.0, 0.0, 0, 0
        for _, part in scores.stream():
            entropies = -np.einsum("kn,kn->n", np.exp(part), part)
            front = likeliest_class(part) > 0
            entropy += entropies.sum(dtype=np.float64)
            inside += entropies[front].sum(dtype=np.float64)
            foreground += int(front.sum())
            number += len(entropies)
        log_share = np.log((foreground + 1) / (number + 1))
        return np.array([entropy / max(number, 1), inside / max(foreground, 1), log_share])

    def temperature(self, features: Array) -> float:
        """The temperature of an image with these features."""
        exponent = np.log(self.common_temperature) + float(self.theta @ ((features - self.mean) / self.spread))
        return float(np.exp(np.clip(exponent, -BOUND, BOUND)))

    def apply(self, scores: Array, case_context: Array, where: slice | Array) -> Array:
        scores /= scores.dtype.type(self.temperature(case_context))
        return softmax(scores)

    def _module(self, spacing_mm: Any) -> nn.Module:
        weight = self.theta / self.spread
        start = np.log(self.common_temperature) - float(weight @ self.mean)
        return Formula(_scaled, weight=weight, start=np.float64(start))


def _descend(likelihoods: Likelihoods, x: Array, start: float, shrinkage: float) -> tuple[Array, float, int]:
    """theta with the least NLL + penalty by damped Newton steps from the common log T; the NLL; passes."""
    theta = np.array([start, *[0.0] * (x.shape[1] - 1)])
    penalty, passes, damping = np.zeros(len(theta)), 0, 0.0
    best: tuple[float, float, Array, Array] | None = None
    trial = theta
    while passes < PASSES:
        log_t = np.clip(x @ trial, -BOUND, BOUND)
        b = np.exp(-log_t)
        nll, slope, curve, _ = likelihoods.at(b)
        passes += 1
        slope, curve = -b * slope, np.maximum(b * b * curve + b * slope, b * b * curve)  # in log T; kept convex
        if best is None:
            penalty[1:] = shrinkage * curve.mean()
        value = float(nll.sum() + 0.5 * penalty @ trial**2)
        if best is not None and value > best[0]:
            damping = 4 * damping + 1e-2  # the step was too long
        else:
            gradient = x.T @ slope + penalty * trial
            best, theta = (value, float(nll.sum()), gradient, (x.T * curve) @ x + np.diag(penalty)), trial
            damping /= 4
        _, _, gradient, hessian = best
        scaled = hessian + np.diag(damping * hessian.diagonal() + 1e-12 * hessian.diagonal().max() + 1e-300)
        step = -np.linalg.solve(scaled, gradient)
        if not -float(gradient @ step) > CLOSE * likelihoods.number.sum():
            break
        trial = theta + step
    assert best is not None
    return theta, best[1], passes


def _scaled(scores: Tensor, image: Tensor | None, weight: Tensor, start: Tensor) -> Tensor:
    """Features, then temperature, of each of the n images."""
    space = tuple(range(1, scores.ndim - 1))
    entropy = -(scores.exp() * scores).sum(1).double()
    front = (predicted(scores) > 0).double()
    foreground, number = front.sum(space), torch.ones_like(front).sum(space)
    inside = (entropy * front).sum(space) / foreground.clamp(min=1)
    features = torch.stack([entropy.sum(space) / number, inside, torch.log((foreground + 1) / (number + 1))], 1)
    temperature = torch.exp((start + (features * weight).sum(1)).clamp(-BOUND, BOUND)).float()
    return torch.softmax(scores / temperature.view(-1, *[1] * (scores.ndim - 1)), 1)
