"""One table over places holds the sums over bins and those over buckets; one integer holds a count and a sum."""

import numpy as np
import pytest
import torch

from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.binning.bin_index import BinIndex
from calibseg.metrics.statistics.binning.equal_mass.histogram import bucket_index, bucket_number
from calibseg.metrics.statistics.binning.packed_sums import MOST_VOXELS, PackedSums
from calibseg.metrics.statistics.calibration import Bins

CPU = torch.device("cpu")


def numbers():
    """Probabilities of every size, on and next to edges of bins and buckets."""
    rng = np.random.default_rng(0)
    tiny = 10 ** -rng.uniform(0, 9, 4000)
    edges = np.concatenate([np.arange(16) / 15, np.arange(8) / 7, [1e-3, 1e-5, 0.5]]).astype(np.float32)
    beside = [np.nextafter(edges, np.float32(2)), np.nextafter(edges, np.float32(-1))]
    p = np.concatenate([rng.random(4000), tiny, 1 - tiny, edges, *beside]).astype(np.float32)
    return p.clip(0, 1)


@pytest.mark.parametrize("bins", [Bins(), Bins(7, 1e-5), Bins(1, 0.3), Bins(37, 1e-3)])
def test_a_place_names_the_bin_and_the_bucket(bins):
    p = numbers()
    places = BinIndex(bins, bins.threshold, CPU)
    counts = np.bincount(places.of(torch.from_numpy(p)).numpy(), minlength=places.size)
    above = p > np.float32(bins.threshold)
    by_hand = np.where(above, np.searchsorted(bins.edges[1:-1], p) + 1, 0)
    assert places.by_bin(counts).tolist() == np.bincount(by_hand, minlength=bins.stored).tolist()
    buckets = bucket_index(torch.from_numpy(p), bins.threshold).numpy()
    expected = np.bincount(buckets, minlength=bucket_number(bins.threshold))
    assert places.by_bucket(counts).tolist() == expected.tolist()


def test_a_count_and_a_sum_share_an_integer_until_it_is_full():
    tally = PackedSums(BinIndex(Bins(1, 0.25), None, CPU), 1, 1, CPU)
    state = torch.zeros(1, MOST_VOXELS, dtype=torch.int32)
    p = torch.full((1, MOST_VOXELS), 1.0)
    for _ in range(3):
        tally.add(p.double(), p, state, torch.zeros(MOST_VOXELS, dtype=torch.int64))
    tally.add(p[:, :5].double() / 8, p[:, :5] / 8, state[:, :5], torch.zeros(5, dtype=torch.int64))
    count, total, hits = (table.reshape(2, 2)[0] for table in tally.sums())  # of m = 0: [place]
    assert count.tolist() == [5, 3 * MOST_VOXELS]
    assert total.tolist() == [5 << 29, 3 * MOST_VOXELS << 32]
    assert hits.tolist() == [0, 0]


def test_a_volume_of_equal_voxels_is_counted_beyond_what_one_integer_holds():
    p = np.full((2, 4 * MOST_VOXELS), 0.75, np.float32)
    labels = np.zeros(p.shape, np.uint8)
    curves = calibration_statistics(p, labels, kind="probabilities", activation="sigmoid", route="torch").on("all")
    assert curves.count[:, 11].tolist() == [4 * MOST_VOXELS] * 2  # 11/15 < 0.75 < 12/15
    assert curves.confidence[:, 11].tolist() == [3 * MOST_VOXELS] * 2
