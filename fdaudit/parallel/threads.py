"""Independent pieces of work side by side on the threads of a CPU.

Threads inside an operation wait for each other at its end, and small networks end many operations a
millisecond: next to another busy process that makes a training step up to a hundred times slower. Pieces of
work that owe each other nothing have a thread each instead, and none ever waits.

Guarantees:
  * results come in the order of the pieces, and each is what one thread alone would have computed;
  * the calling thread's own number of threads is as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import RLock
from typing import TypeVar

import torch

__all__ = ["forked_randomness", "side_by_side"]

Means = TypeVar("Means")
Piece = TypeVar("Piece")
Result = TypeVar("Result")


_turn = RLock()


@contextmanager
def forked_randomness(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Puts PyTorch's global generators back at the end; one thread at a time, or draws would mix.

    Args:
        devices: accelerators whose generators are put back as well.
    """
    with _turn, torch.random.fork_rng(devices=list(devices)):
        yield


def side_by_side(
    work: Callable[[Means, Piece], Result], pieces: Sequence[Piece], means: Sequence[Means]
) -> list[Result]:
    """`work(m, piece)` for every piece, as many at a time as there are means to do it with.

    Args:
        work: must change nothing but what its first argument holds, and use no global randomness.
        pieces: what to work on.
        means: one for each thread; each is in one thread's hands at a time.

    Raises:
        Exception: what `work` raised for the first piece that failed; pieces not yet begun are dropped.
    """
    free: SimpleQueue[Means] = SimpleQueue()
    for one in means:
        free.put(one)

    def run(piece: Piece) -> Result:
        mine = free.get()
        try:
            return work(mine, piece)
        finally:
            free.put(mine)

    threads = torch.get_num_threads()
    try:
        # A new thread would start with as many OpenMP threads as there are processors.
        with ThreadPoolExecutor(len(means), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(run, pieces))
    finally:
        torch.set_num_threads(threads)  # part of what the workers set holds for the whole process
