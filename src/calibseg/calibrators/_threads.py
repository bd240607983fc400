"""Work on the parts of a stream by several threads, few parts in memory at a time, results in the stream's order.

The order is kept so that sums over parts have the same bits with any number of threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """What `work` makes of each part. Parts are read in this thread while others work on those before.

    As many threads as torch may use (OMP_NUM_THREADS, or the cores of the process); one: no thread is started.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
