"""What a variant's name says: the noise that was added to the images, and the rest."""

import re

from calibseg.analysis.columns import Column, Frame

NOISE = re.compile(r"(?:^|-)noise(?P<sigma>[0-9.]+(?:e-?[0-9]+)?)(?:-seed[0-9]+)?")


def shift_of(variant: str) -> tuple[float, str]:
    """The noise that a variant names, and the variant without it.

    >>> shift_of("noise0.05-seed3"), shift_of("wide-noise0.01-seed0"), shift_of("wide")
    ((0.05, ''), (0.01, 'wide'), (0.0, 'wide'))
    """
    match = NOISE.search(variant)
    if not match:
        return 0.0, variant
    return float(match["sigma"]), (variant[: match.start()] + variant[match.end() :]).strip("-")


def noisy(rows: Frame) -> Column:
    """Which rows are of images with noise added: the variant says so."""
    return rows["variant"].isin([name for name in rows["variant"].unique() if shift_of(name)[0] > 0])
