"""Trainers that differ in their loss only: the same few steps, first weights and batches, on one thread of a CPU."""
# ruff: noqa: N801  nnU-Net's trainers are called so

import random

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (  # pyright: ignore[reportMissingImports]
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.optimizer.nnUNetTrainerAdam import (  # pyright: ignore[reportMissingImports]
    nnUNetTrainerAdam,
)

from calibseg.integrations.nnunet.trainers import CalibratedTrainer

EPOCHS, ITERATIONS, VALIDATION_ITERATIONS, LEARNING_RATE = 60, 60, 3, 5e-3


class nnUNetTrainerShort(nnUNetTrainerAdam, nnUNetTrainerNoMirroring):
    """nnU-Net's own loss, cross-entropy and Dice, by its variants with AdamW and without mirrored copies.

    By its usual SGD a network of this size says background everywhere after as many steps. nnU-Net draws no seed.
    """

    def initialize(self):
        torch.set_num_threads(1)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  which its augmentation draws from
        torch.manual_seed(0)
        self.num_epochs, self.num_iterations_per_epoch = EPOCHS, ITERATIONS
        self.num_val_iterations_per_epoch, self.save_every = VALIDATION_ITERATIONS, 5
        self.initial_lr = LEARNING_RATE
        super().initialize()


class nnUNetTrainerShortNACL(CalibratedTrainer, nnUNetTrainerShort):
    calibseg_loss = "nacl"


class nnUNetTrainerShortCRaC(CalibratedTrainer, nnUNetTrainerShort):
    calibseg_loss = "crac"
