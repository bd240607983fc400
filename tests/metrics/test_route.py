"""Which route reads a volume: by its size alone, so that small work never waits for compilation."""

import sys

import numpy as np
import pytest

from calibseg.metrics.statistics.binning import calibration_statistics, route


def small(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.random((3, 4, 9, 8), np.float32) ** 4
    return p / p.sum(0), rng.integers(0, 3, (4, 9, 8))


def test_a_small_volume_takes_the_torch_route(monkeypatch):
    monkeypatch.setitem(sys.modules, "calibseg.metrics.statistics.binning.numba", None)  # importing it would fail
    p, y = small(0)
    assert calibration_statistics(p, y, kind="probabilities").on("all") is not None


def test_a_large_one_takes_numba_where_it_is_there(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setitem(sys.modules, "calibseg.metrics.statistics.binning.numba", None)
    monkeypatch.setattr(route, "LARGE", 4 * 9 * 8 * 3)
    p, y = small(0)
    with pytest.raises(ImportError):
        calibration_statistics(p, y, kind="probabilities")
