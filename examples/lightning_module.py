"""A LightningModule for a loss that learns on validation data: the callback does what such a loss needs."""

import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibseg.integrations.lightning import CalibrationCallback
from calibseg.losses import CRaC

warnings.filterwarnings("ignore", message="crac|.*does not have many workers")  # two epochs of a toy: under-confident


class Segmenter(LightningModule):
    def __init__(self, num_classes: int = 3):
        super().__init__()
        self.network = nn.Conv2d(1, num_classes, 3, padding=1)
        self.loss = CRaC().setup(num_classes)

    def training_step(self, batch, batch_idx):
        image, target = batch
        return self.loss(self.network(image), target)

    def validation_step(self, batch, batch_idx):
        image, target = batch
        return {"logits": self.network(image), "target": target}

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), 1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    image = torch.rand(8, 1, 16, 16)
    loader = DataLoader(TensorDataset(image, (image[:, 0] * 3).long()), batch_size=2)
    model, quiet = Segmenter(), {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", enable_model_summary=False, callbacks=[CalibrationCallback()], **quiet
    )
    trainer.fit(model, loader, loader)
    print("lambda (inner, outer) of each class:", model.loss.lambdas.tolist())
