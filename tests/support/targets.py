"""Targets of every kind, right and wrong, for the doors that read them; and what they mean, voxel by voxel."""

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class MadeTarget(NamedTuple):
    """A target for scores [n k *space]."""

    target: Tensor
    shape: tuple[int, ...]
    ignore_index: int

    def logits(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype) * 2

    def shares(self, of_loss: bool = False) -> list[list[float] | None] | None:
        """What the classes share at every voxel in turn, None where it is ignored; None where the target is wrong.

        of_loss: losses also take one-hot integers [n k *space] and whole floats [n 1 *space].
        """
        (n, k, *space), target = self.shape, self.target
        if of_loss and target.shape == (n, k, *space) and target.dtype in (*INTEGERS, torch.bool):  # one-hot, or wrong
            target = target.double()
        if target.shape == (n, 1, *space) and target.dtype in (INTEGERS + FLOATS if of_loss else INTEGERS):
            if any(value != value or value % 1 for value in target.double().flatten().tolist()):
                return None
            target = target.squeeze(1).long()
        floating = target.dtype in FLOATS
        if target.shape != ((n, k, *space) if floating else (n, *space)) or target.dtype not in INTEGERS + FLOATS:
            return None
        read = [self._row(row) if floating else self._label(row) for row in self._rows(target, floating)]
        return None if "wrong" in read else read  # pyright: ignore[reportReturnType]

    def _rows(self, target: Tensor, floating: bool) -> list:
        return (target.double().movedim(1, -1).reshape(-1, self.shape[1]) if floating else target.flatten()).tolist()

    def _label(self, label: int) -> list[float] | str | None:
        if label == self.ignore_index:
            return None
        return [float(k == label) for k in range(self.shape[1])] if 0 <= label < self.shape[1] else "wrong"

    def _row(self, row: list[float]) -> list[float] | str | None:
        if all(share == 0 for share in row):
            return None
        good = all(0 <= share <= 1 for share in row) and abs(math.fsum(row) - 1) <= 1e-3
        return row if good else "wrong"


@st.composite
def targets(draw: st.DrawFn) -> MadeTarget:
    n, k, space = (
        draw(st.integers(1, 2)),
        draw(st.integers(2, 4)),
        draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)),
    )
    ignore_index = draw(st.sampled_from([-100, -100, -1, 255, 0, 1]))
    shapes = [(n, *space)] * 4 + [(n, 1, *space), (n, k, *space), (n, k + 1, *space), (n, *space, 1), (n + 1, *space)]
    if draw(st.booleans()):
        dtype = draw(st.sampled_from((*INTEGERS, torch.int64, torch.int64, torch.bool)))
        shape = draw(st.sampled_from(shapes))
        limits = torch.iinfo(dtype) if dtype != torch.bool else torch.iinfo(torch.uint8)
        odd = [v for v in (ignore_index, -1, k, 255, 256, 156, -100, 1 << 31) if limits.min <= v <= limits.max]
        usual = draw(st.sampled_from([range(k), range(k), [*range(k), ignore_index], [*range(k), *odd]]))
        allowed = [v for v in usual if limits.min <= v <= limits.max]
        values = draw(st.lists(st.sampled_from(allowed), min_size=math.prod(shape), max_size=math.prod(shape)))
        return MadeTarget(torch.tensor(values).reshape(shape).to(dtype), (n, k, *space), ignore_index)
    dtype = draw(st.sampled_from((*FLOATS, torch.float64, torch.float64, torch.float8_e4m3fn, torch.complex64)))
    if draw(st.integers(0, 7)) == 0:
        return MadeTarget(torch.ones(draw(st.sampled_from(shapes))).to(dtype), (n, k, *space), ignore_index)
    half = [0.5, 0.5, *[0.0] * (k - 2)]
    good = [[1.0, *[0.0] * (k - 1)], [*[0.0] * (k - 1), 1.0], half, [1 / k] * k, [0.0] * k, [*[0.0] * (k - 1), 1.0005]]
    bad = [
        [1.0] * k,
        [0.55, 0.5, *[0.0] * (k - 2)],
        [1.5, -0.5, *[0.0] * (k - 2)],
        [math.nan] * k,
        [math.inf, *[0.0] * (k - 1)],
    ]
    rows = draw(st.sampled_from([good, good, good + bad, [*good, [0.7, *[0.0] * (k - 1)]]]))
    voxels = n * math.prod(space)
    chosen = draw(st.lists(st.sampled_from(rows), min_size=voxels, max_size=voxels))
    soft = torch.tensor(chosen, dtype=torch.float64).reshape(n, *space, k).movedim(-1, 1)
    return MadeTarget(soft.to(dtype), (n, k, *space), ignore_index)
