"""Names and colours of label values, as viewers read them beside a label map.

ITK-SNAP reads `IDX R G B A VIS MSH "NAME"` (Segmentation > Import Label Descriptions), 3D Slicer a colour table of
`IDX NAME R G B A`. The colours are Okabe and Ito's, and two of Tol's, which people with any colour vision tell apart;
the background is grey in figures and transparent here.

>>> print(slicer_table(("background", "left lung")), end="")
# Color table
0 background 0 0 0 0
1 left_lung 0 114 178 255
"""

from collections.abc import Sequence

CLASSES = ("#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#882255", "#999933")


def class_rgb(index: int) -> tuple[int, int, int]:
    """The colour of a class by its number, from 0 to 255."""
    colour = CLASSES[index % len(CLASSES)]
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def itk_snap_table(classes: Sequence[str]) -> str:
    """Label descriptions of ITK-SNAP."""
    lines = ['    0     0    0    0        0  0  0    "Clear Label"']
    for number in range(1, len(classes)):
        red, green, blue = class_rgb(number)
        lines.append(f'{number:5} {red:5} {green:4} {blue:4}        1  1  1    "{_word(classes[number])}"')
    return "\n".join(["# ITK-SnAP Label Description File", *lines]) + "\n"


def slicer_table(classes: Sequence[str]) -> str:
    """A colour table of 3D Slicer."""
    lines = ["# Color table", f"0 {_word(classes[0]).replace(' ', '_')} 0 0 0 0"]
    for number, name in enumerate(classes[1:], start=1):
        lines.append(" ".join(map(str, (number, _word(name).replace(" ", "_"), *class_rgb(number), 255))))
    return "\n".join(lines) + "\n"


def _word(name: str) -> str:
    return " ".join(name.replace('"', "'").split())
