r"""Calibration statistics in loops that numba compiles: one pass over the scores. Entry point: `numba_pass`.

**What is counted** is what `torch_pass` counts, to the bit but for the last bits of the NLL: of every (voxel, class)
pair its count, the sum of round(p 2^32), the sum of round((p - y)^2 2^32), by cell, hit, predicted, class and bin (see
`calibration`); of every voxel -log p of its label in units of 2^-40, and whether that was clipped. A cell more takes
the ignored voxels and is thrown away, so that loops need not ask.

**How a volume is read** (`one_pass`). Each thread takes chunks of 2^17 voxels, with tables of its own; a chunk is
worked on in blocks of 256 voxels, whose numbers stay in the processor's first cache. For a block

1. scores become float64 probabilities and their float32 roundings, which decide bin and prediction (`maths`);
2. the least and largest p of each class are found: most blocks of a volume are sure background, in which a class is
   predicted everywhere or nowhere and all its p lie in one bin; labels and sums that cannot be are refused;
3. each class is added to the tables (`sums`): where the whole block falls into one place, two sums by vector
   instructions and one addition to the table; else pair by pair;
4. -log p of the labels is added.

**Why packed.** Adding a pair touches memory at random, which costs more than all arithmetic. So a count and a sum are
one int64: counts above bit 48, the sum below, and one addition does both. Neighbours go to two tables in turn, because
an addition to the place that was just written waits for it. After 2^15 voxels, before anything can overflow, `unpack`
moves them to tables with room, and `carry` moves whole nats out of the fractions.

**Equal-mass bins** need a fine histogram (`histogram`), filled by the same pass: a place there is named by the high
bits of p, and holds the sum of its low bits. Where every p is a float32 number as stored, bins follow from the
histogram, and a pair is added once instead of twice. What buckets occur in each block is noted, so that the second
pass (`equal_mass`) opens only blocks that hold a cut.

Loops are written so that LLVM vectorises them: numbers that are compared have one width, branches are taken per block
and not per voxel, bits of floats are reached through views of the same memory. Arrays travel in named tuples (`Room`),
whose types numba knows; functions that are called once are inlined, or compiling takes half as long again. What was
compiled from other sources is thrown away (`core/numba_cache`).
"""

from calibseg.metrics.statistics.binning.numba.one_pass import numba_pass

__all__ = ["numba_pass"]
