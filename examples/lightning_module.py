"""A LightningModule for a loss that learns on validation data: `observe` in validation, `end_epoch` once an epoch.

Only validation within `fit` counts: neither the sanity check nor `Trainer.validate` may move the multipliers. What was
observed in an epoch (several times, if val_check_interval says so) is used once, at its end; a checkpoint that is saved
between validation and the end of the epoch holds it, and a resumed run uses it before it goes on.
"""

import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibseg.losses import CRaC

warnings.filterwarnings("ignore", message="crac|.*does not have many workers")  # two epochs of a toy: under-confident


class Segmenter(LightningModule):
    def __init__(self, num_classes: int = 3):
        super().__init__()
        self.network = nn.Conv2d(1, num_classes, 3, padding=1)
        self.loss = CRaC().setup(num_classes)
        self.register_buffer("observed", torch.tensor(False))

    def training_step(self, batch, batch_idx):
        image, target = batch
        return self.loss(self.network(image), target)

    def validation_step(self, batch, batch_idx):
        image, target = batch
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.loss.observe(self.network(image), target)

    def on_validation_epoch_end(self):  # on every rank, also on one that had no batch
        self.observed |= self.trainer.state.fn == "fit" and not self.trainer.sanity_checking

    def on_train_epoch_end(self):
        if self.observed:
            self.observed.zero_()
            self.log_dict(self.loss.end_epoch())

    on_train_epoch_start = on_train_epoch_end  # after a resume; else nothing is left to be done

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), 1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    image = torch.rand(8, 1, 16, 16)
    loader = DataLoader(TensorDataset(image, (image[:, 0] * 3).long()), batch_size=2)
    model, quiet = Segmenter(), {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet).fit(model, loader, loader)
    print("lambda (inner, outer) of each class:", model.loss.lambdas.tolist())
