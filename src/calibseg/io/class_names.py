"""What label values mean: names of the classes, of regions made of several classes, and the value that is ignored.

>>> with_overrides(ClassNames(), classes="background,edema,core", regions="WT=1+2,TC=core").regions
{'WT': (1, 2), 'TC': (2,)}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibseg.core.types import BadInput


@dataclass(frozen=True)
class ClassNames:
    """What the label values mean, as a dataset.json (nnU-Net's or the Decathlon's) tells it."""

    classes: tuple[str, ...] = ()
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore_label: int | None = None

    def __post_init__(self) -> None:
        check_classes("class names", self.classes, self.regions, self.ignore_label)


def check_classes(
    where: Any, classes: Sequence[str], regions: Mapping[str, Sequence[int]], ignore_label: int | None
) -> None:
    """Names that differ, regions of known classes, and an ignored value that is no class. No classes: any number."""
    twice = [name for name in classes if list(classes).count(name) > 1]
    if twice or not all(isinstance(name, str) and name == name.strip() != "" for name in classes):
        problem = f"two classes are called {twice[0]!r}" if twice else f"a class has no name in {list(classes)}"
        raise BadInput(f"{where}: {problem}; each needs a name of its own")
    for name in (*classes, *regions):
        if not name.isprintable():
            raise BadInput(f"{where}: the name {name!r} holds what cannot be printed")
    for name, ids in regions.items():
        if name in classes and tuple(ids) != (list(classes).index(name),):
            raise BadInput(f"{where}: the region {name!r} has the name of a class; each needs a name of its own")
        for id in ids:
            if id < 0 or (classes and id >= len(classes)):
                raise BadInput(f"{where}: the region {name!r} holds {id}, but classes are 0 to {len(classes) - 1}")
        if not ids or len(set(ids)) < len(ids):
            raise BadInput(f"{where}: the region {name!r} holds {'a class twice' if ids else 'no class'}")
    if ignore_label is not None and 0 <= ignore_label < len(classes):
        name = classes[ignore_label]
        raise BadInput(f"{where}: the label {ignore_label} is to be ignored, but it is the class {name!r}")


def with_overrides(
    base: ClassNames, classes: str | None = None, regions: str | None = None, ignore_label: int | None = None
) -> ClassNames:
    """What the user states (`background,lv,rv`, `WT=1+2+3,TC=1+3`) instead of what a dataset.json says."""
    if classes is not None:
        names = tuple(name.strip() for name in classes.split(","))
        if len(names) < 2 or not all(names):
            raise BadInput(f"--classes {classes!r} names no classes: it is like background,lv,rv, the background first")
        base = replace(base, classes=names)
    if regions is not None:
        named = [_region(text, base.classes) for text in regions.split(",")]
        if len(dict(named)) < len(named):
            raise BadInput(f"--regions {regions!r} gives two regions the same name")
        base = replace(base, regions=dict(named))
    return base if ignore_label is None else replace(base, ignore_label=ignore_label)


def _region(text: str, classes: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    name, equals, members = text.partition("=")
    if not (name.strip() and equals and members.strip()):
        raise BadInput(f"--regions holds {text!r}: a region is like WT=1+2+3, numbers or names of classes")
    ids = []
    for member in (part.strip() for part in members.split("+")):
        number = member.isdecimal() and len(member) < 10
        if not number and member not in classes:
            raise BadInput(f"--regions holds {member!r}, which is neither a number nor one of: {', '.join(classes)}")
        ids.append(int(member) if number else classes.index(member))
    return name.strip(), tuple(ids)


def find_class_names(predictions: Path, labels: Path) -> ClassNames:
    """Names of classes and regions from the dataset.json in or above the folders; empty where there is none."""
    from calibseg.io.file_matching import nnunet_file  # here: the command line imports this module for its --help

    candidates = [folder / "dataset.json" for folder in (predictions, labels, labels.parent)]
    path = next(filter(Path.is_file, candidates), None) or nnunet_file(predictions, "dataset.json")
    return _read(path) if path else ClassNames()


def _read(path: Path) -> ClassNames:
    from calibseg.core.files import read_json

    try:
        entries = read_json(path)["labels"]
        if all(isinstance(value, str) for value in entries.values()):  # Decathlon, nnU-Net 1: {"1": "liver"}
            entries = {name: int(value) for value, name in entries.items()}
        single = {name: int(value) for name, value in entries.items() if not isinstance(value, list)}
        regions = {name: tuple(int(id) for id in value) for name, value in entries.items() if isinstance(value, list)}
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} has no readable entry `labels` that names the classes") from error
    ignore = single.pop("ignore", None)
    if regions:  # nnU-Net's region-based training: an entry with one value is a region too
        regions = {
            name: regions.get(name) or (single[name],) for name in entries if name in regions or single.get(name)
        }
        classes = tuple(str(value) for value in range(1 + max(max(values) for values in regions.values())))
        return ClassNames(("background", *classes[1:]), regions, ignore)
    if sorted(single.values()) != list(range(len(single))):
        raise BadInput(f"{path} gives the classes the values {sorted(single.values())}, not 0, 1, 2, ... without a gap")
    return ClassNames(tuple(sorted(single, key=lambda name: single[name])), {}, ignore)
