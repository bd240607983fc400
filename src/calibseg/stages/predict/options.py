"""The options of inference, of `calibseg predict` and of Python, once."""

from dataclasses import dataclass
from typing import Annotated, Literal

from calibseg.core.coerce import check_fields
from calibseg.core.flag import Flag
from calibseg.runs import folders

Average = Literal["probabilities", "logits"]
Flips = Literal["none", "rows", "columns", "both"]


@dataclass(frozen=True)
class InferenceOptions:
    """What decides the scores: how an ensemble is averaged, test-time augmentation, noise.

    Every field counts in the fingerprint of stored logits (`predict_cases`): a new one makes all of them anew. What
    decides only where or how fast (work, batch_size, device) is an argument of `predict` and stands in cli/road.py.

    average: mean of probabilities, or of logits, where there are several networks or views
    flips: test-time augmentation by mirror images: rows, columns or both
    noise: standard deviation of Gaussian noise on the prepared image, which runs from 0 to 1
    seed: of the noise
    """

    average: Annotated[Average, Flag("what is averaged over runs and mirror images")] = "probabilities"
    flips: Annotated[Flips, Flag("also ask about mirror images; not where left and right are different classes")] = (
        "none"
    )
    noise: Annotated[float, Flag("sigma of Gaussian noise on images in 0..1; with --subset", minimum=0)] = 0.0
    seed: Annotated[int, Flag("of the noise", minimum=0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def folder(self, subset: str) -> str:
        """A name that tells variants of a prediction apart."""
        return folders.predicted_name(subset, self.noise, self.seed, self.flips)


@dataclass(frozen=True)
class MapOptions:
    """What is written of a scan beside its maps.

    per_class: the probability of each class as a file of its own, too
    quick_look: a picture of one slice: image, mask, confidence, where it is uncertain
    """

    per_class: Annotated[bool, Flag("of a scan: a file for each class, too", ("--per-class",))] = False
    quick_look: Annotated[bool, Flag("of a scan: write a picture of one slice", ("--quick-look/--no-quick-look",))] = (
        True
    )
