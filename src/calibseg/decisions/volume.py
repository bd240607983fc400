r"""Volume with an interval: the expected volume, and how far the true one lies from it at most.

$$ \hat V = v \sum_i p_i, \qquad s_i = \frac{|V_i - \hat V_i|}{u_i}, \qquad
   q = s_{(\lceil (n+1)(1-\alpha) \rceil)} \;\Rightarrow\;
   P(\max(0, \hat V - q u) \le V \le \hat V + q u) \ge 1 - \alpha $$

u is 1 (`absolute`), the expected volume (`relative`), or v sqrt(sum p (1 - p)) (`spread`): the standard deviation if
voxels were independent, which they are not, so it serves as a scale only. Of masks without probabilities the volume is
the mask's. A picture whose thickness is not said is 1 mm thick: its ml are 1000 mm2. The signed residuals of the
labelled patients are kept: they make a distribution, whose CRPS is told where labels are known. A patient's worst case
counts.

Paper: split conformal prediction; for volumes: Lambert et al., arXiv 2407.19938.
Differs: public scripts take np.quantile(residuals, level) without the (n + 1): too narrow where n is small.

>>> import numpy as np
>>> from calibseg import decisions
>>> p = np.full((1, 1, 10), 0.5, np.float32)                                   # 5 voxels are expected
>>> labels = [np.array([[1] * k + [0] * (10 - k)]) for k in (4, 5, 6, 7)]
>>> rules = decisions.fit([Volume(level=0.8)], [np.concatenate([1 - p, p])] * 4, labels, kind="probabilities")
>>> round(rules.rules[0].numbers["quantile"] * 1000, 6)          # the largest of |4 - 5|, 0, |6 - 5|, |7 - 5|, in mm3
2.0
"""

from math import inf, isfinite, sqrt
from typing import Any, Literal

from calibseg.core.options import one_of
from calibseg.decisions import Evidence, QuantileDecision, Rule
from calibseg.decisions.maths.conformal import probability
from calibseg.decisions.maths.findings import Findings
from calibseg.metrics.statistics.crps import sample_crps


class Volume(QuantileDecision):
    """The expected volume in ml with an interval.

    level: the probability that the true volume lies in the interval, between 0 and 1
    scale: what residuals are measured by: "absolute", "relative" or "spread"
    """

    lists = ("residuals",)
    contract_options = ({"level": 0.7}, {"level": 0.7, "scale": "absolute"}, {"level": 0.8, "scale": "spread"})

    def __init__(self, level: float = 0.9, scale: Literal["absolute", "relative", "spread"] = "absolute") -> None:
        sure = probability("volume: level", level)
        self.level, self.alpha = float(sure), float(1 - sure)
        self.scale = one_of("volume: scale", scale, ("absolute", "relative", "spread"))
        self.needs = "probabilities" if scale == "spread" else "masks"

    def unit(self, findings: Findings) -> float:
        """What residuals are measured by, in ml."""
        if self.scale == "absolute":
            return 1.0
        return findings.volume_ml if self.scale == "relative" else sqrt(findings.spread) * findings.voxel_ml

    def score(self, findings: Findings) -> float | None:
        """The residual, positive where the true volume is the larger one."""
        if findings.true is None:
            return None
        difference, unit = findings.true * findings.voxel_ml - findings.volume_ml, self.unit(findings)
        return difference / unit if unit else inf * difference if difference else 0.0

    def size(self, score: float) -> float:
        return abs(score)

    def choose(self, evidence: Evidence) -> dict[str, Any]:
        return {**super().choose(evidence), "residuals": sorted(filter(isfinite, evidence.signed))}

    def numbers(self, rule: Rule, findings: Findings) -> dict[str, float]:
        half = rule["quantile"] * self.unit(findings)
        numbers = {
            "expected_ml": findings.volume_ml,
            "low_ml": max(0.0, findings.volume_ml - half),
            "high_ml": findings.volume_ml + half,
        }
        if findings.true is not None:
            sample = [findings.volume_ml + residual * self.unit(findings) for residual in rule["residuals"]]
            numbers["crps_ml"] = sample_crps([max(0.0, one) for one in sample], findings.true * findings.voxel_ml)
        return numbers

    def promise(self, structure: str) -> str:
        return f"the true volume of {structure} lies in the interval with probability {self.level:g}"
