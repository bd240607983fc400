r"""False-positive share: the mask into which, on average, at most a share alpha of everything else has slipped.

$$ L_i(t) = \frac{|\{p \ge t\} \setminus Y_i|}{|\overline{Y_i}|}, \qquad
   \hat t = \min\left\{ t : \tfrac{n}{n+1} \hat R(t) + \tfrac{1}{n+1} \le \alpha \right\} $$

The largest mask that keeps the promise. All voxels outside the organ are in the denominator, so that a share of 0.01 of
a whole scan is large: n labelled patients can promise no less than 1 / (n + 1).

Paper: Angelopoulos et al., Conformal Risk Control, arXiv 2208.02814 (any loss that never grows).
Differs: the share of false voxels among those of the mask (FDR) is not monotone in t and not offered.

>>> import numpy as np
>>> from calibseg import decisions
>>> p = np.array([0.9, 0.8, 0.6, 0.3, 0.1], np.float32).reshape(1, 1, 5)
>>> labels = np.array([1, 0, 0, 0, 0]).reshape(1, 5)
>>> rules = decisions.fit([FPR(alpha=0.4)], [np.concatenate([1 - p, p])] * 9, [labels] * 9, kind="probabilities")
>>> rule = rules.rules[0].numbers                                # 9 / 10 * 1 / 4 + 1 / 10 = 0.325: 0.8 may slip in
>>> 0.6 < rule["threshold"] < 0.602, rule["mean_loss"]
(True, 0.25)
"""

from calibseg.core.types import Array
from calibseg.decisions import RiskDecision
from calibseg.decisions.maths.findings import Findings


class FPR(RiskDecision):
    """The share of the voxels outside the truth that the mask holds."""

    tight = "low"
    parts = ("in_rest",)
    promised = "at most {alpha} of what is not {structure} is in the mask"

    def score(self, findings: Findings) -> Array | None:
        if findings.in_rest is None or findings.true is None or findings.voxels == findings.true:
            return None
        rest = findings.voxels - findings.true
        return (rest - findings.in_rest.below()) / rest
