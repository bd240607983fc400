r"""Exact equal-mass calibration bins of one volume (adaptive ECE, TACE). One entry point: `exact_bins`.

What it does. Equal-mass bins hold equally many voxels, so their edges are quantiles of the probabilities. Sorting all
pairs of voxel and class of a large volume would take minutes and gigabytes. Instead the first pass over the volume,
the one that takes the calibration statistics, also fills a fine histogram (`histogram.py`), whose counts tell in which
of its buckets each quantile lies. A second pass collects the voxels of those buckets only, a few per cent of all, and
sorts them (`sort_keys.py`), each as one integer of probability and label. `exact.py` puts both together.

Why it is fast. The first pass notes for every block of 256 voxels which buckets each class reaches, so the second one
opens only blocks and classes that matter: `torch_keys.py` with vector operations, `numba_keys.py` with compiled loops
(the same voxels, in any order). Where the histogram and the calibration bins sum the same numbers they share one table
(`bin_index.py` one folder up), so that a pair is added once instead of twice.

Memory. 8 bytes per key: the histogram tells how many there will be, so the array is made once. In the worst case, where
nearly all probabilities are different and spread evenly over few buckets, keys are a few per cent of the pairs; a 512 x
512 x 600 volume of 5 classes stays under 500 MB.

Exactness. For one case every cut is exact, ties included: voxels with the same probability share their hits evenly, so
the order of voxels, threads and chunks does not matter, and both routes give the same bits. For the sum of several
cases only the histogram is known; the value then has a stated bound (see `histogram.py`).

Bars: `python benchmarks/metrics.py calibration` ("everything" is the first pass and this one), docs/performance.md.
"""

from calibseg.metrics.statistics.binning.equal_mass.exact import exact_bins
from calibseg.metrics.statistics.binning.equal_mass.histogram import EqualMassStatistics

__all__ = ["EqualMassStatistics", "exact_bins"]
