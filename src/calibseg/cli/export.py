"""The command that writes ONNX files. Heavy imports stay inside the function."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs
from calibseg.cli.screen import print_line
from calibseg.cli.shared_options import ChosenCalibrator

app = Verbs()


@app.command(
    epilog="Examples:  calibseg export runs/a -o model.onnx  ·  "
    "calibseg export runs/a --calibrator none -o plain.onnx  ·  "
    "calibseg export runs/a/calibrators/temperature -o temperature.onnx"
)
def export(
    source: Annotated[Path, typer.Argument(help="a run folder, or the folder of a fitted calibrator alone")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the file to write: NAME.onnx")],
    calibrator: ChosenCalibrator = None,
    spacing_mm: Annotated[
        tuple[float, float, float] | None,
        typer.Option(help="z y x of every case, for a calibrator that measures distances"),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=2, max=3, help="of the cases of a calibrator alone; default: 3")
    ] = None,
) -> None:
    """Write a network with its calibrator, or a calibrator alone, as one ONNX file with free sizes (extra: onnx)."""
    from calibseg.integrations.onnx import export as run

    result = run(source, output, calibrator=calibrator, spacing_mm=spacing_mm, dimensions=dimensions)
    print_line(f"calibrator: {escape(result.calibrator)} ({escape(result.why)})")
    size = f"{result.path.stat().st_size / 1e6:.1f} MB"
    check = f"onnxruntime and torch differ by at most {result.difference:.1g}"
    print_line(f"wrote {escape(str(result.path))}: {size}, {check}")
