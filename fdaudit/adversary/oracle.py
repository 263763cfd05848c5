"""Oracles: an active adversary's means of asking, as a handle with a queue and nothing behind it.

Guarantees:
  * the handle holds two queues, a budget and a word; no attribute, closure or bound method leads from it to
    a model, a vault or a split (a closure over the model would let attributes reach it);
  * a query that would pass the budget is refused before anything is asked, and again on the serving side, which
    keeps its own count: what an attack does to its handle buys no answer;
  * an answer that cannot be given fails the attack, whether or not it catches the error, and blocks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from torch.nn import functional as F

from fdaudit.errors import BudgetExceededError, FdauditError

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.types import Task

__all__ = ["Oracle", "Question", "answer", "serve"]

T = TypeVar("T")
Question = tuple["Tensor", "str | None"]
"""Samples (n, c, h, w), and whose model is asked; None: the released one."""


class Oracle:
    """The attack's side of an oracle.

    Args:
        answers: `soft` (class probabilities) or `hard` (class indices).
        budget: how many samples may be asked in all.
        models: whose models may be asked; empty: the released one.
    """

    def __init__(self, answers: str, budget: int, models: tuple[str, ...] = ()) -> None:
        self._answers, self._budget, self._models, self._spent = answers, budget, models, 0
        self._questions: Queue[Question | None] = Queue()
        self._replies: Queue[Tensor | None] = Queue()
        self._turn = Lock()  # one question at a time, so that threads of an attack never swap answers

    @property
    def answers(self) -> str:
        """`soft` or `hard`."""
        return self._answers

    @property
    def budget(self) -> int:
        """Samples that may be asked in all."""
        return self._budget

    @property
    def models(self) -> tuple[str, ...]:
        """Whose models may be asked; empty: the released one."""
        return self._models

    @property
    def spent(self) -> int:
        """Samples asked so far."""
        return self._spent

    @property
    def remaining(self) -> int:
        """Samples that may still be asked."""
        return self._budget - self._spent

    def query(self, x: Tensor, of: str | None = None) -> Tensor:
        """Answers for samples (n, c, h, w): probabilities (n, C) or classes (n,).

        Args:
            x: the samples.
            of: whose model is asked, one of `models`; None where it is the released one.

        Raises:
            BudgetExceededError: the query would pass the budget; nothing was asked.
            FdauditError: there is no such model to ask.
        """
        n = int(x.shape[0])
        if of not in (self._models or (None,)):
            raise FdauditError(f"oracle: {of} has no model to ask; there are {list(self._models) or 'none'}.")
        with self._turn:
            if n > self.remaining:
                raise BudgetExceededError(
                    f"oracle: {n} samples asked, {self.remaining} of {self._budget} remain."
                )
            self._spent += n
            self._questions.put((x.detach().cpu().clone(), of))
            reply = self._replies.get()
        if reply is None:
            raise FdauditError("oracle: the question could not be answered.")
        return reply


def answer(kind: str, logits: Tensor, task: Task = "single-label") -> Tensor:
    """What an oracle answers: probabilities (n, C), or classes (n,); multi-label, 0 and 1 for each class (n, C)."""
    if task == "multi-label":
        return logits.sigmoid() if kind == "soft" else (logits > 0).long()
    return F.softmax(logits, 1) if kind == "soft" else logits.argmax(1)


def serve(attack: Callable[[], T], oracle: Oracle, reply_to: Callable[[Tensor, str | None], Tensor]) -> T:
    """Runs `attack` in a thread of its own and answers what it asks of `oracle` in this one.

    Args:
        attack: what to run; it holds the handle, never `reply_to`.
        oracle: the handle that it was given.
        reply_to: maps samples, and whose model they are for, to answers; only this side of the queue ever sees it.

    Returns:
        What the attack returned.

    Raises:
        BudgetExceededError: more was asked than the budget allows, past the handle's own count.
        BaseException: what `reply_to` raised, or else what the attack raised.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []
    refusal: BaseException | None = None
    left, questions, replies = oracle.budget, oracle._questions, oracle._replies

    def work() -> None:
        try:
            outcome.append(attack())
        except BaseException as error:  # carried to the caller's thread, where it is raised
            failure.append(error)
        finally:
            questions.put(None)

    thread = Thread(target=work, name="attack", daemon=True)
    thread.start()
    # An attack may catch a refusal and ask again: every question gets a reply, or it would wait for ever.
    while (question := questions.get()) is not None:
        reply = None
        if refusal is None:
            try:
                x, of = question
                left -= len(x)
                if left < 0:
                    raise BudgetExceededError(f"oracle: more was asked than the budget of {oracle.budget}.")
                reply = reply_to(x, of)
            except BaseException as error:  # raised below, once the attack has ended
                refusal = error
        replies.put(reply)
    thread.join()
    if refusal is not None:
        raise refusal
    if failure:
        raise failure[0]
    return outcome[0]
