"""What nnU-Net leaves of a training: MODEL/{dataset.json, plans.json, fold_X/{checkpoint_final.pth, validation/}}.

A fold's `validation` holds predictions of cases that its network has not seen; with those of all folds every training
case is there once. They have probabilities where the training ended with `--npz`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core.files import read_json
from calibseg.core.types import Activation, BadInput
from calibseg.io.class_names import ClassNames, find_class_names

ALL = "fold_all"  # trained on every case: what it predicts of them is not out-of-fold
ARGUMENTS = "predict_from_raw_data_args.json"


class _Plans(TypedDict):
    dataset_name: str


class _Dataset(TypedDict):
    labels: dict[str, Any]
    regions_class_order: NotRequired[list[int]]


@dataclass(frozen=True)
class ModelFolder:
    """A trained model of nnU-Net, TRAINER__PLANS__CONFIGURATION."""

    path: Path

    def __post_init__(self) -> None:
        for name in ("dataset.json", "plans.json"):
            if not (self.path / name).is_file():
                raise BadInput(f"{self.path} is no model of nnU-Net: it holds no {name}")

    @property
    def folds(self) -> list[Path]:
        """The folders of its folds, but for `fold_all`."""
        folders = sorted(path for path in self.path.glob("fold_*") if path.is_dir() and path.name != ALL)
        if not folders:
            raise BadInput(f"{self.path} holds no fold of a cross-validation: no fold_0, fold_1, ...")
        return folders

    def out_of_fold(self) -> list[Path]:
        """The folders with out-of-fold probabilities; a fold that was validated without them is refused."""
        validated = [fold / "validation" for fold in self.folds if (fold / "validation").is_dir()]
        for folder in validated:
            if not any(folder.glob("*.npz")):
                raise BadInput(
                    f"{folder} holds no probabilities (.npz): make them with   nnUNetv2_train ..."
                    f" {folder.parent.name.removeprefix('fold_')} --val --npz"
                )
        if not validated:
            raise BadInput(f"no fold of {self.path} has a folder `validation`: end a training with --npz")
        return validated

    @property
    def activation(self) -> Activation:
        """Labels that are lists are regions, which nnU-Net trains with a sigmoid for each."""
        about: _Dataset = read_json(self.path / "dataset.json", shape=_Dataset)
        return "sigmoid" if any(isinstance(value, list) for value in about["labels"].values()) else "softmax"

    @property
    def class_names(self) -> ClassNames:
        return find_class_names(self.path, self.path)

    @property
    def region_labels(self) -> list[int]:
        """The label that each region's voxels get, later ones over earlier ones."""
        about: _Dataset = read_json(self.path / "dataset.json", shape=_Dataset)
        order, regions = about.get("regions_class_order"), self.class_names.regions
        if order is None or len(order) != len(regions):
            raise BadInput(f"{self.path / 'dataset.json'}: regions_class_order must name a label for every region")
        return order

    def labels(self) -> Path:
        """The labels of its training cases, which lie where the preprocessed data or the raw data are."""
        name = read_json(self.path / "plans.json", shape=_Plans)["dataset_name"]
        places = (("nnUNet_preprocessed", "gt_segmentations"), ("nnUNet_raw", "labelsTr"))
        for variable, folder in places:
            path = Path(os.environ.get(variable, "")) / name / folder
            if os.environ.get(variable) and path.is_dir():
                return path
        tried = " or ".join(f"${variable}/{name}/{folder}" for variable, folder in places)
        raise BadInput(f"the labels of {name} are in neither {tried}: set a variable, or give --labels DIR")

    def ensemble_note(self, predicted: Path) -> str:
        """What is to be said where networks of several folds may have predicted together; else nothing."""
        path = predicted / ARGUMENTS
        used = read_json(path).get("use_folds") if path.is_file() else None
        number = (
            len(used) if isinstance(used, list) else len([f for f in self.folds if any(f.glob("checkpoint_*.pth"))])
        )
        if number < 2:
            return ""
        who = f"{number} folds predicted {predicted}" if used else f"{ARGUMENTS} does not tell how many folds predicted"
        return (
            f"{who}: nnUNetv2_predict averages all {number} by default, and an average is less sure than the single"
            " networks whose out-of-fold predictions are fitted on; with labelled cases that were predicted in the same"
            " way, fit on them: --predictions DIR --labels DIR"
        )
