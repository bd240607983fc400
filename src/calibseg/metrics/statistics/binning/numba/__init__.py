"""Calibration statistics compiled by numba: one pass over the scores, block by block. Entry point: `numba_pass`."""

from calibseg.metrics.statistics.binning.numba.one_pass import numba_pass

__all__ = ["numba_pass"]
