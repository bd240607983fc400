"""A LightningModule needs two more lines for a loss that learns on validation data: observe and end_epoch."""

import torch
from torch import nn

from calibseg.losses import CRaC

try:
    from lightning import LightningModule
except ImportError:  # the example then shows the same hooks on a plain module
    LightningModule = nn.Module


class Segmenter(LightningModule):
    def __init__(self, num_classes: int = 3):
        super().__init__()
        self.network = nn.Conv2d(1, num_classes, 3, padding=1)
        self.loss = CRaC().setup(num_classes)

    def training_step(self, batch, batch_idx=0):
        image, target = batch
        return self.loss(self.network(image), target)

    def validation_step(self, batch, batch_idx=0):
        image, target = batch
        self.loss.observe(self.network(image), target)

    def on_validation_epoch_end(self):
        return self.loss.end_epoch()

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), 1e-3)


if __name__ == "__main__":
    model = Segmenter()
    batch = torch.rand(2, 1, 16, 16), torch.randint(0, 3, (2, 16, 16))
    model.training_step(batch).backward()
    with torch.no_grad():
        model.validation_step(batch)
    print({name: round(value, 4) for name, value in model.on_validation_epoch_end().items()})
