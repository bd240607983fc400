r"""Missed share: the mask of which, on average, at most a share alpha of the organ is missing.

$$ L_i(t) = 1 - \frac{|Y_i \cap \{p \ge t\}|}{|Y_i|}, \qquad
   \hat t = \max\left\{ t : \tfrac{n}{n+1} \hat R(t) + \tfrac{1}{n+1} \le \alpha \right\}
   \;\Rightarrow\; E[L_{n+1}(\hat t)] \le \alpha $$

The loss of a patient with several cases is their mean. Cases without the organ say nothing and are counted apart. Every
threshold of the grid (`maths/thresholds`) is evaluated exactly, and the largest that keeps the promise is taken.

Paper: Angelopoulos et al., Conformal Risk Control, arXiv 2208.02814, section 3.1 (there on polyps).
Differs: the released code returns the first table entry also where no threshold keeps the promise; here too few
patients for alpha are refused with the number that is needed. Its grid is 1000 steps of the sigmoid; ours is fine at
both ends.

>>> import numpy as np
>>> from calibseg import decisions
>>> p = np.array([0.9, 0.8, 0.6, 0.3, 0.1], np.float32).reshape(1, 1, 5)
>>> labels = np.array([1, 1, 1, 1, 0]).reshape(1, 5)
>>> rules = decisions.fit([FNR(alpha=0.4)], [np.concatenate([1 - p, p])] * 9, [labels] * 9, kind="probabilities")
>>> rule = rules.rules[0].numbers                                # 9 / 10 * 1 / 4 + 1 / 10 = 0.325: one of four missed
>>> 0.598 < rule["threshold"] <= 0.6, rule["mean_loss"]
(True, 0.25)
"""

from calibseg.core.types import Array
from calibseg.decisions import RiskDecision
from calibseg.decisions.maths.findings import Findings


class FNR(RiskDecision):
    """The share of the true voxels that the mask misses."""

    tight = "high"
    parts = ("in_truth",)
    promised = "the mask misses at most {alpha} of {structure}"

    def score(self, findings: Findings) -> Array | None:
        return findings.in_truth.below() / findings.true if findings.in_truth is not None and findings.true else None
