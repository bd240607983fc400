"""The callback under real Trainers: the multipliers move once an epoch, by what validation within fit saw."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from calibseg.core.types import BadInput
from calibseg.losses import CRaC

pytest.importorskip("pytorch_lightning")
from calibseg.integrations import lightning as ours
from calibseg.integrations.torchmetrics import CalibrationError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and checkpoints


both_hosts = pytest.mark.parametrize("host", ["pytorch_lightning", "lightning.pytorch"], indirect=True)


@pytest.fixture
def host(request):
    return pytest.importorskip(getattr(request, "param", "lightning.pytorch"))


@pytest.fixture
def segmenter(host):
    class Segmenter(host.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Conv2d(1, 3, 3, padding=1)
            self.loss = CRaC().setup(3)
            self.ece = CalibrationError(3, kind="logits")

        def training_step(self, batch, batch_idx):
            image, target = batch
            return self.loss(self.network(image), target)

        def validation_step(self, batch, batch_idx):
            logits, target = self.network(batch[0]), batch[1]
            self.ece(logits, target)
            self.log("ece", self.ece)
            return {"logits": logits, "target": target}

        def configure_optimizers(self):
            return torch.optim.Adam(self.network.parameters(), 1e-3)

    def make():
        torch.manual_seed(0)
        return Segmenter()

    return make


def loader() -> DataLoader:
    image = torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(image, (image[:, 0] * 3).long()), batch_size=2)


def trainer(host, folder: Path, epochs: int, *callbacks, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    saving = {"enable_checkpointing": bool(callbacks), "default_root_dir": folder}
    callbacks = [*callbacks, ours.CalibrationCallback()]
    return host.Trainer(max_epochs=epochs, callbacks=callbacks, **quiet, **saving, **options)


def updates(model) -> int:
    return int(model.loss.multipliers.epoch)


@both_hosts
def test_two_epochs_are_two_updates_and_neither_sanity_check_nor_validate_is_one(host, segmenter, tmp_path):
    model, run = segmenter(), trainer(host, tmp_path, 2, num_sanity_val_steps=2)
    run.validate(model, loader(), verbose=False)
    assert updates(model) == 0
    assert int(model.loss.multipliers.voxels.sum()) == 0
    run.fit(model, loader(), loader())
    assert updates(model) == 2
    assert run.logged_metrics["lambda_inner_0"] == pytest.approx(model.loss.lambdas[0, 0].item())
    logged = run.callback_metrics["ece"]  # of the exact metric, pooled over the epoch
    run.validate(model, loader(), verbose=False)
    assert run.callback_metrics["ece"] == logged
    assert updates(model) == 2
    assert int(model.loss.multipliers.voxels.sum()) == 0


def test_they_are_the_multipliers_of_a_loop_by_hand(host, segmenter, tmp_path):
    model, by_hand = segmenter(), segmenter()
    trainer(host, tmp_path, 3).fit(model, loader(), loader())
    optimiser = by_hand.configure_optimizers()
    for _ in range(3):
        for image, target in loader():
            optimiser.zero_grad()
            by_hand.loss(by_hand.network(image), target).backward()
            optimiser.step()
        with torch.no_grad():
            for image, target in loader():
                by_hand.loss.observe(by_hand.network(image), target)
        by_hand.loss.end_epoch()
    assert torch.equal(model.loss.lambdas, by_hand.loss.lambdas)
    assert torch.equal(model.network.weight, by_hand.network.weight)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"val_check_interval": 0.5}, 3), ({"val_check_interval": 3}, 3), ({"check_val_every_n_epoch": 2}, 1)],
    ids=["twice an epoch", "within an epoch", "every other epoch"],
)
def test_an_epoch_that_validates_makes_one_update(options, expected, host, segmenter, tmp_path):
    model = segmenter()
    trainer(host, tmp_path, 3, **options).fit(model, loader(), loader())
    assert updates(model) == expected


@pytest.mark.parametrize("at_the_end", [True, False], ids=["saved at the epoch's end", "saved after validation"])
@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_a_resumed_run_has_the_multipliers_of_one_that_was_not(at_the_end, interval, host, segmenter, tmp_path):
    straight, first, resumed = segmenter(), segmenter(), segmenter()
    trainer(host, tmp_path, 4, val_check_interval=interval).fit(straight, loader(), loader())
    checkpoint = importlib.import_module(f"{host.__name__}.callbacks").ModelCheckpoint
    saving = checkpoint(tmp_path, "last", save_on_train_epoch_end=at_the_end)
    trainer(host, tmp_path, 2, saving, val_check_interval=interval).fit(first, loader(), loader())
    torch.manual_seed(5)
    saved = tmp_path / "last.ckpt"
    trainer(host, tmp_path, 4, val_check_interval=interval).fit(resumed, loader(), loader(), ckpt_path=saved)
    assert updates(resumed) == updates(straight) == 4
    torch.testing.assert_close(resumed.loss.lambdas, straight.loss.lambdas)
    torch.testing.assert_close(resumed.network.weight, straight.network.weight)


@both_hosts
def test_a_module_that_returns_no_logits_or_has_no_loss_is_refused_in_a_sentence(host, segmenter, tmp_path):
    model = segmenter()
    model.validation_step = lambda batch, batch_idx: {"loss": torch.zeros(())}
    with pytest.raises(BadInput, match=r'returned a dict of loss; .* return {"logits": logits, "target": target}'):
        trainer(host, tmp_path, 1, num_sanity_val_steps=0).fit(model, loader(), loader())
    model.loss = torch.nn.CrossEntropyLoss()
    with pytest.raises(BadInput, match="Segmenter has no loss of calibseg among its modules"):
        trainer(host, tmp_path, 1).fit(model, loader(), loader())


def test_where_lightning_is_absent_one_sentence_names_the_extra(monkeypatch):
    for name in [*ours.HOSTS, "lightning"]:
        monkeypatch.setitem(sys.modules, name, None)  # what Python has for a module that cannot be imported
    with pytest.raises(ImportError, match=r'pip install "calibseg\[lightning\]"'):
        ours._callback_class()
    monkeypatch.delitem(sys.modules, "calibseg.integrations.torchmetrics")
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r'torchmetrics cannot be imported .*pip install "calibseg\[torchmetrics\]"'):
        importlib.import_module("calibseg.integrations.torchmetrics")
