"""calibseg: segmentation networks that tell the truth about how sure they are."""

__version__ = "0.1.0"
