"""What is said where a host library cannot be imported."""

EXTRAS = {"ignite": "monai", "lightning": "lightning", "onnx": "onnx", "torchmetrics": "torchmetrics"}


def missing(host: str, error: Exception) -> ImportError:
    """The one sentence for a host that is absent, or that fails while it is imported (a torchvision for another torch).

    >>> print(missing("torchmetrics", ModuleNotFoundError("No module named 'torchmetrics'")))
    torchmetrics cannot be imported (No module named 'torchmetrics'): pip install "calibseg[torchmetrics]"
    """
    return ImportError(f'{host} cannot be imported ({error}): pip install "calibseg[{EXTRAS[host]}]"')
