"""Options of losses, networks and calibrators, checked where they are given: an error says what is allowed.

>>> at_least("weight", 1, 0), whole_number("depth", 4, 2), one_of("penalty", "l1", ("l1", "l2"))
(1.0, 4, 'l1')
>>> one_of("penalty", "l3", ("l1", "l2"))
Traceback (most recent call last):
calibseg.core.types.BadInput: penalty must be one of 'l1', 'l2', not 'l3'
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from calibseg.core.types import BadInput

LARGEST = 1e38  # what float32 holds, nearly


def at_least(name: str, value: float, low: float, above: bool = False) -> float:
    """The value, if it is a finite number in range; else a sentence that says what is allowed."""
    in_range = value > low if above else value >= low
    if not in_range or value >= LARGEST:  # NaN is not in range either
        known = "less than 1e38" if in_range else f"{'greater than' if above else 'at least'} {low}"
        raise BadInput(f"{name} must be {known}, not {value!r}")
    return float(value)


def whole_number(name: str, value: int, low: int) -> int:
    """The value, if it is a whole number in range; else a sentence that says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise BadInput(f"{name} must be a whole number of at least {low}, not {value!r}")
    if value >= 1 << 63:  # which no tensor's size and no generator's seed is
        raise BadInput(f"{name} must be below 2^63, not {value!r}")
    return int(value)


def seed_number(name: str, value: int) -> int:
    """The value, if every generator of random numbers takes it as its seed."""
    return whole_number(name, value, 0)


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """The value, if it is one of the choices; else a sentence that lists them."""
    if value not in choices:
        raise BadInput(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value
