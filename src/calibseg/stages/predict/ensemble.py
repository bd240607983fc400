"""The networks of one or several runs as an ensemble."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibseg.core.types import BadInput
from calibseg.data.slices import Size, SliceSource
from calibseg.runs import folders
from calibseg.runs.checkpoint import load_network
from calibseg.runs.info import RunInfo, read_run
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.predict.slice_inference import slice_scores


@dataclass(frozen=True)
class Ensemble:
    """Networks that may be asked together, because they were trained on the same classes and the same preparation."""

    networks: tuple[nn.Module, ...]
    infos: tuple[RunInfo, ...]  # of each run
    weights: str  # fingerprint of all weights
    device: str
    batch_size: int

    @classmethod
    def of(cls, runs: Sequence[Path], device: str, batch_size: int) -> "Ensemble":
        if not runs:
            raise BadInput("name at least one run folder")
        device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        infos = [read_run(run) for run in runs]
        for run, info in zip(runs, infos, strict=True):
            for name in ("classes", "channels", "regions", "protocol"):
                value, first = (_listed(getattr(i, name)) for i in (info, infos[0]))
                if value != first:
                    raise BadInput(
                        f"{run}: its {name} are {value}, those of {runs[0]} are {first}; "
                        "networks are averaged only where they see and say the same"
                    )
        try:
            networks = tuple(load_network(run, device) for run in runs)
        except (RuntimeError, AssertionError) as error:  # torch has no such device
            raise BadInput(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
        return cls(networks, tuple(infos), folders.weights_fingerprint(runs), device, batch_size)

    @property
    def info(self) -> RunInfo:
        """The first run's record: in classes, channels, regions and preprocessing all runs are the same."""
        return self.infos[0]

    @property
    def regions(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(ids) for name, ids in self.info.regions.items()}

    @property
    def frame(self) -> Size:
        """The size of slice that the networks learnt on."""
        heights, widths = zip(*(info.frame for info in self.infos), strict=True)
        return max(heights), max(widths)

    def cases(self, subset: str) -> list[str]:
        """The ids of one subset of the split, on which all runs must agree: else one was trained on another's test."""
        ids = self.info.cases(subset)
        if not ids:
            raise BadInput(f"the split of {self.info.slug} has no {subset} cases")
        for info in self.infos:
            if info.cases(subset) != ids:
                raise BadInput(
                    f"{info.slug} and {self.info.slug} have other {subset} cases; "
                    "networks are averaged on cases that none of them was trained on"
                )
        return ids

    def scores(self, case: SliceSource, inference: InferenceOptions) -> Iterator[Tensor]:
        """[n k h w], batch after batch."""
        return slice_scores(self.networks, case, inference, self.frame, self.batch_size, self.device)

    def provenance(self, inference: InferenceOptions) -> dict[str, Any]:
        """Which runs and weights made a prediction, and with which options."""
        return {"runs": [info.slug for info in self.infos], "weights": self.weights, **asdict(inference)}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
