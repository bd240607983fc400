"""The metrics of torchmetrics and MONAI over two processes: what one process says, whoever has more cases."""

import pytest
import torch
import torch.multiprocessing

pytest.importorskip("torchmetrics")
CASES = 5


def cases() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(CASES, 1, 3, 10, 12, generator=generator)
    return list(zip(logits, torch.randint(0, 3, (CASES, 1, 10, 12), generator=generator), strict=True))


def of_torchmetrics(rank: int, step: int) -> list[torch.Tensor]:
    from calibseg.integrations.torchmetrics import CalibrationError

    metric = CalibrationError(3, kind="logits", voxels="predicted")
    for logits, labels in cases()[rank::step]:
        metric.update(logits, labels)
    return [metric.compute()]


def of_monai(rank: int, step: int) -> list[torch.Tensor]:
    from calibseg.integrations.monai import CalibrationMetric

    metric = CalibrationMetric(kind="logits", voxels="predicted")
    for logits, labels in cases()[rank::step]:
        metric(logits, labels.unsqueeze(1))
    return [metric.aggregate(), metric.aggregate("mean")]


def of_one_case(rank: int, step: int) -> list[torch.Tensor]:
    """The second of two ranks has nothing to show."""
    from calibseg.integrations.monai import CalibrationMetric

    metric = CalibrationMetric(kind="logits", voxels="predicted")
    for logits, labels in cases()[rank:1:step]:
        metric(logits, labels.unsqueeze(1))
    return [metric.aggregate(), metric.aggregate("mean"), metric.get_buffer()]


def _rank(rank: int, answers, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(answers(rank, 2), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(of_torchmetrics, id="torchmetrics"),
        pytest.param(of_monai, id="monai", marks=pytest.mark.slow),
        pytest.param(of_one_case, id="monai-one-case"),
    ],
)
def test_two_ranks_say_what_one_says(answers, tmp_path):
    torch.multiprocessing.spawn(_rank, (answers, str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        for found, alone in zip(torch.load(tmp_path / f"{rank}.pt", weights_only=True), answers(0, 1), strict=True):
            torch.testing.assert_close(found, alone, rtol=1e-6, atol=0)
