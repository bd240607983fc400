"""Compiled loops on torch's own OpenMP threads; and memory by its address.

A kernel is a C function of one pointer, `job`: int64 numbers, among them addresses of tensors. `run_on_all(kernel,
job)` has each of torch's threads call it, and `thread`, `threads` tell a kernel which one it runs on.
"""

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import torch
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from calibseg.core.types import Array


def _openmp() -> ctypes.CDLL:
    """The OpenMP that torch was linked with: a library also finds the names of those that it needs."""
    if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
        raise ImportError("numba is told not to compile")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        for name in ("omp_get_thread_num", "omp_get_num_threads"):
            llvm.add_symbol(f"calibseg_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
    except (OSError, AttributeError) as error:
        raise ImportError(f"this torch has no OpenMP that compiled loops can use: {error}") from None
    return library


_LIBRARY = _openmp()
thread = types.ExternalFunction("calibseg_omp_get_thread_num", types.int32())
threads = types.ExternalFunction("calibseg_omp_get_num_threads", types.int32())


def run_on_all(kernel: int | None, job: Array) -> None:
    """Call the kernel at this address on each thread that torch would use; returns when all are done."""
    assert job.dtype == np.int64
    _LIBRARY.GOMP_parallel(kernel, job.ctypes.data, torch.get_num_threads(), 0)


@intrinsic
def _at_address(typing_context, address):
    return types.voidptr(address), lambda _, builder, __, given: builder.inttoptr(given[0], cgutils.voidptr_t)


at_address: Any = _at_address  # in compiled loops: an integer as a pointer
