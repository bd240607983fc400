"""The one reader of targets: what it is given it refuses in a sentence, or reads as a loop over voxels does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from calibseg.core.labels import Target
from calibseg.core.target_reader import TargetReader
from calibseg.core.tensors import as_tensor
from calibseg.core.types import BadInput
from support.targets import MadeTarget, targets


def read_whole(made: MadeTarget) -> list[list[float] | None]:
    """The target of a batch read as one case [k n *space], as the monitor and the calibrators do."""
    (n, k, *space), target = made.shape, made.target
    moved = target.movedim(1, 0) if target.ndim == len(made.shape) else target
    reader = TargetReader.of(moved, (k, n, *space), "softmax", made.ignore_index)
    if reader.kind == "raters":
        raise BadInput("raters are no target of a loss")
    values = moved.flatten(1) if reader.kind == "soft" else moved.flatten()
    y, valid = reader.read(as_tensor(values), str)
    rows = y.T.tolist() if y.ndim == 2 else torch.eye(k)[y.clamp(0, k - 1)].tolist()
    kept = torch.ones(len(rows), dtype=torch.bool) if valid is None else valid
    return [row if keep else None for row, keep in zip(rows, kept.tolist(), strict=True)]


@settings(max_examples=300, deadline=None)
@given(made=targets())
def test_a_case_is_refused_or_read_as_a_loop_reads_it(made):
    shares = made.shares()
    if shares is None and made.target.dtype != torch.bool:  # truth values are labels 0 and 1 to metrics
        with pytest.raises(BadInput):
            read_whole(made)
    elif shares is not None:
        assert read_whole(made) == shares


@settings(max_examples=300, deadline=None)
@given(made=targets())
def test_a_batch_is_refused_or_read_as_a_loop_reads_it(made):
    shares, k = made.shares(of_loss=True), made.shape[1]
    if shares is None:
        with pytest.raises(BadInput):
            Target.of(made.target, made.logits(), made.ignore_index).check(made.ignore_index)
        return
    target = Target.of(made.target, made.logits(), made.ignore_index)
    target.check(made.ignore_index)
    assert target.valid.flatten().tolist() == [share is not None for share in shares]
    likeliest = [0 if share is None else int(np.argmax(share)) for share in shares]
    assert target.labels.flatten().tolist() == likeliest
    hot = target.one_hot.movedim(1, -1).reshape(-1, k).tolist()
    assert hot == [
        [int(s is not None and c == label) for c in range(k)] for s, label in zip(shares, likeliest, strict=True)
    ]


@pytest.mark.parametrize(
    "array",
    [np.array(["a", "b"]), np.array([None, 1]), np.zeros(2, complex), np.zeros(2, np.longdouble), np.zeros(2, "M8[s]")],
    ids=lambda array: str(array.dtype),
)
def test_what_is_no_number_is_refused_by_its_type(array):
    with pytest.raises(BadInput, match=r"the target holds .*; expected integer labels, or soft labels of floats"):
        TargetReader.of(array, (3, 2), "softmax", None)
    with pytest.raises(BadInput, match="cannot be calculated with"):
        as_tensor(array)


def test_integer_one_hot_is_told_from_raters_by_its_values():
    labels = np.array([[0, 1, 2, 0], [1, 1, 2, 2]])
    one_hot = np.eye(3, dtype=np.uint8)[labels].transpose(2, 0, 1)
    with pytest.raises(BadInput, match=r"\(3, 2, 4\) of uint8 is one-hot.*give its argmax over the classes, or floats"):
        TargetReader.of(one_hot, (3, 2, 4), "softmax", None)
    assert TargetReader.of(one_hot, (3, 2, 4), "sigmoid", None).kind == "soft"
    for raters in (np.stack([labels] * 3), np.stack([labels > 0] * 3).astype(int), one_hot * 2, one_hot[:2]):
        assert TargetReader.of(raters, (3, 2, 4), "softmax", None).kind == "raters"


def test_raters_share_the_voxels_that_they_do_not_ignore():
    raters = torch.tensor([[0, 1, 255, 255], [0, 2, 2, 255], [1, 2, 2, 255]])
    shares, valid = TargetReader.of(raters, (3, 4), "softmax", 255).read(raters, str)
    assert valid is not None
    assert valid.tolist() == [True, True, True, False]
    assert shares.T[:3].tolist() == [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3], [0, 0, 1]]
    with pytest.raises(BadInput, match="the label 7 at 2 is none of the 3 classes"):
        TargetReader.of(raters, (3, 4), "softmax", 255).read(raters.masked_fill(raters == 255, 7), str)
