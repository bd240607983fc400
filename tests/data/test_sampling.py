"""The loader: every slice once, the same batches however they are read, padding that counts for nobody."""

import gc
import tracemalloc
from itertools import islice

import numpy as np
import pytest
import torch

from calibseg.core.types import IGNORED, BadInput, Case
from calibseg.data import prepared
from calibseg.data.augmentation import Augmentation
from calibseg.data.datasets.phantom import Phantom
from calibseg.data.preprocessing import Preprocessing, preprocess
from calibseg.data.slices import CaseSlices, Slices, largest, volume_batches
from support.whole_volumes import volume_scores

EVERYTHING = Augmentation(flip=0.5, rotate_deg=20, scale=0.2, gamma=0.3, noise=0.05)


def sized_case(id, shape, seed=0, raters=1, classes=3):
    rng = np.random.default_rng(seed)
    return Case(
        id=id,
        patient=id,
        image=rng.random((2, *shape), np.float32),
        channels=("a", "b"),
        labels=rng.integers(0, classes, (raters, *shape)).astype(np.uint8),
        spacing_mm=(1.0, 1.0, 1.0),
        classes=tuple("xyz"[:classes]),
        affine=np.eye(4),
        header={"original": {"affine": np.eye(4).tolist()}},
    )


@pytest.fixture
def cases():
    """Three cases of different size, cut along x."""
    return [CaseSlices(sized_case(f"c{n}", (5 + n, 9 - n, 4 + n), n), axis=2) for n in range(3)]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    for case in Phantom(cases=3, size=(6, 20, 24)).cases():
        prepared.write_case(folder, preprocess(case, Preprocessing(slice_axis="coronal", intensity="keep")), "k")
    return folder


def same(a, b):
    return (
        torch.equal(a.image, b.image)
        and torch.equal(a.target, b.target)
        and a.case_ids == b.case_ids
        and a.slices == b.slices
    )


def test_an_epoch_shows_every_slice_once(cases):
    seen = [pair for batch in Slices(cases, 4).epoch(0) for pair in zip(batch.case_ids, batch.slices, strict=True)]
    assert sorted(seen) == [(f"c{n}", index) for n in range(3) for index in range(4 + n)]


def test_a_slice_is_the_cases_own_and_padding_is_ignored(cases):
    for batch in Slices(cases, 5, multiple_of=4).epoch(0):
        assert batch.image.shape[-2] % 4 == batch.image.shape[-1] % 4 == 0
        for image, target, id, index in zip(batch.image, batch.target, batch.case_ids, batch.slices, strict=True):
            case = next(source.case for source in cases if source.id == id)
            z, y = case.image.shape[1:3]
            np.testing.assert_array_equal(image[:, :z, :y], case.image[..., index])
            np.testing.assert_array_equal(target[:z, :y], case.labels[0, ..., index])
            assert (target[z:] == -100).all()
            assert (target[:, y:] == -100).all()
            assert (image[:, z:] == 0).all()


def test_cross_entropy_does_not_see_the_padding(cases):
    small, padded = (next(iter(Slices(cases[:1], 4, multiple_of=m).epoch(0))) for m in (1, 32))
    h, w = small.target.shape[-2:]
    logits = torch.randn(4, 3, *padded.target.shape[-2:])
    loss = torch.nn.functional.cross_entropy
    torch.testing.assert_close(loss(logits[..., :h, :w], small.target), loss(logits, padded.target))


@pytest.mark.parametrize("augmentation", [Augmentation(), EVERYTHING])
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_do_not_depend_on_the_number_of_workers(cases, workers, augmentation):
    alone = Slices(cases, 2, seed=7, target="random", augmentation=augmentation, workers=0)
    many = Slices(cases, 2, seed=7, target="random", augmentation=augmentation, workers=workers)
    for a, b in zip(alone.epoch(3), many.epoch(3), strict=True):
        assert same(a, b)


def test_a_resumed_epoch_goes_on_with_the_batches_that_are_missing(cases):
    slices = Slices(cases, 2, augmentation=EVERYTHING)
    whole = list(slices.epoch(5))
    for start in (1, 4, len(slices)):
        rest = list(Slices(cases, 2, augmentation=EVERYTHING).epoch(5, start))
        assert len(rest) == len(whole) - start
        assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))
    assert same(slices.batch(5, 3), whole[3])


def test_epochs_and_seeds_differ_and_repeat(cases):
    def order(seed, epoch):
        return [
            pair for b in Slices(cases, 3, seed=seed).epoch(epoch) for pair in zip(b.case_ids, b.slices, strict=True)
        ]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    given = Slices(cases, 3, order="as given")
    assert [i for b in given.epoch(9) for i in b.slices] == [*range(4), *range(5), *range(6)]


def test_stopping_in_the_middle_leaves_no_thread_waiting(cases):
    import threading

    before = threading.active_count()
    assert len(list(islice(Slices(cases, 1, workers=2).epoch(0), 3))) == 3
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_an_epoch_and_have_equally_many_batches(cases, world):
    parts = [Slices(cases, 2, rank=rank, world=world) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    seen = [[pair for b in part.epoch(0) for pair in zip(b.case_ids, b.slices, strict=True)] for part in parts]
    assert len({len(pairs) for pairs in seen}) == 1
    everything = [pair for pairs in seen for pair in pairs]
    assert len(set(everything)) == 15  # 4 + 5 + 6 slices, none left out
    assert len(everything) - 15 < world  # and hardly any twice


def test_only_labelled_slices_are_kept_when_asked():
    case = sized_case("a", (4, 5, 6))
    case.labels[:, [0, 3]] = 0
    case.labels[:, 1] = IGNORED
    slices = Slices([CaseSlices(case)], 8, keep="foreground")
    assert sorted(i for b in slices.epoch(0) for i in b.slices) == [2]
    case.labels[:] = 0
    with pytest.raises(BadInput, match="none of 1 cases has a labelled slice"):
        Slices([CaseSlices(case)], 8, keep="foreground")


def test_an_ignored_voxel_carries_ignore_index():
    case = sized_case("a", (1, 4, 4))
    case.labels[0, 0, 1, 2] = IGNORED
    batch = Slices([CaseSlices(case)], 1, ignore_index=-1).batch(0, 0)
    assert batch.target[0, 1, 2] == -1
    assert (batch.target == -1).sum() == 1


def test_the_mean_of_raters_is_a_soft_target():
    case = sized_case("a", (1, 2, 2), raters=4, classes=2)
    case.labels[:, 0] = np.array(
        [[[0, 1], [1, IGNORED]], [[0, 1], [0, IGNORED]], [[0, 1], [0, IGNORED]], [[0, 0], [IGNORED] * 2]]
    )
    target = Slices([CaseSlices(case)], 1, target="mean").batch(0, 0).target
    assert target.shape == (1, 2, 2, 2)
    np.testing.assert_allclose(target[0, 1], [[0, 0.75], [1 / 3, 0]], rtol=1e-6)
    assert (target[0, :, 1, 1] == 0).all()  # nobody said anything: counts for nobody
    np.testing.assert_allclose(target.sum(1)[0], [[1, 1], [1, 0]])


def test_soft_targets_are_padded_with_zeros(cases):
    batch = Slices(cases[:1], 4, target="mean", multiple_of=16).batch(0, 0)
    assert (batch.target[:, :, 5:] == 0).all()


def test_a_view_of_a_soft_target_sums_to_one_or_counts_for_nobody(cases):
    batch = Slices(cases, 15, target="mean", augmentation=EVERYTHING, multiple_of=8).batch(0, 0)
    total = batch.target.sum(1)
    counted = total > 0
    torch.testing.assert_close(total[counted], torch.ones(int(counted.sum())))
    assert 0.2 < counted.float().mean() < 0.9


def test_the_truth_of_the_phantom_can_be_the_target(work):
    source = prepared.open_case(work, "phantom_0001")
    batch = Slices([source], 4, target="truth", order="as given").batch(0, 0)
    np.testing.assert_array_equal(batch.target, np.moveaxis(source.case().true_p, 2, 0)[:4])


def test_random_raters_all_take_their_turn(work):
    source = prepared.open_case(work, "phantom_0000")
    slices = Slices([source], 20, target="random", order="as given")
    labels = np.moveaxis(source.case().labels, 2, 0)  # [slices raters h w]
    seen = set()
    for epoch in range(8):
        target = slices.batch(epoch, 0).target.numpy()
        for number in range(20):
            seen |= {rater for rater in range(4) if np.array_equal(target[number], labels[number, rater])}
    assert seen == {0, 1, 2, 3}


def test_a_stored_case_and_the_case_in_memory_give_the_same_batches(work):
    stored = [prepared.open_case(work, f"phantom_{n:04d}") for n in range(3)]
    memory = [CaseSlices(source.case(), source.axis) for source in stored]
    for a, b in zip(Slices(stored, 7).epoch(0), Slices(memory, 7).epoch(0), strict=True):
        assert same(a, b)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slice_scores_become_the_volume_again(axis):
    """A network that answers with its input: the volume of scores is the image."""
    source = CaseSlices(sized_case("a", (5, 6, 7)), axis)
    scores = volume_scores(source, volume_batches(source, 2, multiple_of=4))
    np.testing.assert_array_equal(scores, source.case.image)
    with pytest.raises(BadInput, match="scores were given for 2"):
        volume_scores(source, [next(volume_batches(source, 2))])


def test_memory_does_not_grow_with_the_number_of_cases(tmp_path):
    """Peak of Python's and numpy's allocations while reading an epoch of 4 and of 32 cases."""
    case = preprocess(sized_case("c", (8, 64, 64)), Preprocessing())
    peaks = []
    for count in (4, 32):
        sources = []
        for number in range(count):
            prepared.write_case(tmp_path, Case(**{**vars(case), "id": f"c{number}"}), "k")
            sources.append(prepared.open_case(tmp_path, f"c{number}"))
        slices = Slices(sources, 4, workers=0)
        tracemalloc.start()
        for _ in slices.epoch(0):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "world": 2}, "rank=2 below world=2"),
        ({"workers": -1}, "workers=-1"),
    ],
)
def test_impossible_loaders_are_refused(cases, options, said):
    with pytest.raises(BadInput, match=said):
        Slices(cases, **{"batch_size": 1, **options})


def test_no_case_at_all_is_refused():
    with pytest.raises(BadInput, match="there is no case"):
        Slices([], 1)


def test_every_batch_is_padded_to_the_largest_training_slice():
    cases = [CaseSlices(sized_case(id, (3, *size))) for id, size in (("a", (5, 9)), ("b", (7, 6)))]
    assert largest(cases) == (7, 9)
    small = [CaseSlices(sized_case("c", (3, 4, 4)))]
    (batch,) = Slices(small, 4, at_least=largest(cases)).epoch(0)
    assert batch.image.shape[2:] == (7, 9)
    assert (batch.target[:, 4:] == -100).all()
    assert next(volume_batches(small[0], 4, at_least=(7, 9))).shape[2:] == (7, 9)
    assert next(volume_batches(cases[0], 4, at_least=(4, 4))).shape[2:] == (5, 9)  # a larger slice keeps its size


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_epochs_of_some_steps_are_whole_batches_of_passes_without_a_gap(cases, steps):
    """5 + 6 + 7 slices... whatever they are: batches follow each other as in one long row of passes."""
    slices = Slices(cases, 4, seed=3, steps=steps)
    n = len(slices.index)
    assert len(slices) == steps
    seen = []
    for epoch in range(-(-3 * n // (4 * steps))):  # at least three passes
        for batch in slices.epoch(epoch):
            assert len(batch.image) == 4
            seen += list(zip(batch.case_ids, batch.slices, strict=True))
    for begin in range(0, 3 * n, n):
        assert len(set(seen[begin : begin + n])) == n
    assert seen[:n] != seen[n : 2 * n]


def test_a_step_of_a_fixed_epoch_is_shared_by_all_processes(cases):
    n = len(Slices(cases, 1).index)
    ranks = [Slices(cases, 2, steps=n, rank=rank, world=2) for rank in (0, 1)]
    seen = [one for rank in ranks for b in rank.epoch(0) for one in zip(b.case_ids, b.slices, strict=True)]
    assert len(seen) == 4 * n
    assert all(seen.count(one) == 4 for one in set(seen))
