"""Made inputs that several stages' test files share."""

import numpy as np
import pytest

from support.scored_folders import random_case, save_case


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        save_case(tmp_path, f"case{number}", *random_case(number), affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    return tmp_path
