"""On what a network is trained: the options of `calibseg train` and `calibseg benchmark`. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Literal

from calibseg.core.flag import Flag


@dataclass(frozen=True)
class Hardware:
    """The device, and how many processes share one training."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Flag("of training; auto: a GPU where there is one")] = "auto"
    devices: Annotated[int, Flag("processes of one training on each machine: GPUs, or CPU processes", minimum=1)] = 1
    nodes: Annotated[int, Flag("machines of one training", minimum=1)] = 1

    @property
    def processes(self) -> int:
        return self.devices * self.nodes
