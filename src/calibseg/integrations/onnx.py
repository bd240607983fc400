"""ONNX: a run's network and its calibrator as one graph, or a calibrator alone; checked before it is written.

    export("runs/a", "model.onnx")                   # image [slices c height width] -> probabilities [slices k ...]
    export("calibrators/temperature", "t.onnx")      # scores [cases k z y x] -> probabilities

Slices, cases and sizes are free. A network's graph pads slices to the frame that it learnt in, and crops again, as
`calibseg predict` does; where a calibrator looks at whole cases (`reach`), the slices of one call are one case. Behind
a sliding window use the calibrator's own graph: calibrated tiles, averaged, are not calibrated averages. The graph does
not contain the preparation of a scan nor the way back to its grid: metadata says what they are, and what was fitted on
what. Every graph is run once by onnxruntime, at a size that it was not made at, and compared with torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibseg.calibrators import Calibrator, load
from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.calibrators.fitted.selected import fitted_with
from calibseg.calibrators.solvers.temperature_tree import HALO
from calibseg.core import files
from calibseg.core.options import one_of
from calibseg.core.types import BadInput
from calibseg.data.preprocessing import AXES, Preprocessing, read_protocol
from calibseg.integrations.onnx_graph import CalibratedNetwork, FramedNetwork, Graph
from calibseg.runs.folders import CalibratorFolder
from calibseg.stages.predict.ensemble import Ensemble
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.predict.scan import scan_calibrator

LEFT_OUT = "preparation of the scan (see preprocessing), sliding windows, resampling back to the scan's grid"


@dataclass(frozen=True)
class Exported:
    """What was written, and how far onnxruntime's probabilities are from torch's."""

    path: Path
    calibrator: str
    why: str
    difference: float
    metadata: dict[str, str]


def export(
    source: str | Path,
    output: str | Path,
    *,
    calibrator: str | None = None,
    spacing_mm: Sequence[float] | None = None,
    dimensions: int | None = None,
) -> Exported:
    """Write a run, or the folder of a fitted calibrator, as one ONNX file.

    calibrator: of a run: one of RUN/calibrators, `chosen` or `none`; default: the chosen one where there is one
    spacing_mm: (z, y, x) of every case, for calibrators that measure distances, where the run's protocol has none
    dimensions: of a calibrator's own graph: cases are volumes (3, the default) or pictures (2)
    """
    source, output = Path(source), Path(output)
    if output.suffix != ".onnx":
        raise BadInput(f"{output}: expected the name of a file that ends with .onnx")
    files.refuse_folder(output)
    above = next(parent for parent in (*output.parents, Path()) if parent.exists())
    if not above.is_dir():
        raise BadInput(f"{output}: cannot be written: {above} is a file")
    if CalibratorFolder(source).info.is_file():
        if calibrator is not None:
            raise BadInput(f"{source}: is a calibrator itself; --calibrator is for a run")
        return _export_calibrator(source, output, spacing_mm, one_of("dimensions", dimensions or 3, (2, 3)))
    if dimensions is not None:
        raise BadInput(
            f"{source}: its network says how many dimensions there are; --dimensions is for a calibrator alone"
        )
    return _export_run(source, output, calibrator, spacing_mm)


def _export_run(run: Path, output: Path, name: str | None, spacing_mm: Sequence[float] | None) -> Exported:
    ensemble = Ensemble.of([run], "cpu", 1)
    selected = scan_calibrator([run], ensemble, InferenceOptions(), name)
    info, fitted = ensemble.info, None if selected.folder is None else load(selected.folder)
    protocol = read_protocol("the run's protocol: ", info.protocol)
    _refuse_unused(spacing_mm, selected.name, fitted)
    spacing = None if fitted is None else _slices_spacing(fitted, protocol, spacing_mm)
    module = CalibratedNetwork(
        FramedNetwork(ensemble.networks[0], ensemble.frame),
        None if fitted is None else fitted.as_module(kind="logits", spacing_mm=spacing),
        fitted is not None and fitted.reach == "volume",
        fitted is not None and _sees_image(fitted),
        _stacked_along(fitted, protocol),
    )
    whole = fitted is not None and fitted.reach == "volume"
    metadata = {
        "run": info.slug,
        "weights": ensemble.weights,
        "network": info.network,
        "classes": list(info.classes),
        "regions": {name: list(ids) for name, ids in ensemble.regions.items()},
        "channels": list(info.channels),
        "preprocessing": info.protocol,
        "frame": list(ensemble.frame),
        "input": f"image [slices, {len(info.channels)}, height, width], prepared"
        + (": all slices of one case, in order" if whole else ""),
        "output": "probabilities [slices, classes, height, width]",
        "calibrator": selected.name,
        "calibrator_because": selected.why,
        "not_contained": LEFT_OUT,
        **fitted_with(info.recipe, selected),
        **({} if spacing is None else {"spacing_mm": [float(step) for step in spacing]}),
        **({} if fitted is None else _told(fitted, selected.about)),
    }
    least = _least(fitted)
    channels, (height, width) = len(info.channels), ensemble.frame
    sizes = {0: ("slices", least[0]), 2: ("height", least[1]), 3: ("width", least[1])}
    made_at = (least[0] + 2, channels, max(height, 8) + 1, max(width, 8))
    tried_at = (least[0] + 1, channels, max(height + 3, least[1]), max(width - 2, least[1]))
    graph = Graph(module, {"image": sizes}, metadata)
    difference = graph.write([made_at], [tried_at], output)
    return Exported(output, selected.name, selected.why, difference, graph.texts)


def _export_calibrator(folder: Path, output: Path, spacing_mm: Sequence[float] | None, dimensions: int) -> Exported:
    fitted, about = load(folder), read_calibrator(folder)
    least, images = _least(fitted), _sees_image(fitted)
    _refuse_unused(spacing_mm, fitted.name, fitted)
    if _in_mm(fitted) and spacing_mm is None:
        raise _no_spacing(fitted.name, "every case")
    if dimensions == 3 and fitted.fitted_on.get("slice_axis", 0) != 0:
        raise BadInput(
            f"{folder}: was fitted on slices that are not axial: say --dimensions 2, and give its graph those"
        )
    module = fitted.as_module(spacing_mm=spacing_mm)
    axes = (("z", least[0]), ("y", least[1]), ("x", least[1]))[3 - dimensions :]
    free: dict[int, tuple[str, int]] = {0: ("cases", 1), **{2 + axis: one for axis, one in enumerate(axes)}}
    inputs = {"scores": free} | ({"image": free} if images else {})
    metadata = {
        "calibrator": fitted.name,
        "input": f"{fitted.kind} [cases, {fitted.classes}, {', '.join(name for name, _ in axes)}]",
        "output": "probabilities, of the same shape",
        **({"spacing_mm": [float(step) for step in spacing_mm]} if spacing_mm else {}),
        **_told(fitted, about),
    }
    made, tried = ([base + number for number in range(dimensions)] for base in (9, 10))
    channels = (fitted.classes, *([fitted.facts["image_channels"]] if images else []))
    graph = Graph(module, inputs, metadata)
    made_at, tried_at = ([(cases, number, *space) for number in channels] for cases, space in ((2, made), (3, tried)))
    difference = graph.write(made_at, tried_at, output, fitted.kind)
    return Exported(output, fitted.name, "asked for", difference, graph.texts)


def _slices_spacing(
    fitted: Calibrator, protocol: Preprocessing, given: Sequence[float] | None
) -> tuple[float, ...] | None:
    """Of prepared cases, slices first, for a calibrator that measures distances in mm."""
    if not _in_mm(fitted):
        return None
    spacing = given or protocol.spacing_mm
    if spacing is None or any(step is None for step in spacing):
        raise _no_spacing(fitted.name, "the run's cases, whose protocol leaves it as it is")
    numbers = [float(step) for step in spacing if step is not None]
    if len(numbers) != 3:
        raise BadInput(f"spacing_mm must be three numbers (z, y, x), not {list(numbers)}")
    axis = AXES.get(protocol.slice_axis, 0)  # of an acquisition's slices, lengths begin with theirs
    return (numbers[axis], *numbers[:axis], *numbers[axis + 1 :])


def _stacked_along(fitted: Calibrator | None, protocol: Preprocessing) -> int:
    """The axis of slices in the volume that a calibrator learnt on; what only measures distances takes any order."""
    if getattr(fitted, "dimensions", 2) == 2:
        return 0
    if protocol.slice_axis not in AXES:
        raise BadInput("a graph cannot know along which axis a case's slices lie: they are those of its acquisition")
    return AXES[protocol.slice_axis]


def _in_mm(fitted: Calibrator | None) -> bool:
    return fitted is not None and fitted.uses_spacing and fitted.fitted_on.get("distances") != "voxels"


def _refuse_unused(spacing_mm: Sequence[float] | None, name: str, fitted: Calibrator | None) -> None:
    if spacing_mm is not None and not _in_mm(fitted):
        raise BadInput(f"the calibrator {name} measures no distances in mm: leave --spacing-mm out")


def _no_spacing(name: str, whose: str) -> BadInput:
    return BadInput(f"{name} measures distances in mm, which a graph must know: say --spacing-mm Z Y X of {whose}")


def _sees_image(fitted: Calibrator) -> bool:
    return fitted.uses_image and bool(fitted.facts.get("image_channels"))


def _least(fitted: Calibrator | None) -> tuple[int, int]:
    """The fewest slices, and the fewest rows and columns: a border is mirrored where there is enough to mirror."""
    if fitted is None or not fitted.uses_image:
        return 1, 1
    return (HALO + 1 if getattr(fitted, "dimensions", 2) == 3 else 1), HALO + 1


def _told(fitted: Calibrator, about: Mapping[str, Any]) -> dict[str, Any]:
    """What was learnt, and on what."""
    facts, _ = fitted.state()
    return {
        "calibrator_learnt": facts,
        "calibrator_fitted_on": about["fitted_on"],
        "calibrator_keeps_labels": fitted.keeps_argmax,
        "reach": fitted.reach,
    }
