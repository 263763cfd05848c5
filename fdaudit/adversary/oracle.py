"""Oracles: an active adversary's handle for queries, which holds a queue and no model.

Guarantees:
  * the handle holds two queues, a budget and a word; no attribute, closure or bound method leads from it to a model,
    a vault or a split (attributes would reach a model through a closure over it);
  * a question without samples costs as much as one with one;
  * a query that would exceed the budget is refused before anything is asked. The serving side keeps its own count and
    refuses it again: tampering with the handle buys no answer;
  * an answer that cannot be given fails the attack, even if the attack catches the error, and blocks no process.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from fdaudit.errors import BudgetExceededError, FdauditError
from fdaudit.tasks import SINGLE_LABEL, Labels

if TYPE_CHECKING:
    from torch import Tensor


__all__ = ["Oracle", "Question", "answer", "serve"]

T = TypeVar("T")
Question = tuple["Tensor", "str | None"]
"""Samples (n, c, h, w), and the party whose model is asked; None for the released model."""


class Oracle:
    """The attack's side of an oracle.

    Args:
        answers: `soft` (class probabilities) or `hard` (class indices).
        budget: total number of samples that may be asked.
        models: the parties whose models may be asked; empty for the released model.
    """

    def __init__(self, answers: str, budget: int, models: tuple[str, ...] = ()) -> None:
        self._answers, self._budget, self._models, self._spent = answers, budget, models, 0
        self._questions: Queue[Question | None] = Queue()
        self._replies: Queue[Tensor | None] = Queue()
        self._turn = Lock()  # one question at a time, so that threads of an attack never swap answers

    @property
    def answers(self) -> str:
        """Return the kind of answers: `soft` or `hard`."""
        return self._answers

    @property
    def budget(self) -> int:
        """Return the total number of samples that may be asked."""
        return self._budget

    @property
    def models(self) -> tuple[str, ...]:
        """Return the parties whose models may be asked; empty for the released model."""
        return self._models

    @property
    def spent(self) -> int:
        """Return the number of samples asked so far."""
        return self._spent

    @property
    def remaining(self) -> int:
        """Return the number of samples that may still be asked."""
        return self._budget - self._spent

    def query(self, x: Tensor, of: str | None = None) -> Tensor:
        """Return the answers for samples (n, c, h, w): probabilities (n, C) or classes (n,).

        Args:
            x: the samples.
            of: the party whose model is asked, one of `models`; None for the released model.

        Raises:
            BudgetExceededError: the query would pass the budget; nothing was asked.
            FdauditError: there is no such model to ask.
        """
        n = max(1, int(x.shape[0]))
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


_LARGE = 1e4
"""A logit in place of infinity: a softmax over it is still finite in single precision."""


def answer(kind: str, logits: Tensor, labels: Labels = SINGLE_LABEL.labels) -> Tensor:
    """Return an oracle's answer to samples whose labels have this form: probabilities if `soft`, else labels.

    A model may answer with values beyond all numbers, as BatchNorm's statistics after one step make it. They are read
    as very large ones, and what is no number as 0, so that its other answers still count.
    """
    logits = logits.nan_to_num(0.0, _LARGE, -_LARGE)
    return labels.probabilities(logits) if kind == "soft" else labels.predicted(logits)


def serve(attack: Callable[[], T], oracle: Oracle, reply_to: Callable[[Tensor, str | None], Tensor]) -> T:
    """Run `attack` in a separate thread and answer its queries to `oracle` in this thread.

    Args:
        attack: the attack; it holds the handle, never `reply_to`.
        oracle: the handle that the attack was given.
        reply_to: maps samples and a party to that party's answers; the attack's side of the queue never sees it.

    Returns:
        The attack's return value.

    Raises:
        BudgetExceededError: the attack bypassed the handle's count and asked more than the budget allows.
        BaseException: the exception of `reply_to` or of the attack.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []
    refusal: BaseException | None = None
    budget, questions, replies = oracle.budget, oracle._questions, oracle._replies

    def work() -> None:
        try:
            outcome.append(attack())
        except BaseException as error:  # carried to the caller's thread, where it is raised
            failure.append(error)
        finally:
            questions.put(None)

    thread = Thread(target=work, name="attack", daemon=True)
    thread.start()
    # An attack may catch a refusal and ask again: every question needs a reply, or the attack would hang.
    while (question := questions.get()) is not None:
        reply = None
        if refusal is None:
            try:
                x, of = question
                budget -= max(1, len(x))
                if budget < 0:
                    raise BudgetExceededError(f"oracle: more was asked than the budget of {oracle.budget}.")
                reply = reply_to(x, of)
            except BaseException as error:  # raised below, after the attack has ended
                refusal = error
        replies.put(reply)
    thread.join()
    if refusal is not None:
        raise refusal
    if failure:
        raise failure[0]
    return outcome[0]
