"""Labelled predictions for calibrators, and the calibrators that the registry finds, quick to fit."""

from dataclasses import replace

import numpy as np

from calibseg.calibrators import Calibrator
from calibseg.core.registry import members
from calibseg.core.types import Prediction

MEMBERS = members("calibrators")
QUICK = {"epochs": 2}  # where a calibrator trains a network, contracts need no good one
K, SHAPE = 3, (4, 12, 11)
SPACING = (2.0, 1.0, 1.0)


def example(number=3, seed=0, dtype=np.float64):
    """Overconfident cases: smooth logits, labels drawn at the temperature 2."""
    cases = []
    for n in range(number):
        rng = np.random.default_rng([seed, n])
        z, y, x = np.meshgrid(*(np.linspace(-1, 1, size) for size in SHAPE), indexing="ij")
        field = np.stack([0 * z, 1.5 - 2.5 * (x**2 + y**2), y - 2 * z**2])
        logits = 2 * field + rng.normal(size=(K, *SHAPE))
        labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(0).astype(np.uint8)
        image = rng.normal(size=(1, *SHAPE)).astype(np.float32)
        cases.append(
            Prediction(f"case {n}", f"patient {n}", logits.astype(dtype), "logits", SPACING, labels=labels, image=image)
        )
    return cases


def made(key, **options) -> Calibrator:
    known = {option.name for option in MEMBERS[key].options}
    return MEMBERS[key].load()(**{name: value for name, value in QUICK.items() if name in known}, **options)


def shown(calibrator, case, scores=None):
    return calibrator.transform_prediction(case if scores is None else replace(case, scores=scores))


def equal(one: Calibrator, other: Calibrator, case) -> bool:
    return bool((shown(one, case) == shown(other, case)).all())
