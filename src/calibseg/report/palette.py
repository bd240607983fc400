"""What a method, a class and a metric look like and are called, the same in every figure.

A loss says in its own file how it is written and drawn (`acronym`, `colour`, `marker`). Colours are Okabe and Ito's,
which people with any colour vision can tell apart (two are Tol's, for the ninth and tenth loss); every method also has
its own marker, so that nothing hangs on colour alone. A loss keeps its colour whatever else is in the figure; one that
states none takes a colour by its name. A second method with the same loss (another margin, a calibrator) has the same
colour, dashed; another margin has another marker, a calibrated one hollow markers. A colour is darkened until its
contrast with white is 3 : 1.

>>> styles = method_styles(["ce", "mbls-m5", "mbls-m10", "mbls-m5+temperature"])
>>> [(styles[name].colour, styles[name].dash, styles[name].marker) for name in ("ce", "mbls-m5", "mbls-m10")]
[('#000000', 'solid', 'o'), ('#009e73', 'solid', '>'), ('#009e73', 'dashed', 'o')]
>>> shown_method("mbls-m5+temperature"), shown_metric("ece@truth"), shown_metric("dsc", higher_is_better=True)
('MbLS-m5+temperature', 'ECE, truth', 'DSC ↑')
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calibseg.analysis.columns import split_key
from calibseg.analysis.headline import metric_name
from calibseg.core import registry
from calibseg.io.label_colours import CLASSES

Dash = Literal["solid", "dashed", "dotted", "dashdot"]

OTHERS = ("#cc79a7", "#999933", "#882255", "#56b4e9", "#e69f00", "#009e73", "#0072b2", "#d55e00")
MARKERS = ("o", "s", "^", "v", "D", "P", ">", "X")
OVER, UNDER = "#d55e00", "#2f8fce"  # over-confident, under-confident
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted", "dashdot")


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    dash: Dash
    marker: str
    label: str
    hollow: bool = False  # with a calibrator

    @property
    def face(self) -> str:
        """The colour inside a marker."""
        return "white" if self.hollow else self.colour

    @property
    def line(self) -> dict[str, Any]:
        """The same in matplotlib's words."""
        return {"color": self.colour, "linestyle": self.dash, "marker": self.marker, "markerfacecolor": self.face}


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method; the same loss always has the same colour."""
    losses = {method: loss_of(method) for method in methods}
    facts = {loss: _facts(loss) for loss in losses.values()}
    taken = {fact["colour"] for fact in facts.values() if "colour" in fact}
    styles: dict[str, Style] = {}
    seen: dict[str, int] = {}
    trainings: dict[str, list[str]] = {}
    for method, loss in losses.items():
        if "colour" not in facts[loss]:
            number = zlib.crc32(loss.encode()) % len(OTHERS)
            turned = OTHERS[number:] + OTHERS[:number]
            facts[loss] |= {"colour": next((colour for colour in turned if colour not in taken), turned[0])}
            taken.add(facts[loss]["colour"])
        turn = seen.get(loss, 0)
        seen[loss] = turn + 1
        own = facts[loss].get("marker") or MARKERS[zlib.crc32(loss.encode()) % len(MARKERS)]
        alike, training = trainings.setdefault(loss, []), method.partition("+")[0]
        if training not in alike:
            alike.append(training)
        marker = (own, *(other for other in MARKERS if other != own))[alike.index(training) % len(MARKERS)]
        dash = DASHES[turn % len(DASHES)]
        styles[method] = Style(seen_on_white(facts[loss]["colour"]), dash, marker, shown_method(method), "+" in method)
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
    name, voxels = split_key(metric)
    text = metric_name(name) + (f", {voxels}" if voxels else "")
    return text if higher_is_better is None else f"{text} {'↑' if higher_is_better else '↓'}"


def seen_on_white(colour: str) -> str:
    """A colour, darkened as little as gives it a contrast of 3 with white.

    >>> seen_on_white("#0072b2"), seen_on_white("#e69f00")
    ('#0072b2', '#c68900')
    """
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    while contrast(parts) < 3:
        parts = [part * 0.99 for part in parts]
    return "#" + "".join(f"{round(part):02x}" for part in parts)


def contrast(colour: Sequence[float]) -> float:
    """WCAG's contrast of an sRGB colour with white, from 1 to 21."""
    linear = [(v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4) for v in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 1.05 / (luminance + 0.05)
