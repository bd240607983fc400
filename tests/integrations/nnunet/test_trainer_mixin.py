"""The mixin that puts a loss of ours into nnU-Net's trainer, on a trainer that is as nnU-Net's in what matters."""

import warnings

import pytest
import torch

from calibseg import losses
from calibseg.core.types import BadInput
from calibseg.integrations.nnunet.checkpoint import read_checkpoint
from calibseg.integrations.nnunet.objective import Objective
from calibseg.integrations.nnunet.trainers import FOLDER, trainer_names
from support.nnunet_host import SCALES, CrossEntropyAndDice, DeepSupervision, made_batches, made_trainer

CRAC = {"update_steps": 2, "rho_every": 1, "tolerance": 0.1}


@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize("deep", [True, False])
def test_cross_entropy_in_the_place_of_cross_entropy_changes_nothing(deep, ignored):
    trainer = made_trainer("ce", ignore_label=ignored, deep_supervision=deep)
    trainer.initialize()
    own = CrossEntropyAndDice(ignored)
    own = DeepSupervision(own) if deep else own
    for data, target in made_batches(ignored=ignored):
        outputs, targets = trainer.output(data, target)
        torch.testing.assert_close(trainer.loss(outputs, targets), own(outputs, targets), rtol=1e-6, atol=1e-6)


def test_a_loss_stands_at_full_resolution_only_beside_nnunets_dice():
    trainer = made_trainer("nacl", options={"weight": 0.3, "dice_weight": 0.5})
    trainer.initialize()
    data, target = made_batches(number=1)[0]
    outputs, targets = trainer.output(data, target)
    own = CrossEntropyAndDice()
    own.weight_dice = 0.5
    ours = losses.NACL(weight=0.3)(outputs[0], target.long()) + 0.5 * own.dc(outputs[0], target)
    torch.testing.assert_close(trainer.loss(outputs, targets), 2 / 3 * ours + 1 / 3 * own(outputs[1], targets[1]))
    assert len(outputs) == len(SCALES)


def test_ignored_voxels_have_no_gradient_and_no_vote():
    trainer = made_trainer("nacl", options={"dice_weight": 0}, ignore_label=3, deep_supervision=False)
    trainer.initialize()
    target = made_batches(number=1, ignored=3)[0][1]
    logits = torch.randn(2, 3, 16, 16, requires_grad=True)
    trainer.loss(logits, target).backward()
    assert logits.grad is not None
    assert not logits.grad[..., 13:].any()
    plain = losses.NACL(ignore_index=3)(logits, target.long())
    torch.testing.assert_close(trainer.loss(logits, target), plain)


def test_half_precision_stops_at_the_loss():
    trainer = made_trainer("crac", deep_supervision=False)
    trainer.initialize()
    target = made_batches(number=1)[0][1]
    logits = torch.randn(2, 3, 16, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = trainer.loss(logits, target)
    torch.testing.assert_close(found, trainer.loss(logits.float(), target), rtol=1e-2, atol=1e-2)
    assert found.dtype == torch.float32


def test_validation_batches_are_observed_and_training_batches_are_not():
    trainer = made_trainer("crac", options=CRAC, ignore_label=3)
    trainer.initialize()
    seen = []
    loss = trainer.loss.loss
    observe = loss.observe
    loss.observe = lambda logits, target, valid: (seen.append(int((~valid).sum())), observe(logits, target, valid))
    batches = made_batches(ignored=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.epoch(batches)
    assert seen == [2 * 16 * 3] * 3  # each once, before its ignored voxels were overwritten
    assert int(loss.multipliers.epoch) == 1
    assert (loss.lambdas > 1e-6).any()
    assert any("lambda_inner_1" in line for line in trainer.said)


def test_a_stopped_training_goes_on_with_equal_multipliers_and_ends_with_the_same_bits(tmp_path):
    def run(*epochs, load=None):
        trainer = made_trainer("crac", tmp_path, CRAC)
        if load:
            trainer.load_checkpoint(str(load))
        else:
            trainer.initialize()
        for epoch in epochs:
            trainer.epoch(made_batches(epoch))
        return trainer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = run(0, 1, 2, 3)
        table = (tmp_path / "calibseg.csv").read_text()
        run(0, 1).save_checkpoint(str(tmp_path / "checkpoint_latest.pth"))
        again = run(2, 3, load=tmp_path / "checkpoint_latest.pth")
    assert torch.equal(again.loss.loss.lambdas, whole.loss.loss.lambdas)
    assert torch.equal(again.network.weight, whole.network.weight)
    assert (tmp_path / "calibseg.csv").read_text() == table
    assert len(table.splitlines()) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibseg.csv", "checkpoint_latest.pth"]
    assert read_checkpoint(tmp_path / "checkpoint_latest.pth")["calibseg"]["options"] == CRAC


def test_a_training_goes_on_by_its_own_options_and_refuses_others(tmp_path, monkeypatch):
    path = str(tmp_path / "a.pth")
    monkeypatch.setenv("CALIBSEG_NNUNET", "weight=0.3, epochs=7, iterations=2, save_every=3")
    first = made_trainer("nacl", tmp_path)
    first.initialize()
    first.save_checkpoint(path)
    assert (first.num_epochs, first.num_iterations_per_epoch, first.save_every) == (7, 2, 3)
    assert "weight=0.3" in first.said[0]
    monkeypatch.delenv("CALIBSEG_NNUNET")
    later = made_trainer("nacl", tmp_path)
    later.load_checkpoint(path)
    assert (later.loss.loss.weight, later.num_epochs, later.lr_scheduler.max_steps) == (0.3, 7, 7)
    later = made_trainer("nacl", tmp_path)
    later.initialize()
    later.load_checkpoint(path)
    assert (later.loss.loss.weight, later.num_epochs, later.lr_scheduler.max_steps) == (0.3, 7, 7)
    monkeypatch.setenv("CALIBSEG_NNUNET", "weight=0.3, epochs=9")
    longer = made_trainer("nacl", tmp_path)
    longer.load_checkpoint(path)
    assert longer.num_epochs == 9
    for options in ("weight=0.2", "epochs=7"):
        monkeypatch.setenv("CALIBSEG_NNUNET", options)
        with pytest.raises(BadInput, match="weight"):
            made_trainer("nacl", tmp_path).load_checkpoint(path)
    with pytest.raises(BadInput, match="was trained by the loss nacl"):
        made_trainer("mbls", tmp_path).load_checkpoint(path)


@pytest.mark.parametrize("text", ["wieght=0.3", "weight='much'", "epochs=0", "dice_weight=-1", "weight"])
def test_wrong_options_are_refused_before_the_training(text, monkeypatch):
    monkeypatch.setenv("CALIBSEG_NNUNET", text)
    with pytest.raises(BadInput):
        made_trainer("nacl").initialize()


def test_a_trainer_with_another_loss_of_its_own_is_refused():
    with pytest.raises(BadInput, match="BCELoss"):
        Objective(torch.nn.BCELoss(), losses.CE(), None, False)


def test_there_is_a_trainer_for_every_loss_that_needs_one_view():
    names = trainer_names()
    assert names["nnUNetTrainerCRaC"] == "crac"
    assert "bwcr" not in names.values()
    assert [path.name for path in FOLDER.iterdir() if path.suffix == ".py"] == ["calibseg_trainers.py"]
