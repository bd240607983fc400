"""Options that several commands have, each described once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibseg.report.figure_options import SUBSET

if TYPE_CHECKING:
    from calibseg.io.class_names import ClassNames

TABLED = "dsc,hd95,ece,cece, as far as measured"

Sources = Annotated[
    list[Path] | None, typer.Argument(help="score tables, run folders or a benchmark folder; they are merged")
]
NamedSources = Annotated[
    list[str] | None, typer.Option(help="NAME=SOURCE: a source under a name of your own; repeatable")
]
SubsetOfScores = Annotated[str, typer.Option("--subset", "--cases", help=SUBSET)]
Predictions = Annotated[
    list[Path] | None, typer.Option(help="folder: nnU-Net .npz, 4-D NIfTI, NIfTI per class, or .npz; repeatable")
]
Methods = Annotated[str, typer.Option(help="comma-separated calibrators, see calibseg list calibrators")]
FittedCalibrator = Annotated[
    str, typer.Option(help="of a run: a name, chosen or none; with folders: the folder of a fitted calibrator")
]
ChosenCalibrator = Annotated[
    str | None, typer.Option(help="of a run: a name, chosen, or none; default: the one chosen by calibseg calibrate")
]
PreparedCases = Annotated[Path | None, typer.Option(help="with a run: its prepared cases; default: as in training")]
Images = Annotated[Path | None, typer.Option(help="images of the cases, for a calibrator that looks at them")]
LabelsToApply = Annotated[Path | None, typer.Option(help="labels of the cases to apply to: scores before and after")]
ImagesToApply = Annotated[Path | None, typer.Option(help="images of the cases to apply to, likewise")]
Workers = Annotated[int | None, typer.Option(min=1, help="processes that score; default: by the size of the folder")]


@dataclass(frozen=True)
class ClassOptions:
    """What the user says about label values."""

    classes: Annotated[str | None, typer.Option(help="background,lv,rv; default: the dataset.json's, or numbers")] = (
        None
    )
    regions: Annotated[str | None, typer.Option(help="objects made of classes, like WT=1+2+3,TC=1+3")] = None
    ignore_label: Annotated[int | None, typer.Option(help="a label value whose voxels are ignored")] = None

    def names(self, predictions: Path, labels: Path) -> "ClassNames":
        """The names of classes and regions, those of a dataset.json where the user says nothing."""
        from calibseg.io.class_names import find_class_names, with_overrides

        return with_overrides(find_class_names(predictions, labels), self.classes, self.regions, self.ignore_label)
