"""Patient-bootstrap intervals where there is nothing to draw from."""

import numpy as np

from calibseg.analysis.bootstrap import interval


def test_where_no_case_has_a_value_the_interval_is_undefined():
    low, high = interval(np.zeros((0, 3)), [])
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    assert low.shape == (3,)


def test_one_patient_gives_no_interval():
    low, high = interval(np.array([[0.5, 0.5], [0.7, np.nan], [np.nan, 0.9]]), ["anna", "anna", "ben"])
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [True, False]
