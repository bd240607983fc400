"""Work shared by threads or processes.

`ordered_map` keeps the order of a stream, so that what is made of the results, such as a sum, has the same bits
with any number of threads.
"""

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def ordered_map(
    work: Callable[[Part], Result], parts: Iterable[Part], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """What `work` makes of each part. Parts are read in this thread while others work on those before.

    threads: 0 starts none
    ahead: so many parts at most are worked on, or wait, while a result is used
    """
    if not threads:
        yield from map(work, parts)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextlib.contextmanager
def process_pool(workers: int, threads: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, because threads do not survive a fork. Whatever ends the block, nothing more is started.

    threads: that torch uses in each of them; None: they do without torch
    """
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker, (threads,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
