"""The stage calibrate: fit on validation, choose by cross-fitting, apply."""
