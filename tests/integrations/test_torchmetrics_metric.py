"""The torchmetrics metric: torchmetrics' own numbers on small inputs, the right ones where it is wrong."""

import pytest
import torch

from calibseg.core.types import BadInput

torchmetrics = pytest.importorskip("torchmetrics")
from torchmetrics import MetricCollection  # noqa: E402
from torchmetrics.classification import MulticlassCalibrationError  # noqa: E402

from calibseg.integrations.torchmetrics import CalibrationError  # noqa: E402
from calibseg.metrics.statistics.monitor import CalibrationMonitor  # noqa: E402


def batch(seed: int = 0, cases: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n 3 y x] and labels, some of which are 255."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(cases, 3, 10, 12, generator=generator)
    labels = torch.randint(0, 3, (cases, 10, 12), generator=generator)
    labels[:, 0] = 255
    return logits, labels


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("n_bins", [15, 7])
def test_it_says_what_torchmetrics_says_on_small_inputs(norm, n_bins):
    ours = CalibrationError(3, n_bins, norm, ignore_index=255)
    theirs = MulticlassCalibrationError(3, n_bins, norm, ignore_index=255)
    for seed in range(3):
        logits, labels = batch(seed)
        p = logits.softmax(1)
        assert ours(p, labels).item() == pytest.approx(theirs(p, labels).item(), abs=2e-6)  # of the batch
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=2e-6)  # of all
    assert ours.compute().dtype == torch.float32


def test_predictions_without_space_are_taken_too():
    logits, labels = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 4
    ours, theirs = CalibrationError(4), MulticlassCalibrationError(4)
    assert ours(logits.softmax(1), labels).item() == pytest.approx(theirs(logits.softmax(1), labels).item(), abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_its_states_stay_whole_numbers_in_any_precision(dtype):
    (logits, labels), plain = batch(), CalibrationError(3, ignore_index=255, kind="logits")
    ours = MetricCollection([CalibrationError(3, ignore_index=255, kind="logits")]).set_dtype(dtype)
    for metric in (plain, ours):
        metric.update(logits[:2], labels[:2])
    ours.set_dtype(dtype)
    for metric in (plain, ours):
        metric.update(logits[2:], labels[2:])
    assert ours.compute()["CalibrationError"] == plain.compute()


def test_it_is_the_monitor_under_every_voxel_rule_and_for_sigmoid():
    logits, labels = batch()
    for voxels in ("all", "predicted", "truth", "union"):
        ours = CalibrationError(3, ignore_index=255, voxels=voxels, kind="logits")
        monitor = CalibrationMonitor(3, ("ece",), (voxels,), ignore_label=255)
        ours.update(logits, labels)
        monitor.update(logits, labels)
        assert ours.compute().item() == pytest.approx(monitor.compute()[f"{voxels}/ece"], abs=1e-7)
    channels = torch.stack([labels == 1, labels == 2], 1).float()
    ours, monitor = (
        CalibrationError(2, kind="logits", activation="sigmoid"),
        CalibrationMonitor(2, ("ece",), ("all",), activation="sigmoid"),
    )
    ours.update(logits[:, :2], channels)
    monitor.update(logits[:, :2], channels)
    assert ours.compute().item() == pytest.approx(monitor.compute()["all/ece"], abs=1e-7)


def test_a_million_voxels_are_added_up_exactly_where_torchmetrics_is_off_by_half_of_the_error():
    """Its float32 sum of 0.99 is rounded up to 1 at each step once it is beyond 2^19."""
    p = torch.full((1, 2, 1 << 20), 0.01)
    p[:, 0] = 0.99
    labels = torch.zeros(1, 1 << 20, dtype=torch.long)
    ours, theirs = CalibrationError(2)(p, labels).item(), MulticlassCalibrationError(2)(p, labels).item()
    assert ours == pytest.approx(0.01, abs=1e-6)
    assert theirs < 0.006


def test_logits_in_the_unit_interval_are_logits_where_torchmetrics_takes_them_for_probabilities():
    logits, labels = torch.tensor([[0.9, 0.2]]).expand(100, 2), torch.zeros(100, dtype=torch.long)
    right = 1 - torch.tensor([0.9, 0.2]).softmax(0)[0].item()
    assert CalibrationError(2, kind="logits")(logits, labels).item() == pytest.approx(right, abs=1e-6)
    assert MulticlassCalibrationError(2)(logits, labels).item() == pytest.approx(0.1, abs=1e-6)


def test_wrong_kinds_and_options_are_refused_in_a_sentence():
    logits, labels = batch()
    with pytest.raises(BadInput, match="if they are logits, say so"):
        CalibrationError(3, ignore_index=255).update(logits, labels)
    with pytest.raises(BadInput, match="they are probabilities"):
        CalibrationError(3, ignore_index=255, kind="logits").update(logits.softmax(1), labels)
    with pytest.raises(BadInput, match="the label 255"):
        CalibrationError(3, kind="logits").update(logits, labels)
    with pytest.raises(BadInput, match="norm must be one of"):
        CalibrationError(3, norm="l3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="no voxel rule named 'foreground'"):
        CalibrationError(3, voxels="foreground")  # pyright: ignore[reportArgumentType]


def test_in_a_collection_metrics_that_read_labels_differently_stay_apart():
    """After a first batch without ignored voxels their sums are equal, and torchmetrics shares equal states."""
    logits, labels = batch()
    clean = labels.clone()
    clean[labels == 255] = 0
    options = {
        "plain": {"ignore_index": 255},
        "other": {"ignore_index": 2},
        "max": {"ignore_index": 255, "norm": "max"},
    }
    made = {name: CalibrationError(3, kind="logits", **chosen) for name, chosen in options.items()}
    collection = MetricCollection(dict(made))
    first = clean.clamp(max=1)
    second = clean.clone()
    alone = {name: CalibrationError(3, kind="logits", **chosen) for name, chosen in options.items()}
    for target in (first, second):
        collection.update(logits, target)
        for metric in alone.values():
            metric.update(logits, target)
    assert {name: value.item() for name, value in collection.compute().items()} == {
        name: metric.compute().item() for name, metric in alone.items()
    }
    assert sorted(map(sorted, collection.compute_groups.values())) == [
        ["max", "plain"],
        ["other"],
    ]  # shares what it may


def test_states_are_integers_of_a_fixed_size_that_survive_half_and_reset(tmp_path):
    metric, again = (CalibrationError(3, ignore_index=255, kind="logits") for _ in range(2))
    sizes = [state.shape for state in metric.metric_state.values()]
    metric.half()
    metric.update(*batch())
    metric.update(*batch(1))
    assert {state.dtype for state in metric.metric_state.values()} == {torch.int64}
    assert [state.shape for state in metric.metric_state.values()] == sizes
    metric.persistent(True)
    again.persistent(True)
    again.load_state_dict(metric.state_dict())
    assert again.compute() == metric.compute()
    metric.reset()
    assert not metric.count.any()


def test_it_draws_itself():
    pytest.importorskip("matplotlib").use("Agg")
    metric = CalibrationError(3, ignore_index=255, kind="logits")
    values = [metric(*batch(seed)) for seed in range(2)]
    figure, axes = metric.plot(values)
    assert axes.get_ylim()[0] <= 0
    figure.clf()
