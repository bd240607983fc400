"""The state of a training run as plain tensors and JSON, and back, bit for bit.

A state holds the network, the optimiser's moments, the loss's buffers (multipliers), the random number generators of
every process, and where in which epoch the run stands. The learning rate and the order of slices follow from the
epoch and need not be kept. Values are copied into tensors that exist already, or that are laid out like their
parameter: another memory layout would take other vector instructions and change last bits.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy import ndarray as Array
from torch import Tensor, nn
from torch.optim import Optimizer

from calibseg.core import files, registry
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.info import read_run


@dataclass
class Position:
    """Where a run stands: batches of an epoch that are done, and what was seen until then."""

    epoch: int = 0
    batch: int = 0
    slices: int = 0  # that this process has seen in the running epoch
    sums: dict[str, Any] = field(default_factory=dict)  # of the terms over these slices
    history: list[dict[str, Any]] = field(default_factory=list)  # the log's rows
    best: float | None = None  # what was best on validation, and when
    best_epoch: int | None = None
    seconds: float = 0.0  # wall time, earlier sessions included
    precision: dict[str, Any] = field(default_factory=dict)  # the loss scaling of 16-mixed
    world: int = 1


def save_state(
    path: Path, network: nn.Module, optimiser: Optimizer, loss: nn.Module, per_process: dict[str, Tensor], at: Position
) -> None:
    """Write everything that a resume needs; the file is the old one or the new one, never half of it.

    per_process: what each process has of its own, [processes ...]: its generators, its sums of terms.
    """
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
    for number, parameter in enumerate(_parameters(optimiser)):
        for name, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
    tensors |= {f"own.{name}": value for name, value in per_process.items()}
    files.write_tensors(path, "state", {name: _array(value) for name, value in tensors.items()}, asdict(at))


def load_state(
    path: Path, network: nn.Module, optimiser: Optimizer, loss: nn.Module
) -> tuple[dict[str, Tensor], Position]:
    """Put a state back; return what each process has of its own, and the position."""
    arrays, position = files.read_tensors(path, "state")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    load_named(network, files.under("network.", tensors), path)
    load_named(loss, files.under("loss.", tensors), path)
    moments = files.under("optimiser.", tensors)
    for number, parameter in enumerate(_parameters(optimiser)):
        for name, value in files.under(f"{number}.", moments).items():
            like = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
            optimiser.state[parameter][name] = like.copy_(value)
    return files.under("own.", tensors), Position(**position)


def save_weights(path: Path, network: nn.Module, metadata: dict[str, Any]) -> None:
    """Write a network's parameters and buffers."""
    arrays = {name: _array(value) for name, value in network.state_dict().items()}
    files.write_tensors(path, "weights", arrays, metadata)


def load_network(run: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """The network of a run folder with its chosen weights, ready to predict: image [n c h w] -> logits [n k h w]."""
    folder = folders.RunFolder(Path(run))
    info = read_run(run)
    if not folder.weights.is_file():
        raise BadInput(f"{run}: has no weights yet ({folder.weights.name} is missing); train at least one epoch")
    network = build_network(
        info.table("network") | {"name": info.network}, info.channels, info.classes, trained_by=folder.info
    )
    arrays, _ = files.read_tensors(folder.weights, "weights")
    load_named(network, {name: torch.from_numpy(array) for name, array in arrays.items()}, folder.weights)
    return network.eval().to(device)


def build_network(
    table: dict[str, Any], channels: Sequence[str], classes: Sequence[str], trained_by: Path | None = None
) -> nn.Module:
    """The network that a recipe's table asks for; a trained one (of this run.json) needs no weights to start from."""
    options = {name: value for name, value in table.items() if name != "name"}
    if trained_by:
        start_only = getattr(registry.load("networks", table["name"], trained_by), "only_to_start", ())
        options = {name: value for name, value in options.items() if name not in start_only}
    sizes = {"in_channels": len(channels), "num_classes": len(classes)}
    return registry.build("networks", table["name"], sizes | options, trained_by)


def load_named(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into a module by name; one missing, unexpected or of another shape is refused."""
    try:
        module.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{path}: does not belong to this {type(module).__name__}: {reason}") from error


def random_state(device: torch.device) -> Tensor:
    """This process's generators: the CPU's, then the GPU's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Put back what `random_state` gave; one that was saved on the CPU knows nothing of a GPU's generator."""
    length = len(torch.get_rng_state())
    torch.set_rng_state(state[:length].clone())  # torch reads it as a struct: it must begin at an aligned address
    if device.type == "cuda" and len(state) > length:
        torch.cuda.set_rng_state(state[length:].clone(), device)


def _parameters(optimiser: Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _array(value: Tensor) -> Array:
    return value.detach().cpu().contiguous().numpy()
