"""The monitor for people's own loops, alone and over two ranks."""

import math

import numpy as np
import pytest
import torch
import torch.multiprocessing
from hypothesis import given, settings

from calibseg.core.types import BadInput
from calibseg.metrics import ECE, NLL
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.monitor import CalibrationMonitor
from support.targets import targets


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(6, 3, 10, 12, generator=generator)
    return logits, torch.randint(0, 3, (6, 10, 12), generator=generator)


def test_one_metric_and_one_rule_may_be_given_by_their_names():
    monitor = CalibrationMonitor(2, "brier", "all")
    monitor.update(torch.zeros(1, 2, 3), torch.tensor([[0, 1, 1]]))
    assert monitor.compute() == {"all/brier": 0.5}


def test_it_equals_the_statistics_of_everything_seen_and_forgets_on_reset():
    logits, target = batches()
    monitor = CalibrationMonitor(3, ("ece", "nll"), ("predicted", "all"))
    for part in (slice(0, 1), slice(1, 6)):
        monitor.update(logits[part], target[part])
    whole = calibration_statistics(logits.movedim(1, 0), target, kind="logits")
    assert monitor.compute() == {
        "predicted/ece": ECE().value(whole.on("predicted"))[None],
        "predicted/nll": NLL().value(whole.on("predicted"))[None],
        "all/ece": ECE().value(whole.on("all"))[None],
        "all/nll": NLL().value(whole.on("all"))[None],
    }
    monitor.reset()
    assert np.isnan(monitor.compute()["all/ece"])


def test_merging_monitors_and_saving_their_state_loses_nothing():
    logits, target = batches()
    one, two, all_of_it = (CalibrationMonitor(3) for _ in range(3))
    one.update(logits[:2], target[:2])
    two.update(logits[2:], target[2:])
    all_of_it.update(logits, target)
    restored = CalibrationMonitor(3)
    restored.load_state_dict(two.state_dict())
    assert restored.merge_state([one]).compute() == all_of_it.compute()


def test_numpy_arrays_and_metatensors_give_the_plain_floats_of_tensors():
    logits, target = batches()
    meta = pytest.importorskip("monai.data").MetaTensor
    by_tensor, by_array, by_meta = (CalibrationMonitor(3) for _ in range(3))
    by_tensor.update(logits, target)
    by_array.update(np.moveaxis(logits.numpy(), -1, -2).swapaxes(-1, -2), target.numpy().astype(np.uint8))
    by_meta.update(meta(logits), meta(target))
    assert by_tensor.compute() == by_array.compute() == by_meta.compute()
    assert {type(value) for value in by_meta.compute().values()} == {float}
    assert {type(sums) for sums in by_meta.state_dict().values()} == {np.ndarray}


def test_soft_targets_and_gradients_are_welcome():
    logits, target = batches()
    soft = torch.nn.functional.one_hot(target, 3).movedim(-1, 1).float()
    hard, by_share = CalibrationMonitor(3, ("ece",)), CalibrationMonitor(3, ("ece",))
    hard.update(logits.requires_grad_(), target)
    by_share.update(logits, soft)
    assert by_share.compute() == hard.compute()


def test_what_it_cannot_do_is_refused_at_once():
    with pytest.raises(BadInput, match="'tace' needs equal_mass statistics"):
        CalibrationMonitor(3, ("tace",))
    with pytest.raises(BadInput, match="no voxel rule named 'foreground'"):
        CalibrationMonitor(3, voxels=("foreground",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="are no batch of 4 classes"):
        CalibrationMonitor(4).update(*batches())
    with pytest.raises(BadInput, match=r"target \(\) are no batch of 3 classes"):
        CalibrationMonitor(3).update(batches()[0], torch.tensor(0))
    logits, target = (one.numpy() for one in batches())
    with pytest.raises(BadInput, match="a masked array's mask would be passed over"):
        CalibrationMonitor(3).update(logits, np.ma.masked_equal(target, 0))


def test_a_voxel_in_a_message_has_its_axes_and_its_image():
    logits, target = batches()
    target[4, 7, 11], logits[5, 1, 2, 3] = 3, torch.nan
    with pytest.raises(BadInput, match=r"the label 3 at voxel \(y 7, x 11\) of image 4 of the batch"):
        CalibrationMonitor(3).update(logits[:5], target[:5])
    with pytest.raises(BadInput, match=r"NaN or infinite at voxel \(y 2, x 3\) of image 1 of the batch"):
        CalibrationMonitor(3).update(logits[4:], target[4:].clamp(max=2))


def test_probabilities_are_not_taken_for_logits():
    logits, target = batches()
    with pytest.raises(BadInput, match="are called logits, but all of them lie between 0 and 1 and sum to 1"):
        CalibrationMonitor(3).update(logits.softmax(1), target)
    p = logits.softmax(1)
    p[:, :, 0], target[:, 0] = torch.nan, 255
    with pytest.raises(BadInput, match="are called logits"):
        CalibrationMonitor(3, ignore_label=255).update(p, target)
    with pytest.raises(BadInput, match="NaN or infinite"):
        CalibrationMonitor(3).update(torch.full_like(p, torch.nan), target.clamp(max=2))


@settings(max_examples=150, deadline=None)
@given(made=targets())
def test_a_target_is_refused_or_its_nll_is_that_of_a_loop(made):
    monitor = CalibrationMonitor(made.shape[1], ("nll",), ("all",), ignore_label=made.ignore_index)
    shares = made.shares()
    if shares is None:
        if made.target.dtype == torch.bool:  # truth values are the labels 0 and 1 here; losses refuse them
            return
        with pytest.raises(BadInput):
            monitor.update(made.logits(), made.target)
        return
    monitor.update(made.logits(), made.target)
    rows = made.logits().softmax(1).movedim(1, -1).reshape(-1, made.shape[1]).tolist()
    errors = [
        -sum(q * math.log(p) for q, p in zip(share, row, strict=True))
        for row, share in zip(rows, shares, strict=True)
        if share is not None
    ]
    expected = sum(errors) / len(errors) if errors else np.nan
    assert monitor.compute()["all/nll"] == pytest.approx(expected, abs=2e-3, nan_ok=True)


def test_integers_of_several_channels_are_raters_only_where_one_says_so():
    logits, target = batches()
    one_hot = torch.nn.functional.one_hot(target, 3).movedim(-1, 1)
    for several in (one_hot, one_hot.to(torch.uint8), torch.stack([target, target], 1)):
        with pytest.raises(BadInput, match=r"may be one-hot, or the labels of \d raters: give target.argmax\(1\)"):
            CalibrationMonitor(3).update(logits, several)
    raters, shares = CalibrationMonitor(3, ("nll",)), CalibrationMonitor(3, ("nll",))
    other = target.roll(1, -1)
    raters.update(logits, torch.stack([target, other], 1), raters=True)
    shares.update(logits, (one_hot + torch.nn.functional.one_hot(other, 3).movedim(-1, 1)).double() / 2)
    assert raters.compute() == shares.compute()
    with pytest.raises(BadInput, match="is one-hot, where integers are raters' labels"):
        CalibrationMonitor(3).update(logits, one_hot, raters=True)
    hard, with_channel = CalibrationMonitor(3), CalibrationMonitor(3)
    hard.update(logits, target)
    with_channel.update(logits, target.unsqueeze(1))
    assert with_channel.compute() == hard.compute()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_classes": 1}, "num_classes must be an integer of 2 or more with softmax, not 1"),
        (
            {"num_classes": 0, "activation": "sigmoid"},
            "num_classes must be an integer of 1 or more with sigmoid, not 0",
        ),
        ({"num_classes": 2.5}, "not 2.5"),
        ({"kind": "guess"}, "kind must be one of 'logits'"),
        ({"activation": "relu"}, "activation must be one of 'softmax', 'sigmoid'"),
        ({"metrics": ()}, "would say nothing"),
        ({"voxels": ()}, "would say nothing"),
        ({"ignore_label": "9"}, "ignore_label must be an integer or None, not '9'"),
    ],
)
def test_wrong_options_are_refused_before_the_first_batch(change, complaint):
    with pytest.raises(BadInput, match=complaint):
        CalibrationMonitor(**{"num_classes": 3, **change})


def test_a_list_of_outputs_is_refused_in_a_sentence():
    logits, target = batches()
    with pytest.raises(BadInput, match="scores must be one tensor or array, not a list of 2"):
        CalibrationMonitor(3).update([logits, logits], target)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="scores must be one tensor or array, not a dict of logits"):
        CalibrationMonitor(3).update({"logits": logits}, target)  # pyright: ignore[reportArgumentType]


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    logits, target = batches()
    monitor = CalibrationMonitor(3)
    monitor.update(logits[rank::2], target[rank::2])
    np.savez(f"{folder}/{rank}.npz", **monitor.synced().to_arrays())
    torch.distributed.destroy_process_group()


def test_two_ranks_agree_to_the_last_bit_with_one(tmp_path):
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    alone = CalibrationMonitor(3)
    alone.update(*batches())
    for rank in (0, 1):
        with np.load(tmp_path / f"{rank}.npz", allow_pickle=False) as found:
            for name, array in alone.state_dict().items():
                assert np.array_equal(array, found[name], equal_nan=True), name
