"""Conventions of prediction files that the files do not state: kind, activation, format. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from calibseg.core.flag import Flag
from calibseg.core.types import Activation, FileFormat
from calibseg.io.class_names import ClassNames, find_class_names


@dataclass(frozen=True)
class FileConventions:
    """What the numbers in files of predictions are, how the files are laid out, and whose they are."""

    kind: Annotated[Literal["probabilities", "logits"], Flag("what the numbers are")] = "probabilities"
    activation: Annotated[Activation, Flag("sigmoid: every channel is its own yes-or-no question")] = "softmax"
    file_format: Annotated[FileFormat | None, Flag("default: by what the folder holds", ("--format",))] = None
    patients: Annotated[Path | None, Flag("CSV with the columns case, patient; default: one patient per case")] = None


@dataclass(frozen=True)
class PredictionFolder:
    """A folder of predictions, with its labels and images where there are any.

    images: NIfTI images named like the cases, for calibrators that look at them
    class_names: None: those of the dataset.json in or above the folders
    more: further folders of predictions, of other cases
    raters: folders of label maps by further raters, of the same cases
    members: folders of predictions by the members of an ensemble, of the same cases
    """

    predictions: Path
    labels: Path | None = None
    images: Path | None = None
    files: FileConventions = FileConventions()
    class_names: ClassNames | None = None
    more: tuple[Path, ...] = ()
    raters: tuple[Path, ...] = ()
    members: tuple[Path, ...] = ()

    @property
    def all_predictions(self) -> tuple[Path, ...]:
        return (self.predictions, *self.more)

    def names(self) -> ClassNames:
        """What its classes are called: as stated, or as the dataset.json in or above the folders says."""
        return self.class_names or find_class_names(self.predictions, self.labels or self.predictions)
