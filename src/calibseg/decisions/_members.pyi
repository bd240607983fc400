# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.decisions.fnr import FNR as FNR
from calibseg.decisions.fpr import FPR as FPR
from calibseg.decisions.inner import Inner as Inner
from calibseg.decisions.margin import Margin as Margin
from calibseg.decisions.volume import Volume as Volume
