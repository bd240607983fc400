"""What a method, a class and a metric look like and are called, the same in every figure.

A loss says in its own file how it is written and drawn (`acronym`, `colour`, `marker`). Colours are Okabe and Ito's,
which people with any colour vision can tell apart (two are Tol's, for the ninth and tenth loss); every method also has
its own marker, so that nothing hangs on colour alone. A loss keeps its colour whatever else is in the figure; one that
states none takes a colour by its name. A second method with the same loss (another margin, a calibrator) has the same
hue, lighter and dashed.

>>> styles = method_styles(["ce", "mbls-m5", "mbls-m10", "mbls-m5+temperature"])
>>> [(styles[name].colour, styles[name].dash) for name in ("ce", "mbls-m5", "mbls-m10")]
[('#000000', 'solid'), ('#009e73', 'solid'), ('#59c0a4', 'dashed')]
>>> shown_method("mbls-m5+temperature"), shown_metric("ece@truth"), shown_metric("dsc", higher_is_better=True)
('MbLS-m5+temperature', 'ECE, truth', 'DSC ↑')
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from calibseg.analysis.headline import metric_name
from calibseg.core import registry

Dash = Literal["solid", "dashed", "dotted", "dashdot"]

OTHERS = ("#cc79a7", "#999933", "#882255", "#56b4e9", "#e69f00", "#009e73", "#0072b2", "#d55e00")
MARKERS = ("o", "s", "^", "v", "D", "P", ">", "X")
CLASSES = ("#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#882255", "#999933")
OVER, UNDER = "#d55e00", "#56b4e9"  # over-confident, under-confident
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted", "dashdot")
LIGHTER = (0.0, 0.35, 0.55, 0.7)


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    dash: Dash
    marker: str
    label: str


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method; the same loss always has the same colour."""
    losses = {method: loss_of(method) for method in methods}
    facts = {loss: _facts(loss) for loss in losses.values()}
    taken = {fact["colour"] for fact in facts.values() if "colour" in fact}
    styles: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for method, loss in losses.items():
        if "colour" not in facts[loss]:
            number = zlib.crc32(loss.encode()) % len(OTHERS)
            turned = OTHERS[number:] + OTHERS[:number]
            facts[loss] |= {"colour": next((colour for colour in turned if colour not in taken), turned[0])}
            taken.add(facts[loss]["colour"])
        turn = seen.get(loss, 0)
        seen[loss] = turn + 1
        marker = facts[loss].get("marker") or MARKERS[zlib.crc32(loss.encode()) % len(MARKERS)]
        shade = lighter(facts[loss]["colour"], LIGHTER[turn % len(LIGHTER)])
        styles[method] = Style(shade, DASHES[turn % len(DASHES)], marker, shown_method(method))
    return styles


def _facts(loss: str) -> dict[str, Any]:
    """What a loss says about its looks; nothing where it is none of ours, or a plug-in that says nothing."""
    member = registry.members("losses").get(loss)
    facts = member.facts if member else {}
    return {name: facts[name] for name in ("acronym", "colour", "marker") if facts.get(name)}


def class_colour(index: int) -> str:
    """Of a class by its number; the background is grey."""
    return CLASSES[index % len(CLASSES)]


def loss_of(method: str) -> str:
    """The loss that a method's name begins with: `mbls-m5+ts` -> `mbls`; a name of its own where it is none of ours."""
    head = re.split(r"[+ ]", method, maxsplit=1)[0]
    known = [loss for loss in registry.members("losses") if re.match(rf"{re.escape(loss)}(?![a-z_])", head)]
    return max(known, key=len, default=head)


def shown_method(method: str) -> str:
    """A method as papers write it."""
    loss = loss_of(method)
    return _facts(loss).get("acronym", loss) + method[len(loss) :]


def shown_metric(metric: str, higher_is_better: bool | None = None) -> str:
    """`ece@truth` -> `ECE, truth`; where the direction is given, with an arrow: which way is better."""
    name, _, voxels = metric.partition("@")
    text = metric_name(name) + (f", {voxels}" if voxels else "")
    return text if higher_is_better is None else f"{text} {'↑' if higher_is_better else '↓'}"


def lighter(colour: str, share: float) -> str:
    """A colour mixed with white.

    >>> lighter("#000000", 0.5)
    '#808080'
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
