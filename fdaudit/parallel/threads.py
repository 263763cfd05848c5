"""Run independent tasks side by side on CPU threads.

Threads inside one operation wait for each other at its end, and a small network runs many operations a millisecond.
Next to another busy process this makes a training step up to a hundred times slower. Here each independent task has
one thread, and no thread waits for another.

Guarantees:
  * results are in the order of the tasks, and each equals the result of one thread alone;
  * the calling thread's own number of threads is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

__all__ = ["side_by_side"]

Means = TypeVar("Means")
Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Means, Piece], Result], pieces: Sequence[Piece], means: Sequence[Means]
) -> list[Result]:
    """Return `work(m, piece)` for every piece, with as many threads as there are `means`.

    Args:
        work: changes only what its first argument holds, and uses no global randomness.
        pieces: the tasks.
        means: one resource for each thread; only one thread uses it at a time.

    Raises:
        Exception: the error of the first piece that failed; pieces that have not begun are dropped.
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
