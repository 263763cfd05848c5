"""Oracles: an active adversary's means of asking, as a handle with a queue and nothing behind it.

Guarantees:
  * the handle holds two queues, a budget and a word; no attribute, closure or bound method leads from it to
    a model, a vault or a split (a closure over the model would let attributes reach it);
  * a query that would pass the budget is refused before anything is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from fdaudit.errors import BudgetExceededError, FdauditError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Oracle", "serve"]

T = TypeVar("T")


class Oracle:
    """The attack's side of an oracle.

    Args:
        answers: `soft` (class probabilities) or `hard` (class indices).
        budget: how many samples may be asked in all.
    """

    def __init__(self, answers: str, budget: int) -> None:
        self._answers, self._budget, self._spent = answers, budget, 0
        self._questions: Queue[Tensor | None] = Queue()
        self._replies: Queue[Tensor | None] = Queue()

    @property
    def answers(self) -> str:
        """`soft` or `hard`."""
        return self._answers

    @property
    def budget(self) -> int:
        """Samples that may be asked in all."""
        return self._budget

    @property
    def spent(self) -> int:
        """Samples asked so far."""
        return self._spent

    @property
    def remaining(self) -> int:
        """Samples that may still be asked."""
        return self._budget - self._spent

    def query(self, x: Tensor) -> Tensor:
        """Answers for samples (n, c, h, w): probabilities (n, C) or classes (n,).

        Raises:
            BudgetExceededError: the query would pass the budget; nothing was asked.
        """
        n = int(x.shape[0])
        if n > self.remaining:
            raise BudgetExceededError(
                f"oracle: {n} samples asked, {self.remaining} of {self._budget} remain."
            )
        self._spent += n
        self._questions.put(x.detach().cpu().clone())
        reply = self._replies.get()
        if reply is None:
            raise FdauditError("oracle: the question could not be answered.")
        return reply


def serve(attack: Callable[[], T], oracle: Oracle, answer: Callable[[Tensor], Tensor]) -> T:
    """Runs `attack` in a thread of its own and answers what it asks of `oracle` in this one.

    Args:
        attack: what to run; it holds the handle, never `answer`.
        oracle: the handle that it was given.
        answer: maps samples to answers; only this side of the queue ever sees it.

    Returns:
        What the attack returned; what it raised is raised here.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(attack())
        except BaseException as error:  # carried to the caller's thread, where it is raised
            failure.append(error)
        finally:
            oracle._questions.put(None)

    thread = Thread(target=work, name="attack", daemon=True)
    thread.start()
    while (question := oracle._questions.get()) is not None:
        try:
            oracle._replies.put(answer(question))
        except BaseException:
            oracle._replies.put(None)
            thread.join()
            raise
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
