"""What a method, a class and a metric look like and are called, the same in every figure.

Colours are Okabe and Ito's, which people with any colour vision can tell apart (two are Tol's, for the ninth and tenth
loss); every method also has its own marker, so that nothing hangs on colour alone. A loss keeps its colour whatever
else is in the figure. A second method with the same loss (another margin, a calibrator) has the same hue, lighter and
dashed.

>>> styles = method_styles(["ce", "mbls-m5", "mbls-m10", "mbls-m5+temperature"])
>>> [(styles[name].colour, styles[name].dash) for name in ("ce", "mbls-m5", "mbls-m10")]
[('#000000', 'solid'), ('#009e73', 'solid'), ('#59c0a4', 'dashed')]
>>> shown_method("mbls-m5+temperature"), shown_metric("ece@truth"), shown_metric("dsc", arrow=True)
('MbLS-m5+temperature', 'ECE, truth', 'DSC ↑')
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Dash = Literal["solid", "dashed", "dotted", "dashdot"]

# loss: how it is written, its colour, its marker
LOSSES = {
    "ce": ("CE", "#000000", "o"),
    "ce_dice": ("CE+Dice", "#8c8c8c", "s"),
    "focal": ("FL", "#cc79a7", "^"),
    "ecp": ("ECP", "#999933", "v"),
    "ls": ("LS", "#e69f00", "D"),
    "svls": ("SVLS", "#56b4e9", "P"),
    "mbls": ("MbLS", "#009e73", ">"),
    "nacl": ("NACL", "#0072b2", "s"),
    "bwcr": ("BWCR", "#882255", "X"),
    "crac": ("CRaC", "#d55e00", "o"),
}
OTHERS = ("#cc79a7", "#999933", "#882255", "#56b4e9", "#e69f00", "#009e73", "#0072b2", "#d55e00")
MARKERS = ("o", "s", "^", "v", "D", "P", ">", "X")
CLASSES = ("#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#882255", "#999933")
OVER, UNDER = "#d55e00", "#56b4e9"  # claims too much, claims too little
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted", "dashdot")
LIGHTER = (0.0, 0.35, 0.55, 0.7)
ACRONYMS = {
    "dsc": "DSC", "iou": "IoU", "hd": "HD", "hd95": "HD95", "asd": "ASD", "assd": "ASSD", "nsd": "NSD", "ece": "ECE",
    "cece": "CECE", "tcece": "TCECE", "ace": "ACE", "aece": "AECE", "mce": "MCE", "tace": "TACE", "nll": "NLL",
    "brier": "Brier", "volume_error": "volume error", "signed_gap": "signed gap",
}  # fmt: skip
HIGHER_IS_BETTER = ("dsc", "iou", "nsd", "brier_resolution")


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    dash: Dash
    marker: str
    label: str


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method; the same loss always has the same colour."""
    found: dict[str, Style] = {}
    seen: dict[str, int] = {}
    strangers: list[str] = []
    for method in methods:
        if method in found:
            continue
        loss = loss_of(method)
        if loss in LOSSES:
            _, colour, marker = LOSSES[loss]
        else:
            if loss not in strangers:
                strangers.append(loss)
            place = strangers.index(loss)
            colour, marker = OTHERS[place % len(OTHERS)], MARKERS[place % len(MARKERS)]
        turn = seen.get(loss, 0)
        seen[loss] = turn + 1
        shade = lighter(colour, LIGHTER[turn % len(LIGHTER)])
        found[method] = Style(shade, DASHES[turn % len(DASHES)], marker, shown_method(method))
    return found


def class_colour(index: int) -> str:
    """Of a class by its number; the background is grey."""
    return CLASSES[index % len(CLASSES)]


def loss_of(method: str) -> str:
    """The loss that a method's name begins with: `mbls-m5+ts` -> `mbls`; a name of its own where it is none of ours."""
    head = re.split(r"[+ ]", method, maxsplit=1)[0]
    known = [loss for loss in LOSSES if re.match(rf"{loss}(?![a-z_])", head)]
    return max(known, key=len, default=head)


def shown_method(method: str) -> str:
    """A method as papers write it."""
    loss = loss_of(method)
    return LOSSES[loss][0] + method[len(loss) :] if loss in LOSSES else method


def shown_metric(metric: str, arrow: bool = False) -> str:
    """`ece@truth` -> `ECE, truth`; with an arrow: which way is better."""
    name, _, voxels = metric.partition("@")
    text = ACRONYMS.get(name, name.replace("_", " ")) + (f", {voxels}" if voxels else "")
    return f"{text} {'↑' if name in HIGHER_IS_BETTER else '↓'}" if arrow else text


def lighter(colour: str, share: float) -> str:
    """A colour mixed with white.

    >>> lighter("#000000", 0.5)
    '#808080'
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
