"""What is said where a host library cannot be imported."""

from calibseg.core.types import BadInput

EXTRAS = {"ignite": "monai", "lightning": "lightning", "onnx": "onnx", "torchmetrics": "torchmetrics"}


class MissingHost(BadInput, ImportError):
    """A library that the user has to install."""


def missing(host: str, error: Exception) -> MissingHost:
    """The one sentence for a host that is absent, or that fails while it is imported (a torchvision for another torch).

    >>> print(missing("torchmetrics", ModuleNotFoundError("No module named 'torchmetrics'")))
    torchmetrics cannot be imported (No module named 'torchmetrics'): pip install "calibseg[torchmetrics]"
    """
    return MissingHost(f'{host} cannot be imported ({error}): pip install "calibseg[{EXTRAS[host]}]"')
