"""CRaC's multipliers: what one epoch does to them, by hand; and that neither batches nor ranks change the result."""

import multiprocessing
import os
import socket
import warnings

import pytest
import torch
import torch.nn.functional as F

from calibseg.core.types import BadInput
from calibseg.losses import CRaC

CLASSES = 3


def constraint(labels: torch.Tensor, logits: torch.Tensor, inner_scale: float = 5.0):
    """h and the region masks by unfold, independently of the library."""
    padded = F.pad(labels.unsqueeze(1).double(), (1, 1, 1, 1), mode="replicate")
    window = F.unfold(padded, 3).view(len(labels), 9, *labels.shape[1:])
    tau = torch.stack([(window == k).double().mean(1) for k in range(CLASSES)], 1)
    outer = (window.amax(1) != window.amin(1)).unsqueeze(1)
    return (torch.where(outer, tau, inner_scale * tau) - logits).abs(), [~outer, outer]


@pytest.mark.filterwarnings("ignore:crac")
def test_an_epoch_adds_rho_times_the_mean_constraint_over_all_voxels(batch):
    """As h >= 0, the released update is lambda <- lambda + rho mean(h on the region, 0 elsewhere)."""
    logits, labels = batch(CLASSES)
    loss = CRaC(schedule="released").setup(CLASSES)
    h, regions = constraint(labels, logits)
    loss.observe(logits, labels)
    loss.end_epoch()
    for r, region in enumerate(regions):
        expected = 1e-6 + 0.1 * (h * region).mean((0, 2, 3))
        torch.testing.assert_close(loss.lambdas[:, r].double(), expected, rtol=1e-6, atol=1e-8)
    assert (loss.rhos == 0.1).all()


@pytest.mark.filterwarnings("ignore:crac")
def test_averaging_over_the_region_divides_by_its_own_voxels(batch):
    logits, labels = batch(CLASSES)
    loss = CRaC(schedule="released", average="region", inner_scale=1.0).setup(CLASSES)
    h, regions = constraint(labels, logits, inner_scale=1.0)
    loss.observe(logits, labels)
    loss.end_epoch()
    for r, region in enumerate(regions):
        expected = 1e-6 + 0.1 * (h * region).sum((0, 2, 3)) / region.sum()
        torch.testing.assert_close(loss.lambdas[:, r].double(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore:crac")
def test_rho_grows_every_tenth_epoch_where_the_constraint_does_not_shrink(batch):
    logits, labels = batch(CLASSES)
    loss = CRaC(schedule="released").setup(CLASSES)
    for epoch in range(20):
        scale = 1.0 if epoch < 10 else 0.5**epoch  # afterwards logits shrink, and with them what is above tau
        loss.observe(logits * scale, labels)
        loss.end_epoch()
        if epoch < 9:
            assert (loss.rhos == 0.1).all()
        if epoch == 9:
            torch.testing.assert_close(loss.rhos, torch.full((CLASSES, 2), 0.12))
    assert (loss.rhos >= 0.12 - 1e-7).all()
    assert (loss.rhos <= 0.144 + 1e-7).all()


@pytest.mark.filterwarnings("ignore:crac")
def test_with_a_tolerance_multipliers_fall_again_and_without_it_they_never_do(batch):
    logits, labels = batch(CLASSES)
    for tolerance, falls in ((0.0, False), (1.0, True)):
        loss = CRaC(schedule="released", tolerance=tolerance, inner_scale=1.0, rho=1.0, average="region").setup(CLASSES)
        loss.observe(logits * 10, labels)
        loss.end_epoch()
        after_violation = loss.lambdas.clone()
        loss.observe(torch.full_like(logits, 0.5), labels)  # within 1 of every tau in [0, 1]
        loss.end_epoch()
        assert bool((loss.lambdas < after_violation).all()) is falls


@pytest.mark.filterwarnings("ignore:crac")
def test_a_signed_residual_is_satisfied_by_any_large_logit(batch):
    """tau - l <= 0 does not restrain confidence: no penalty slope where every logit exceeds its target."""
    logits, labels = batch(CLASSES)
    loss = CRaC(schedule="released", residual="signed").setup(CLASSES)
    high = (logits.abs() + 50).requires_grad_()
    loss.terms(high, labels)["penalty"].backward()
    assert torch.count_nonzero(high.grad) == 0


@pytest.mark.filterwarnings("ignore:crac")
def test_batches_of_any_size_and_order_give_the_same_multipliers_bit_for_bit(batch):
    logits, labels = batch(CLASSES, n=6, dtype=torch.float32)
    tables = []
    for order in ([range(6)], [[5, 0], [3], [1, 2, 4]]):
        loss = CRaC(schedule="released").setup(CLASSES)
        for part in order:
            loss.observe(logits[list(part)], labels[list(part)])
        loss.end_epoch()
        tables.append(loss.state_dict())
    assert all(torch.equal(tables[0][key], tables[1][key]) or key.endswith("previous") for key in tables[0])


@pytest.mark.filterwarnings("ignore:crac")
def test_resuming_continues_as_if_nothing_had_happened(batch):
    logits, labels = batch(CLASSES)
    straight, stopped = (
        CRaC(schedule="released", rho_every=2).setup(CLASSES),
        CRaC(schedule="released", rho_every=2).setup(CLASSES),
    )
    for loss in (straight, stopped):
        for _ in range(3):
            loss.observe(logits, labels)
            loss.end_epoch()
    resumed = CRaC(schedule="released", rho_every=2).setup(CLASSES)
    resumed.load_state_dict(stopped.state_dict())
    for loss in (straight, resumed):
        loss.observe(logits * 0.9, labels)
        loss.end_epoch()
    for key, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


def test_the_log_holds_lambda_rho_and_the_interior_confidence_and_warns_when_it_sinks(batch):
    _, labels = batch(CLASSES)
    logits = F.one_hot(labels, CLASSES).movedim(-1, 1).double()  # right everywhere, but only e / (e + 2) sure
    loss = CRaC(schedule="released").setup(CLASSES)
    loss.observe(logits, labels)
    with pytest.warns(UserWarning, match="mean confidence 0.576 is below the accuracy 1.000"):
        log = loss.end_epoch()
    assert log["interior_confidence"] == pytest.approx(2.718281828 / 4.718281828, abs=1e-6)
    assert log["interior_accuracy"] == 1
    assert {"lambda_inner_0", "lambda_outer_2", "rho_inner_1"} <= set(log)


def test_using_it_without_setup_or_validation_says_what_to_do(batch):
    logits, labels = batch(CLASSES)
    with pytest.raises(BadInput, match=r"call loss.setup\(num_classes\) before using it"):
        CRaC()(logits, labels)
    with pytest.raises(BadInput, match=r"call observe\(\) before end_epoch\(\)"):
        CRaC().setup(CLASSES).end_epoch()


@pytest.mark.parametrize("option", [{"penalty": "relu"}, {"rho": 0.0}, {"gamma": 0.5}, {"average": "pixel"}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(BadInput, match=next(iter(option))):
        CRaC(**option)


def _rank(rank: int, port: int, logits: torch.Tensor, labels: torch.Tensor, results) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    loss = CRaC(schedule="released").setup(CLASSES)
    loss.observe(logits[rank::2], labels[rank::2])
    loss.end_epoch()
    results.put((rank, loss.lambdas.tolist(), loss.rhos.tolist()))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:crac")
def test_two_ranks_hold_the_multipliers_of_one_process(batch):
    logits, labels = batch(CLASSES, n=5, dtype=torch.float32)
    alone = CRaC(schedule="released").setup(CLASSES)
    alone.observe(logits, labels)
    alone.end_epoch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    workers = [context.Process(target=_rank, args=(r, port, logits, labels, results)) for r in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    for _ in workers:
        _, lambdas, rhos = results.get()
        assert lambdas == alone.lambdas.tolist()
        assert rhos == alone.rhos.tolist()


@pytest.mark.filterwarnings("ignore:crac")
def test_a_short_epoch_moves_lambda_by_its_share_of_the_steps(batch):
    """20 of 80 steps: a quarter of the released update; steps without gradients or in evaluation count for nothing."""
    logits, labels = batch(CLASSES)
    released, ours = CRaC(schedule="released").setup(CLASSES), CRaC(update_steps=80).setup(CLASSES)
    for _ in range(20):
        ours(logits.requires_grad_(), labels)
    with torch.no_grad():
        ours(logits, labels)
    ours.eval()(logits, labels)
    for loss in (released, ours):
        loss.observe(logits, labels)
        loss.end_epoch()
    expected = 1e-6 + (released.lambdas.double() - 1e-6) / 4
    torch.testing.assert_close(ours.lambdas.double(), expected, rtol=1e-5, atol=1e-9)
    assert (ours.train().multipliers.steps, ours.multipliers.done) == (0, 20)


@pytest.mark.filterwarnings("ignore:crac")
def test_an_epoch_of_enough_steps_is_the_released_update_and_rho_waits_for_as_many_steps(batch):
    logits, labels = batch(CLASSES)
    released = CRaC(schedule="released", rho_every=2).setup(CLASSES)
    ours = CRaC(update_steps=3, rho_every=2).setup(CLASSES)
    half = CRaC(update_steps=6, rho_every=2).setup(CLASSES)
    for epoch in range(4):
        for loss in (released, ours, half):
            for _ in range(3):
                loss(logits.requires_grad_(), labels)
            loss.observe(logits, labels)
            loss.end_epoch()
        assert torch.equal(released.lambdas, ours.lambdas)
        assert torch.equal(released.rhos, ours.rhos)
        assert bool((half.rhos > 0.1).any()) is (epoch == 3)


def test_a_class_that_is_lost_while_its_multipliers_grow_is_told(batch):
    _, labels = batch(CLASSES)
    sure = F.one_hot(labels, CLASSES).movedim(-1, 1) * 8.0
    without = sure.clone()
    without[:, 1] = -8.0
    loss = CRaC(schedule="released").setup(CLASSES)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seen in (sure, without):
            loss.observe(seen, labels)
            loss.end_epoch()
    lost = [str(one.message) for one in said if "is being lost" in str(one.message)]
    assert len(lost) == 1
    assert lost[0].startswith("crac: class 1 is being lost: its validation DSC fell to 0.000")
