"""The trainers' mixin over two processes: multipliers as one process learns them, to the last bit."""

import warnings

import torch
import torch.multiprocessing

from support.nnunet_host import made_batches, made_trainer


def learnt(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Two validation epochs on every step-th batch."""
    trainer = made_trainer("crac", options={"schedule": "released", "rho_every": 1}, ignore_label=3)
    trainer.local_rank = 1  # writes no file
    trainer.initialize()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            trainer.on_validation_epoch_start()
            for batch in made_batches(number=5, ignored=3)[rank::step]:
                trainer.validation_step(*batch)
            trainer.on_validation_epoch_end([])
    return trainer.loss.loss.state_dict()


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(learnt(rank, 2), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_learn_the_multipliers_of_one(tmp_path):
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    alone = learnt(0, 1)
    assert (alone["multipliers.lambdas"] > 1e-6).any()
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in alone.items():
            assert torch.equal(found[name], value), name
