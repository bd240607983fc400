"""The Lightning example under a real Trainer: the multipliers move once an epoch, by what validation within fit saw."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("pytorch_lightning")
from pytorch_lightning.callbacks import ModelCheckpoint  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and checkpoints
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_module.py"


@pytest.fixture
def segmenter():
    spec = importlib.util.spec_from_file_location("lightning_module", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make():
        torch.manual_seed(0)
        return module.Segmenter()

    return make


def loader() -> DataLoader:
    image = torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(image, (image[:, 0] * 3).long()), batch_size=2)


def trainer(folder: Path, epochs: int, *callbacks, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    saving = {"enable_checkpointing": bool(callbacks), "callbacks": list(callbacks), "default_root_dir": folder}
    return lightning.Trainer(max_epochs=epochs, **quiet, **saving, **options)


def updates(model) -> int:
    return int(model.loss.multipliers.epoch)


def test_two_epochs_are_two_updates_and_neither_sanity_check_nor_validate_is_one(segmenter, tmp_path):
    model, run = segmenter(), trainer(tmp_path, 2, num_sanity_val_steps=2)
    run.validate(model, loader(), verbose=False)
    assert updates(model) == 0
    assert int(model.loss.multipliers.voxels.sum()) == 0
    run.fit(model, loader(), loader())
    assert updates(model) == 2
    run.validate(model, loader(), verbose=False)
    assert updates(model) == 2
    assert int(model.loss.multipliers.voxels.sum()) == 0


def test_they_are_the_multipliers_of_a_loop_by_hand(segmenter, tmp_path):
    model, by_hand = segmenter(), segmenter()
    trainer(tmp_path, 3).fit(model, loader(), loader())
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


@pytest.mark.parametrize("options", [{"val_check_interval": 0.5}, {"val_check_interval": 3}], ids=str)
def test_validation_within_an_epoch_does_not_make_more_updates(options, segmenter, tmp_path):
    model = segmenter()
    trainer(tmp_path, 3, **options).fit(model, loader(), loader())
    assert updates(model) == 3


def test_an_epoch_without_validation_is_no_update(segmenter, tmp_path):
    model = segmenter()
    trainer(tmp_path, 4, check_val_every_n_epoch=2).fit(model, loader(), loader())
    assert updates(model) == 2


@pytest.mark.parametrize("at_the_end", [True, False], ids=["saved at the epoch's end", "saved after validation"])
@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_a_resumed_run_has_the_multipliers_of_one_that_was_not(at_the_end, interval, segmenter, tmp_path):
    straight, first, resumed = segmenter(), segmenter(), segmenter()
    trainer(tmp_path, 4, val_check_interval=interval).fit(straight, loader(), loader())
    saving = ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=at_the_end)
    trainer(tmp_path, 2, saving, val_check_interval=interval).fit(first, loader(), loader())
    torch.manual_seed(5)
    saved = tmp_path / "last.ckpt"
    trainer(tmp_path, 4, val_check_interval=interval).fit(resumed, loader(), loader(), ckpt_path=saved)
    assert updates(resumed) == updates(straight) == 4
    torch.testing.assert_close(resumed.loss.lambdas, straight.loss.lambdas)
    torch.testing.assert_close(resumed.network.weight, straight.network.weight)
