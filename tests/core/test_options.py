"""Options out of range are refused by a sentence that says what is allowed."""

import math

import numpy as np
import pytest

from calibseg.core.options import at_least, one_of, whole_number
from calibseg.core.types import BadInput


def test_a_number_in_range_comes_back_as_a_float():
    assert isinstance(at_least("weight", 1, 0), float)
    with pytest.raises(BadInput, match="weight must be greater than 0, not 0"):
        at_least("weight", 0, 0, above=True)
    with pytest.raises(BadInput, match="weight must be at least 0, not nan"):
        at_least("weight", math.nan, 0)
    with pytest.raises(BadInput, match="weight must be less than 1e38, not inf"):
        at_least("weight", math.inf, 0)


@pytest.mark.parametrize("value", [True, 2.0, 1, "3"])
def test_a_whole_number_is_neither_a_float_nor_a_truth_value(value):
    with pytest.raises(BadInput, match="depth must be a whole number of at least 2, not "):
        whole_number("depth", value, 2)


def test_a_whole_number_may_be_numpys_and_stays_exact():
    assert whole_number("seed", 2**60 + 1, 0) == 2**60 + 1
    assert whole_number("depth", np.int64(3), 2) == 3


def test_choices_are_listed():
    with pytest.raises(BadInput, match="size must be one of 2, 3, not 4"):
        one_of("size", 4, (2, 3))
