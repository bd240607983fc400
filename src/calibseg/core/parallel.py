"""Work on the parts of a stream by several threads, few parts in memory at a time, results in the stream's order.

The order is kept so that what is made of the results, such as a sum, has the same bits with any number of threads.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
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
