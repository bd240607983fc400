"""MONAI's own engines: the key metric, a loss that learns on validation, and a resumed training."""

import operator

import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.engines import IterationEvents, SupervisedEvaluator, SupervisedTrainer
from monai.handlers import CheckpointLoader, CheckpointSaver, ValidationHandler
from monai.transforms import Activationsd

from calibseg.core.types import BadInput
from calibseg.losses import CRaC
from calibseg.metrics.statistics.monitor import CalibrationMonitor

pytest.importorskip("ignite")
from calibseg.integrations.monai import CalibrationHandler, LearnOnValidation

pytestmark = pytest.mark.filterwarnings("ignore")


def loader() -> DataLoader:
    image = torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    items = [{"image": one, "label": (one * 3).long()} for one in image]
    return DataLoader(Dataset(items), batch_size=2)


class Setting:
    """A trainer and its evaluator; `interval`: iterations between validations, or None for one an epoch."""

    def __init__(self, epochs: int, interval: int | None = None, more=lambda setting: (), named: bool = True):
        torch.manual_seed(0)
        self.network = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.optimiser = torch.optim.Adam(self.network.parameters(), 1e-3)
        self.loss = CRaC().setup(3)
        self.evaluator = SupervisedEvaluator(
            device="cpu",
            val_data_loader=loader(),
            network=self.network,
            postprocessing=Activationsd("pred", softmax=True),
            key_val_metric={"ece": CalibrationHandler("ece", voxels="predicted")},
            additional_metrics={"brier": CalibrationHandler("brier", reduction="mean")},
            metric_cmp_fn=operator.lt,
        )
        self.learner = LearnOnValidation(self.loss, self.evaluator if named else None)
        validation = ValidationHandler(interval or 1, self.evaluator, epoch_level=interval is None, exec_at_start=True)
        self.trainer = SupervisedTrainer(
            device="cpu",
            max_epochs=epochs,
            train_data_loader=loader(),
            network=self.network,
            optimizer=self.optimiser,
            loss_function=self.loss,
            train_handlers=[self.learner, validation],
        )
        for handler in more(self):
            handler.attach(self.trainer)

    @property
    def saved(self):
        return {"net": self.network, "optimiser": self.optimiser, "loss": self.learner, "trainer": self.trainer}

    @property
    def updates(self) -> int:
        return int(self.loss.multipliers.epoch)


def test_the_multipliers_are_those_of_a_loop_by_hand_and_only_validation_after_training_counts():
    setting, by_hand = Setting(3), Setting(0)
    setting.evaluator.run()
    assert int(setting.loss.multipliers.voxels.sum()) == 0
    setting.trainer.run()
    assert setting.updates == 3
    setting.evaluator.run()
    assert int(setting.loss.multipliers.voxels.sum()) == 0
    for _ in range(3):
        for batch in loader():
            by_hand.optimiser.zero_grad()
            by_hand.loss(by_hand.network(batch["image"]), batch["label"]).backward()
            by_hand.optimiser.step()
        with torch.no_grad():
            for batch in loader():
                by_hand.loss.observe(by_hand.network(batch["image"]), batch["label"])
        log = by_hand.loss.end_epoch()
    assert torch.equal(setting.loss.lambdas, by_hand.loss.lambdas)
    assert torch.equal(setting.network.weight, by_hand.network.weight)
    assert setting.trainer.state.metrics["lambda_inner_0"] == log["lambda_inner_0"]


def test_a_handler_of_both_engines_needs_no_validator_and_of_the_trainer_alone_is_refused():
    named, both, alone = Setting(2), Setting(2, named=False), Setting(2, named=False)
    both.learner.attach(both.evaluator)
    for setting in (named, both):
        setting.trainer.run()
    assert torch.equal(named.loss.lambdas, both.loss.lambdas)
    with pytest.raises(BadInput, match="knows no evaluator: say validator"):
        alone.trainer.run()


@pytest.mark.parametrize("interval", [2, 3])
def test_several_validations_in_an_epoch_make_one_update(interval):
    setting = Setting(3, interval)
    setting.trainer.run()
    assert setting.updates == 3


def test_the_engine_keeps_the_lowest_ece_which_is_the_monitors():
    setting = Setting(2)
    setting.trainer.run()
    state = setting.evaluator.state
    monitor = CalibrationMonitor(3, ("ece",), ("predicted",))
    with torch.no_grad():
        for batch in loader():
            monitor.update(setting.network(batch["image"]), batch["label"])
    assert state.metrics["ece"] == pytest.approx(monitor.compute()["predicted/ece"], abs=1e-7)
    assert state.best_metric <= state.metrics["ece"]
    assert state.metric_details["ece"].shape == (8, 1)
    assert state.metrics["brier"] == pytest.approx(state.metric_details["brier"].mean().item(), abs=1e-6)


def test_an_engine_that_would_keep_the_highest_ece_is_refused():
    with pytest.raises(BadInput, match=r"say metric_cmp_fn=operator\.lt"):
        SupervisedEvaluator(
            device="cpu",
            val_data_loader=loader(),
            network=torch.nn.Identity(),
            key_val_metric={"ece": CalibrationHandler("ece")},
        )


def test_a_resumed_training_has_the_multipliers_of_one_that_was_not(tmp_path):
    straight = Setting(4)
    straight.trainer.run()
    first = Setting(2, more=lambda one: [CheckpointSaver(str(tmp_path), one.saved, save_interval=1)])
    first.trainer.run()
    checkpoint = str(next(tmp_path.glob("*epoch=2.pt")))
    assert first.learner.observed is False
    resumed = Setting(4, more=lambda one: [CheckpointLoader(checkpoint, one.saved)])
    resumed.trainer.run()
    assert resumed.updates == straight.updates == 4
    assert torch.equal(resumed.loss.lambdas, straight.loss.lambdas)
    assert torch.equal(resumed.network.weight, straight.network.weight)


def test_a_trainer_that_counts_anew_still_learns_on_validation():
    """A checkpoint with the handler but without the trainer, as the example bundle has it."""
    first, second = Setting(4), Setting(3)
    first.trainer.run()
    second.learner.load_state_dict(first.learner.state_dict())
    second.trainer.run()
    assert (first.updates, second.updates) == (4, 7)


def test_an_update_that_is_due_is_saved_whoever_comes_first():
    """The evaluator's saver may run before the handler has heard that the epoch is over."""
    setting, states = Setting(1), []
    setting.evaluator.add_event_handler(
        IterationEvents.FORWARD_COMPLETED, lambda _: states.append(setting.learner.state_dict()["observed"])
    )
    setting.trainer.run()
    assert states[-1] is True
