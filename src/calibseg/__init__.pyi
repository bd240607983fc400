# Written by scripts/stubs.py (make stubs): do not edit.
from typing import Any, Literal, overload

from calibseg import api as api
from calibseg import calibrators as calibrators
from calibseg import decisions as decisions
from calibseg import losses as losses
from calibseg import metrics as metrics
from calibseg import networks as networks
from calibseg.api.in_memory import Measured as Measured
from calibseg.api.in_memory import measure as measure
from calibseg.calibrators import Calibrator as _Calibrator
from calibseg.core.registry import available as available
from calibseg.core.types import BadInput as BadInput
from calibseg.core.types import Case as Case
from calibseg.core.types import Prediction as Prediction
from calibseg.core.types import Split as Split
from calibseg.data import datasets as datasets
from calibseg.data.datasets import Dataset as _Dataset
from calibseg.decisions import Decision as _Decision
from calibseg.losses import Loss as _Loss
from calibseg.losses.priors import Prior as _Prior
from calibseg.metrics import Metric as _Metric
from calibseg.metrics.statistics.monitor import CalibrationMonitor as CalibrationMonitor
from calibseg.networks import Network as _Network

__version__: str

@overload
def create(family: Literal["losses", "loss"], name: str, /, **options: Any) -> _Loss: ...
@overload
def create(family: Literal["priors", "prior"], name: str, /, **options: Any) -> _Prior: ...
@overload
def create(family: Literal["metrics", "metric"], name: str, /, **options: Any) -> _Metric: ...
@overload
def create(family: Literal["networks", "network"], name: str, /, **options: Any) -> _Network: ...
@overload
def create(family: Literal["datasets", "dataset"], name: str, /, **options: Any) -> _Dataset: ...
@overload
def create(family: Literal["calibrators", "calibrator"], name: str, /, **options: Any) -> _Calibrator: ...
@overload
def create(family: Literal["decisions", "decision"], name: str, /, **options: Any) -> _Decision: ...
@overload
def create(family: str, name: str, /, **options: Any) -> Any: ...
