"""A network with its calibrator as a module that exports with free sizes, and a module as a checked ONNX file."""

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibseg import __version__
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.data.slices import Size
from calibseg.integrations.hosts import missing
from calibseg.networks import Network

OPSET = 18
CLOSE = 1e-4  # more than that apart from torch is no rounding; usual are 1e-7 to 1e-6


class FramedNetwork(nn.Module):
    """Logits of slices of any size: padded by 0 to the training frame, then as the network itself pads, and cropped.

    Padding is a gather and a mask: what a size of the input says is then a number in the graph, and no branch.
    """

    def __init__(self, network: nn.Module, frame: Size) -> None:
        super().__init__()
        self.network, self.frame = network, frame
        self.multiple = network.multiple if isinstance(network, Network) else (1, 1)
        smallest = all(size <= step for size, step in zip(frame, self.multiple, strict=True))
        if isinstance(network, Network) and network.positions > 1 and smallest:  # which it pads in a way of its own
            raise BadInput(f"the network's slices of {list(frame)} are too small to be exported with free sizes")

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        for axis, low, step in zip((2, 3), self.frame, self.multiple, strict=True):
            image = _padded(image, axis, low, step)
        logits = self.network.segment(image) if isinstance(self.network, Network) else self.network(image)
        return logits[:, :, :height, :width]


def _padded(image: Tensor, axis: int, low: int, step: int) -> Tensor:
    """An axis of at least `low`, a multiple of `step`: zeros where it is shorter than `low`, else its end repeated."""
    size = image.shape[axis]
    index = torch.arange((torch.sym_max(size, low) + step - 1) // step * step, device=image.device)
    inside = index.clamp(max=size - 1)
    kept = (index < size) | (inside[-1] + 1 >= low)
    return image.index_select(axis, inside) * kept.to(image.dtype).view([-1 if a == axis else 1 for a in range(4)])


class CalibratedNetwork(nn.Module):
    """image [slices c height width] -> probabilities. A calibrator of whole cases sees the slices as one volume.

    axis: of that volume's three, the one that slices are stacked along
    """

    def __init__(
        self, network: FramedNetwork, calibrator: nn.Module | None, whole: bool, uses_image: bool, axis: int = 0
    ) -> None:
        super().__init__()
        self.network, self.calibrator, self.whole, self.uses_image = network, calibrator, whole, uses_image
        self.axis = axis

    def forward(self, image: Tensor) -> Tensor:
        logits = self.network(image)
        if self.calibrator is None:
            return torch.softmax(logits, 1)
        seen = (logits, image) if self.uses_image else (logits,)
        if not self.whole:
            return self.calibrator(*seen)
        volumes = (part.transpose(0, 1).movedim(1, 1 + self.axis).unsqueeze(0) for part in seen)
        return self.calibrator(*volumes)[0].movedim(1 + self.axis, 1).transpose(0, 1)


@dataclass(frozen=True)
class Graph:
    """A module, its inputs by name with their free axes (axis: name, least size), and what is said about it."""

    module: nn.Module
    inputs: dict[str, dict[int, tuple[str, int]]]
    metadata: Mapping[str, Any]

    @property
    def texts(self) -> dict[str, str]:
        """Metadata as ONNX has it: texts, of which all but texts are JSON."""
        texts = {"calibseg": __version__, **self.metadata}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in texts.items()}

    def write(
        self,
        made_at: Sequence[tuple[int, ...]],
        tried_at: Sequence[tuple[int, ...]],
        output: Path,
        kind: str = "logits",
    ) -> float:
        """Export at some shapes of the inputs, compare at others, write; return the largest difference."""
        try:
            import onnx
            import onnxruntime
            import onnxscript  # noqa: F401 what torch exports with
        except ImportError as error:
            raise missing("onnx", error) from error
        dims: dict[str, Any] = {}
        for free in self.inputs.values():
            for name, low in free.values():
                dims.setdefault(name, torch.export.Dim(name, min=low))
        shapes = tuple({axis: dims[name] for axis, (name, _) in free.items()} for free in self.inputs.values())
        options = {"input_names": list(self.inputs), "output_names": ["probabilities"], "opset_version": OPSET}
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                self.module.eval(),
                _example(made_at, kind),
                dynamo=True,
                dynamic_shapes=shapes,
                verbose=False,
                **options,
            )
        assert program is not None
        proto = program.model_proto
        onnx.helper.set_model_props(proto, self.texts)
        content = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        given = _example(tried_at, kind)
        answered = session.run(None, {name: one.numpy() for name, one in zip(self.inputs, given, strict=True)})[0]
        with torch.no_grad():
            apart = np.abs(np.asarray(answered) - self.module(*given).numpy())
        difference = float(apart.max())
        # not all: histogram and isotonic are steps, see calibrators.fitted.module
        if not (apart.max(1) <= CLOSE).mean() >= 0.999:
            raise BadInput(f"{output}: onnxruntime and torch differ by {difference:.2g}; the graph is not written")
        with files.atomic_write(output) as temporary:
            temporary.write_bytes(content)
        return difference


def _example(shapes: Sequence[tuple[int, ...]], kind: str) -> tuple[Tensor, ...]:
    """Random inputs: images in [0, 1] are as good as any logits; scores of a calibrator are of its kind."""
    generator = torch.Generator().manual_seed(0)
    scores, *others = (torch.rand(*shape, generator=generator) for shape in shapes)
    if kind != "logits":
        scores = (4 * scores).log_softmax(1)
        scores = scores.exp() if kind == "probabilities" else scores
    return (scores, *others)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says about its own deprecations and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
