"""Sums over the processes of a distributed (DDP) run; in a single process nothing is done."""

from typing import Any

import torch
from torch import Tensor


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def reduce_sum(*totals: Tensor, group: Any = None) -> None:
    """Add totals over all processes, in place. Integers are exact, and equal everywhere."""
    if is_distributed():
        needs_gpu = torch.distributed.get_backend(group) == "nccl"
        for total in totals:
            on_device = total.cuda() if needs_gpu else total
            torch.distributed.all_reduce(on_device, group=group)
            if on_device is not total:
                total.copy_(on_device)
