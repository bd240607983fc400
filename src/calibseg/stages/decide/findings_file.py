"""What a pass over a case found, kept in a file while a call is not finished: an interrupted one goes on from there."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.decisions.maths.findings import Counts, Findings
from calibseg.metrics.statistics.surface_distances import Distances

KIND = "findings"
ARRAYS = {"in_truth": Counts, "in_rest": Counts, "outward": Distances, "inward": Distances}


def save_findings(path: Path, findings: Mapping[str, Findings]) -> None:
    """Numbers as JSON, arrays beside them, in one safetensors file."""
    arrays, about = {}, {}
    for number, (name, one) in enumerate(findings.items()):
        about[name] = {item.name: getattr(one, item.name) for item in fields(one) if item.name not in ARRAYS}
        for part in ARRAYS:
            held = getattr(one, part)
            if held is not None:
                first, second = (held.cells, held.counts) if isinstance(held, Counts) else (held.values, held.counts)
                arrays[f"{number}.{part}.0"], arrays[f"{number}.{part}.1"] = first, second
    arrays["none"] = np.zeros(1)
    files.write_tensors(path, KIND, arrays, about)


def load_findings(path: Path) -> dict[str, Findings] | None:
    """What was saved; None where the file is not what it should be: the case is then read again."""
    try:
        arrays, about = files.read_tensors(path, KIND)
        findings = {}
        for number, (name, numbers) in enumerate(about.items()):
            held = {
                part: made(arrays[f"{number}.{part}.0"], arrays[f"{number}.{part}.1"])
                for part, made in ARRAYS.items()
                if f"{number}.{part}.0" in arrays
            }
            findings[name] = Findings(**numbers, **held)
    except (BadInput, KeyError, TypeError):
        return None
    return findings
