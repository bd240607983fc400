"""Trainers that differ in their loss only: the same few steps, first weights and batches, on one thread of a CPU."""
# ruff: noqa: N801  nnU-Net's trainers are called so

import random

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer  # pyright: ignore[reportMissingImports]

from calibseg.integrations.nnunet.trainers import CalibratedTrainer

EPOCHS, ITERATIONS, VALIDATION_ITERATIONS = 30, 20, 3


class nnUNetTrainerShort(nnUNetTrainer):
    """nnU-Net's own loss, cross-entropy and Dice. nnU-Net itself draws no seed."""

    def initialize(self):
        torch.set_num_threads(1)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  which its augmentation draws from
        torch.manual_seed(0)
        self.num_epochs, self.num_iterations_per_epoch = EPOCHS, ITERATIONS
        self.num_val_iterations_per_epoch = VALIDATION_ITERATIONS
        super().initialize()


class nnUNetTrainerShortNACL(CalibratedTrainer, nnUNetTrainerShort):
    calibseg_loss = "nacl"


class nnUNetTrainerShortCRaC(CalibratedTrainer, nnUNetTrainerShort):
    calibseg_loss = "crac"
