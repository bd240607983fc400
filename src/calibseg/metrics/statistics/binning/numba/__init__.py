"""Calibration statistics compiled by numba: one pass over the scores, block by block."""
