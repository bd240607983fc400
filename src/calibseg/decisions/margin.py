r"""Margin in mm: by how much a mask must grow to cover an organ, whoever drew it.

$$ r_i = \min\{ r : |\{v \in Y_i : d(v, M_i) \le r\}| \ge \tau |Y_i| \}, \qquad
   q = r_{(\lceil (n+1)(1-\alpha) \rceil)} \;\Rightarrow\; P(\text{a share } \tau \text{ of } Y \text{ lies within } q
   \text{ of } M) \ge 1 - \alpha $$

d is the distance in mm from a voxel's centre to the nearest predicted one, 0 inside: one distance transform per case,
on voxels of any shape. Works on masks that come without probabilities. `coverage=1` covers every voxel: the outer set.
Where an organ is not predicted at all no margin is large enough (r is infinite). Of a patient's cases the worst counts.

Paper: Mossina and Friedrich, Conformal morphological prediction sets, MICCAI 2025, arXiv 2503.05618; outer sets by
distance: Davenport, arXiv 2410.03406.
Differs: the released code counts dilations by a 3x3 cross, takes one rank too many and raises where a mask is empty.

>>> import numpy as np
>>> from calibseg import decisions
>>> truth, mask = np.array([[0, 1, 1, 1, 1, 0]]), np.array([[0, 1, 1, 0, 0, 0]])
>>> rules = decisions.fit([Margin(coverage=0.75, confidence=0.8)], [mask] * 4, [truth] * 4, kind="masks",
...                       spacing_mm=(1.0, 1.0, 2.0))
>>> rules.rules[0].numbers                                       # three of four voxels: one step of 2 mm
{'quantile': 2.0}
>>> rules.apply([mask], spacing_mm=(1.0, 1.0, 2.0))[0].masks["margin 0.75 0.8", "1"].astype(int).tolist()
[[1, 1, 1, 1, 0, 0]]
"""

from math import ceil, inf

import numpy as np

from calibseg.core.types import Array
from calibseg.decisions import QuantileDecision, Rule
from calibseg.decisions.maths.conformal import probability, share
from calibseg.decisions.maths.findings import Findings, box_around, distance_in_mm


class Margin(QuantileDecision):
    """The predicted mask, grown.

    coverage: the share of the organ that is to be covered, above 0 and at most 1
    confidence: the probability with which it is, between 0 and 1
    """

    needs = "masks"
    makes = "grown"
    parts = ("outward",)
    contract_options = ({"coverage": 0.9, "confidence": 0.7}, {"coverage": 1.0, "confidence": 0.8})

    def __init__(self, coverage: float = 0.95, confidence: float = 0.9) -> None:
        self.coverage, sure = share("margin: coverage", coverage), probability("margin: confidence", confidence)
        self.confidence, self.alpha = float(sure), float(1 - sure)

    def score(self, findings: Findings) -> float | None:
        if findings.outward is None or not findings.true:
            return None
        if not findings.predicted:
            return inf
        ends = np.cumsum(findings.outward.counts)
        needed = ceil(self.coverage * findings.true - 1e-9)
        return float(findings.outward.values[np.searchsorted(ends, needed)])

    def numbers(self, rule: Rule, findings: Findings) -> dict[str, float]:
        return {"margin_mm": rule["quantile"]}

    def grown(self, rule: Rule, predicted: Array, spacing_mm: tuple[float, float, float]) -> Array:
        mask = np.zeros(predicted.shape, bool)
        if predicted.any():
            reach = tuple(int(rule["quantile"] / edge) + 1 for edge in spacing_mm)
            box = box_around(predicted, reach)
            mask[box] = distance_in_mm(predicted[box], spacing_mm) <= rule["quantile"] * (1 + 1e-9)
        return mask

    def promise(self, structure: str) -> str:
        share = "all" if self.coverage == 1 else f"at least {self.coverage:.4g}"
        return f"the grown mask covers {share} of {structure} with probability {self.confidence:g}"
