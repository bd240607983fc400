"""Options of losses and priors that are out of range are refused by name; the edge of the range is not."""

import math

import pytest

from calibseg.core import registry
from calibseg.core.types import BadInput

# option: the first value that is refused, and one at the edge that is not (None: there is none)
WRONG = [
    ("losses", "ls", "smoothing", -0.01, 0.0),
    ("losses", "ls", "smoothing", 1.01, 1.0),
    ("losses", "focal", "gamma", -0.01, 0.0),
    ("losses", "ecp", "weight", -0.01, 0.0),
    ("losses", "mbls", "weight", -0.01, 0.0),
    ("losses", "mbls", "margin", -0.01, 0.0),
    ("losses", "nacl", "weight", -0.01, 0.0),
    ("losses", "nacl", "prior_scale", 0.0, 1e-3),
    ("losses", "svls", "sigma", 0.0, 1e-3),
    ("losses", "bwcr", "weight", -0.01, 0.0),
    ("losses", "bwcr", "min_weight", -0.01, 0.0),
    ("losses", "bwcr", "max_weight", -0.01, 0.0),
    ("losses", "bwcr", "radius_px", 0, 1),
    ("losses", "ce", "dice_weight", -0.01, 0.0),
    ("losses", "ce", "class_weight", [1.0, -0.01], [1.0, 0.0]),
    ("losses", "ce", "class_weight", [1.0, math.inf], [1.0, 1e30]),
    ("losses", "crac", "tolerance", -0.01, 0.0),
    ("losses", "crac", "inner_scale", 0.0, 1e-3),
    ("losses", "crac", "outer_scale", 0.0, 1e-3),
    ("losses", "crac", "lambda_init", 0.0, 1e-9),
    ("losses", "crac", "lambda_max", 1e-7, 1e-6),
    ("losses", "crac", "rho", 0.0, 1e-3),
    ("losses", "crac", "rho_max", 0.09, 0.1),
    ("losses", "crac", "gamma", 0.99, 1.0),
    ("losses", "crac", "mu", -0.01, 0.0),
    ("losses", "crac", "rho_every", 0, 1),
    ("losses", "ce", "dice_gamma", 0.99, 1.0),
    ("losses", "ce", "dice_alpha", -0.01, 0.0),
    ("losses", "ce", "dice_beta", -0.01, 0.0),
    ("losses", "ml1_ace", "weight", -0.01, 0.0),
    ("losses", "meep", "weight", -0.01, 0.0),
    ("losses", "focal_brier", "weight", -0.01, 0.0),
    ("losses", "cals", "margin", 0.0, 1e-3),
    ("losses", "cals", "lambda_init", 0.0, 1e-9),
    ("losses", "cals", "lambda_init", 1.1e6, 1e6),
    ("losses", "cals", "rho", 0.0, 10.0),
    ("losses", "cals", "gamma", 0.99, 1.0),
    ("losses", "cals", "mu", -0.01, 0.0),
    ("priors", "gaussian", "sigma", 0.0, 1e-3),
    ("priors", "plain_gaussian", "sigma", -1.0, 1e-3),
]


@pytest.mark.parametrize(("family", "key", "option", "wrong", "edge"), WRONG, ids=str)
def test_a_number_out_of_range_is_refused_and_the_edge_is_not(family, key, option, wrong, edge):
    with pytest.raises(BadInput, match=option):
        registry.build(family, key, {option: wrong})
    if not isinstance(wrong, list):
        for never in (math.nan, math.inf):
            with pytest.raises(BadInput, match=option):
                registry.build(family, key, {option: never})
    registry.build(family, key, {option: edge})


@pytest.mark.parametrize(
    ("key", "option"),
    [("crac", o) for o in ("penalty", "residual", "average", "scale", "border")]
    + [("nacl", o) for o in ("penalty", "space", "border")]
    + [("mbls", "penalty"), ("ce", "value_check"), ("ce", "activation"), ("ce", "dice"), ("meep", "form")]
    + [("ml1_ace", "binning"), ("cals", "penalty")],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(key, option):
    with pytest.raises(BadInput, match=rf"{option}( = 'other')? must be one of '.*'"):
        registry.build("losses", key, {option: "other"})
