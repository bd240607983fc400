"""What nnU-Net's trainer does to a mixin, in a few lines: for tests where nnU-Net is not installed."""

from types import SimpleNamespace

import torch
from torch import nn

from calibseg.integrations.nnunet.trainers import CalibratedTrainer

SCALES = (1, 2, 4)


class CrossEntropyAndDice(nn.Module):
    """As nnU-Net's DC_and_CE_loss, with batch_dice and without background."""

    def __init__(self, ignore_label=None):
        super().__init__()
        self.weight_dice, self.ignore_label = 1, ignore_label

    def dc(self, logits, labels, loss_mask=None):
        mask = torch.ones_like(labels, dtype=torch.bool) if loss_mask is None else loss_mask
        s, y = torch.softmax(logits, 1)[:, 1:], (labels == torch.arange(logits.shape[1]).view(1, -1, 1, 1))[:, 1:]
        both, predicted, true = ((one * mask).sum((0, 2, 3)) for one in (s * y, s, y.float()))
        return -((2 * both + 1e-5) / (predicted + true + 1e-5)).mean()

    def forward(self, logits, target):
        mask = None if self.ignore_label is None else target != self.ignore_label
        index = -100 if self.ignore_label is None else self.ignore_label
        ce = nn.functional.cross_entropy(logits, target[:, 0].long(), ignore_index=index)
        known = target if mask is None else torch.where(mask, target, 0)
        return ce + self.weight_dice * self.dc(logits, known, mask)


class DeepSupervision(nn.Module):
    """As nnU-Net's DeepSupervisionWrapper."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.weight_factors = loss, (2 / 3, 1 / 3, 0.0)

    def forward(self, outputs, targets):
        return sum(w * self.loss(o, t) for w, o, t in zip(self.weight_factors, outputs, targets, strict=True) if w)


class Host:
    """A trainer: the hooks of an epoch in nnU-Net's order."""

    ignore_label = None
    deep_supervision = True

    def __init__(self, folder="."):
        self.output_folder, self.local_rank, self.current_epoch = str(folder), 0, 0
        self.device, self.disable_checkpointing, self.was_initialized = torch.device("cpu"), False, False
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 1000, 250, 50
        self.save_every, self.said = 50, []
        self.label_manager = SimpleNamespace(
            num_segmentation_heads=3, has_regions=False, ignore_label=self.ignore_label
        )

    def initialize(self):
        torch.manual_seed(0)
        self.network = nn.Conv2d(1, 3, 3, padding=1)
        self.lr_scheduler = SimpleNamespace(max_steps=self.num_epochs)
        self.loss = self._build_loss()
        self.was_initialized = True

    def _build_loss(self):
        own = CrossEntropyAndDice(self.ignore_label)
        return DeepSupervision(own) if self.deep_supervision else own

    def print_to_log_file(self, *words):
        self.said.append(" ".join(map(str, words)))

    def output(self, data, target):
        logits = self.network(data)
        if not self.deep_supervision:
            return logits, target
        return [logits[..., ::n, ::n] for n in SCALES], [target[..., ::n, ::n] for n in SCALES]

    def on_train_epoch_start(self):
        self.network.train()

    def train_step(self, data, target):
        loss = self.loss(*self.output(data, target))
        self.network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter -= 0.1 * parameter.grad
        return loss.detach()

    def on_validation_epoch_start(self):
        self.network.eval()

    def validation_step(self, data, target):
        target = target.clone()
        outputs, targets = self.output(data, target)
        loss = self.loss(outputs, targets)
        if self.ignore_label is not None:
            target[target == self.ignore_label] = 0  # as nnU-Net does, in place, after the loss
        return {"loss": loss}

    def on_validation_epoch_end(self, val_outputs):
        pass

    def epoch(self, batches):
        self.on_train_epoch_start()
        for data, target in batches:
            self.train_step(data, target)
        with torch.no_grad():
            self.on_validation_epoch_start()
            self.on_validation_epoch_end([self.validation_step(data, target) for data, target in batches])
        self.current_epoch += 1

    def save_checkpoint(self, filename):
        torch.save(
            {
                "network_weights": self.network.state_dict(),
                "current_epoch": self.current_epoch,
                "trainer_name": type(self).__name__,
            },
            filename,
        )

    def load_checkpoint(self, filename):
        if not self.was_initialized:
            self.initialize()
        stored = torch.load(filename, weights_only=True)
        self.network.load_state_dict(stored["network_weights"])
        self.current_epoch = stored["current_epoch"]


def made_trainer(loss, folder=".", options=None, ignore_label=None, deep_supervision=True):
    """A trainer with one of our losses."""
    facts = {"calibseg_loss": loss, "calibseg_options": options or {}}
    facts |= {"ignore_label": ignore_label, "deep_supervision": deep_supervision}
    return type("Mine", (CalibratedTrainer, Host), facts)(folder)


def made_batches(seed=0, number=3, ignored=None):
    """Images and int16 labels [2 1 16 16], as nnU-Net gives them."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(number):
        data = torch.randn((2, 1, 16, 16), generator=draw)
        target = torch.zeros((2, 1, 16, 16), dtype=torch.int16)
        target[:, :, 3:9, 4:12] = 1
        target[:, :, 7:13, 2:7] = 2
        if ignored is not None:
            target[:, :, :, 13:] = ignored
        found.append((data + target, target))
    return found
