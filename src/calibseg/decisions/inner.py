r"""Inner set: by how much a mask must shrink until what is left lies in the organ.

$$ r_i = \min\{ r : |\{v \in M_i \setminus Y_i : d(v, \overline{M_i}) > r\}| \le (1 - \tau)\, |M_i| \}, \qquad
   q = r_{(\lceil (n+1)(1-\alpha) \rceil)} $$

d is the depth in mm of a voxel in the predicted mask: its distance to the nearest voxel outside. The inner set keeps
what is deeper than q, and with probability 1 - alpha at most a share 1 - tau of the predicted voxels are in it and not
in the organ (tau = 1: none is). The counterpart of `margin`; works on masks alone. Of an empty
prediction the inner set is empty. Patients without the organ say nothing, and nothing is promised of their masks.

Paper: Davenport, arXiv 2410.03406 (inner sets); Mossina and Friedrich, arXiv 2511.15406 (false positives by shrinking).
Differs: the released inner sets take a percentile without the (n + 1) correction, on scores instead of distances.

>>> import numpy as np
>>> from calibseg import decisions
>>> truth, mask = np.array([[0, 0, 1, 1, 1, 1, 0, 0, 0]]), np.array([[0, 0, 1, 1, 1, 1, 1, 1, 0]])
>>> rules = decisions.fit([Inner(purity=1.0, confidence=0.8)], [mask] * 4, [truth] * 4, kind="masks")
>>> rules.rules[0].numbers                                       # the second false voxel is 2 deep
{'quantile': 2.0}
>>> rules.apply([mask])[0].masks["inner 1.0 0.8", "1"].astype(int).tolist()
[[0, 0, 0, 0, 1, 1, 0, 0, 0]]
"""

from math import floor

import numpy as np

from calibseg.core.types import Array
from calibseg.decisions import QuantileDecision, Rule
from calibseg.decisions.maths.conformal import probability, share
from calibseg.decisions.maths.findings import Findings, box_around, distance_in_mm


class Inner(QuantileDecision):
    """The predicted mask, shrunk.

    purity: at most a share 1 - purity of the predicted voxels is false and left, above 0 and at most 1
    confidence: the probability with which it is so, between 0 and 1
    """

    needs = "masks"
    makes = "grown"
    parts = ("inward",)
    beyond = "predicted everywhere"
    contract_options = ({"purity": 0.9, "confidence": 0.7}, {"purity": 1.0, "confidence": 0.8})

    def __init__(self, purity: float = 1.0, confidence: float = 0.9) -> None:
        self.purity, sure = share("inner: purity", purity), probability("inner: confidence", confidence)
        self.confidence, self.alpha = float(sure), float(1 - sure)

    def score(self, findings: Findings) -> float | None:
        if findings.inward is None or not findings.true:
            return None
        allowed = floor((1 - self.purity) * findings.predicted + 1e-9)
        beyond = findings.inward.number - np.cumsum(findings.inward.counts)  # false voxels deeper than each value
        if findings.inward.number <= allowed:
            return 0.0
        return float(findings.inward.values[int((beyond <= allowed).argmax())])

    def numbers(self, rule: Rule, findings: Findings) -> dict[str, float]:
        return {"shrunk_by_mm": rule["quantile"]}

    def grown(self, rule: Rule, predicted: Array, spacing_mm: tuple[float, float, float]) -> Array:
        mask = np.zeros(predicted.shape, bool)
        box = box_around(predicted, (1, 1, 1))
        if predicted.all():
            mask[:] = True
        elif predicted.any():
            mask[box] = distance_in_mm(~predicted[box], spacing_mm) > rule["quantile"] * (1 + 1e-9)
        return mask

    def promise(self, structure: str) -> str:
        much = "nothing" if self.purity == 1 else f"at most {1 - self.purity:.3g} of the predicted voxels"
        whose = f"the shrunk mask of a patient with {structure}"
        return f"{much} in {whose} lies outside it with probability {self.confidence:g}"
