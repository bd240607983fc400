# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.losses.priors.gaussian import Gaussian as Gaussian
from calibseg.losses.priors.max import Max as Max
from calibseg.losses.priors.mean import Mean as Mean
from calibseg.losses.priors.median import Median as Median
from calibseg.losses.priors.min import Min as Min
from calibseg.losses.priors.mode import Mode as Mode
from calibseg.losses.priors.plain_gaussian import PlainGaussian as PlainGaussian
