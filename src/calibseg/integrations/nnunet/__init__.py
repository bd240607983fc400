"""nnU-Net: trainers for every loss, calibration of what its folds have predicted, models that need nothing of ours."""
