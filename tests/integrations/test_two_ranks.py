"""The metrics of torchmetrics and MONAI over two processes: what one process says, whoever has more cases."""

import pytest
import torch
import torch.multiprocessing

pytest.importorskip("torchmetrics")
CASES = 5


def cases() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(CASES, 3, 10, 12, generator=generator), torch.randint(
        0, 3, (CASES, 10, 12), generator=generator
    )


def answers(rank: int, step: int) -> dict[str, torch.Tensor]:
    from calibseg.integrations.monai import CalibrationMetric
    from calibseg.integrations.torchmetrics import CalibrationError

    logits, labels = cases()
    ours = CalibrationError(3, kind="logits", voxels="predicted")
    monais = CalibrationMetric(kind="logits", voxels="predicted")
    for case in range(rank, CASES, step):
        one = slice(case, case + 1)
        ours.update(logits[one], labels[one])
        monais(logits[one], labels[one].unsqueeze(1))
    return {"torchmetrics": ours.compute(), "monai": monais.aggregate(), "mean": monais.aggregate("mean")}


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(answers(rank, 2), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_say_what_one_says(tmp_path):
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    alone = answers(0, 1)
    assert torch.equal(alone["torchmetrics"], alone["monai"])
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert torch.equal(found["torchmetrics"], alone["torchmetrics"])
        assert torch.equal(found["monai"], alone["monai"])
        assert torch.allclose(found["mean"], alone["mean"])
