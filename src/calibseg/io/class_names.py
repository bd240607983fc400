"""What label values mean: names of the classes, of regions made of several classes, and the value that is ignored.

>>> with_overrides(ClassNames(), classes="background,edema,core", regions="WT=1+2,TC=core").regions
{'WT': (1, 2), 'TC': (2,)}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from calibseg.core.types import BadInput


@dataclass(frozen=True)
class ClassNames:
    """What the label values mean, as a dataset.json (nnU-Net's or the Decathlon's) tells it."""

    classes: tuple[str, ...] = ()
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore_label: int | None = None


def with_overrides(
    known: ClassNames, classes: str | None = None, regions: str | None = None, ignore_label: int | None = None
) -> ClassNames:
    """What the user states (`background,lv,rv`, `WT=1+2+3,TC=1+3`) instead of what a dataset.json says."""
    if classes is not None:
        names = tuple(name.strip() for name in classes.split(","))
        if len(names) < 2 or not all(names):
            raise BadInput(f"--classes {classes!r} names no classes: it is like background,lv,rv, the background first")
        known = replace(known, classes=names)
    if regions is not None:
        known = replace(known, regions=dict(_region(text, known.classes) for text in regions.split(",")))
    return known if ignore_label is None else replace(known, ignore_label=ignore_label)


def _region(text: str, classes: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    name, equals, members = text.partition("=")
    if not (name.strip() and equals and members.strip()):
        raise BadInput(f"--regions holds {text!r}: a region is like WT=1+2+3, numbers or names of classes")
    ids = []
    for member in (part.strip() for part in members.split("+")):
        if not member.isdigit() and member not in classes:
            raise BadInput(f"--regions holds {member!r}, which is neither a number nor one of: {', '.join(classes)}")
        ids.append(int(member) if member.isdigit() else classes.index(member))
    return name.strip(), tuple(ids)


def find_vocabulary(predictions: Path, labels: Path) -> ClassNames:
    """Names of classes and regions from the dataset.json in or above the folders; empty where there is none."""
    for folder in (predictions, labels, labels.parent):
        path = folder / "dataset.json"
        if path.is_file():
            return _read(path)
    return ClassNames()


def _read(path: Path) -> ClassNames:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["labels"]
        if all(isinstance(value, str) for value in entries.values()):  # Decathlon, nnU-Net 1: {"1": "liver"}
            entries = {name: int(value) for value, name in entries.items()}
        single = {name: int(value) for name, value in entries.items() if not isinstance(value, list)}
        regions = {name: tuple(int(one) for one in value) for name, value in entries.items() if isinstance(value, list)}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError, ValueError) as error:
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
