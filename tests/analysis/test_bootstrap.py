"""Patient-bootstrap intervals where there is nothing to draw from."""

import numpy as np

from calibseg.analysis.bootstrap import interval


def test_where_no_case_has_a_value_the_interval_is_undefined():
    low, high = interval(np.zeros((0, 3)), [])
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    assert low.shape == (3,)
