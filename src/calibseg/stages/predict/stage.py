"""The stage that predicts: inference of trained networks on prepared cases (`cases`) or on a raw scan (`scan`)."""

from collections.abc import Sequence
from pathlib import Path

from calibseg.core.types import BadInput, Progress
from calibseg.runs import folders
from calibseg.runs.info import prepared_dir
from calibseg.stages.predict.cases import Subset, predict_cases
from calibseg.stages.predict.ensemble import Ensemble
from calibseg.stages.predict.options import InferenceOptions, MapOptions
from calibseg.stages.predict.result import Predicted
from calibseg.stages.predict.scan import Scan, predict_scan, scan_calibrator, scan_files


def predict(
    runs: str | Path | Sequence[str | Path],
    *,
    subset: Subset | None = None,
    input: Scan | None = None,
    output: str | Path | None = None,
    work: str | Path | None = None,
    calibrator: str | None = None,
    inference: InferenceOptions = InferenceOptions(),
    also: MapOptions = MapOptions(),
    batch_size: int = 16,
    device: str = "auto",
    progress: Progress = lambda done, total, id: None,
) -> Predicted:
    """Predict the cases of one subset of the split, or one scan. Several runs are averaged.

    output: default for cases: RUN/logits/SUBSET; for a scan: RUN/scans
    also: what is written of a scan beside its maps
    work: the folder of prepared cases; default: as in training
    calibrator: for a scan, one of RUN/calibrators, `chosen` or `none`; default: the chosen one where there is one
    """
    if (subset is None) == (input is None):
        raise BadInput("say what to predict: either the cases of a subset of the split, or a scan as input")
    if batch_size < 1:
        raise BadInput(f"batch_size = {batch_size} must be at least 1")
    run_paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if len({path.resolve() for path in run_paths}) < len(run_paths):
        raise BadInput(f"a run is named twice among {', '.join(map(str, run_paths))}: it would count double")
    ensemble = Ensemble.of(run_paths, device, batch_size)
    if input is not None:
        if inference.noise:
            raise BadInput("noise is for cases of the split: a scan is predicted as it is")
        if output is None and len(run_paths) > 1:
            raise BadInput(f"{len(run_paths)} runs are averaged: say where the maps of the scan go with --output DIR")
        to = folders.RunFolder(run_paths[0]).scans if output is None else Path(output)
        selected = scan_calibrator(run_paths, ensemble, inference, calibrator)
        return predict_scan(ensemble, inference, scan_files(input, ensemble.info.channels), to, selected, also)
    if calibrator not in (None, "none"):
        raise BadInput(
            "logits of cases are stored as the network gives them: calibrate them with   calibseg score RUN"
            f" --calibrator {calibrator}"
        )
    assert subset is not None
    if output is None:
        if len(run_paths) > 1:
            raise BadInput(f"{len(run_paths)} runs are averaged: say where their logits go with --output DIR")
        output = folders.RunFolder(run_paths[0]).logits / inference.folder(subset)
    return predict_cases(ensemble, inference, subset, Path(output), prepared_dir(run_paths[0], work), progress)
