"""Training on a client's own records: the only way in which protocols fit models to private data.

Under a training defence the trained model is a release, recorded inside the party. All values computed from the model
then name that release in place of the records. `Basis` is the list of inputs that such a message declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from fdaudit.federation.networks import Trainers
from fdaudit.training.jobs import Fit, Fitted, Job
from fdaudit.training.private_step import Guard
from fdaudit.transcript.messages import ALL, DATA, Inputs
from fdaudit.transcript.wire import Wire
from fdaudit.types import Trained

__all__ = ["Basis", "LocalTrainings", "joined"]

Basis = Inputs
"""The inputs of a model: `"data"` and the `seq` of messages and releases, or all that its party held."""


class LocalTrainings:
    """Fits clients' models to their own records, under the training defences that the wire carries.

    Args:
        trainers: the training core of each party.
        wire: records releases; its training defences act here.
    """

    def __init__(self, trainers: Trainers, wire: Wire) -> None:
        self._trainers, self._wire = trainers, wire

    def defended(self, of: Trained = "model") -> bool:
        """Return whether a training defence acts on the clients' training."""
        return of in self._wire.training

    def guard(self, party: str, length: Mapping[str, int | None], of: Trained = "model") -> Guard | None:
        """Return the guard of one training of a party, with its own coins; None without a defence.

        Every guard must be followed by its `release` before the party is given another of the same kind.

        Args:
            party: the training party.
            length: `steps` or `epochs`.
            of: the trained object.
        """
        rule = self._wire.training.get(of)
        if rule is None:
            return None
        return Guard(rule, self._wire.coins(of, party), rule.steps(length))

    def release(self, party: str, guard: Guard | None, *, inputs: Basis, of: Trained = "model") -> Basis:
        """Record a training and return the basis of its output.

        Args:
            party: the party that trained.
            guard: the guard of the training; None records nothing.
            inputs: inputs of the training other than the records: the basis of its initial model, and the messages
                used.
            of: the trained object.
        """
        behind = joined((DATA,), inputs)
        if guard is None:
            return behind
        event, described = guard.rule.event(guard.steps), {**guard.rule.describe(), "of": of}
        seq = self._wire.release(party, event, inputs=behind, described=described)
        return (seq,)

    def fit(
        self,
        jobs: Sequence[Job],
        fit: Fit,
        *,
        length: Mapping[str, int | None],
        inputs: Mapping[str, Basis],
    ) -> tuple[list[Fitted], dict[str, Basis]]:
        """Fit each job's model to its party's own records.

        Args:
            jobs: one per party; under a defence their batches are drawn again by secret coins.
            fit: settings of the training.
            length: `steps` or `epochs` of each; a defence derives its number of steps from it.
            inputs: by party, the inputs of its job other than the records.

        Returns:
            The fitted models in the jobs' order, and by party the basis of its new model.

        Raises:
            TrainingDivergedError: a loss, or under a defence a parameter, became NaN or infinite.
        """
        guarded = self._guarded(jobs, length)
        return self._trainers.fit(guarded, fit), self._released(guarded, inputs)

    def gradients(
        self, jobs: Sequence[Job], fit: Fit, *, inputs: Mapping[str, Basis]
    ) -> tuple[list[Fitted], dict[str, Basis]]:
        """Return the gradient of each job's model on one batch of its party's own records; like `fit` with one step.

        Raises:
            TrainingDivergedError: a loss, or under a defence the gradient, is NaN or infinite.
        """
        guarded = self._guarded(jobs, {"steps": 1})
        return self._trainers.gradients(guarded, fit), self._released(guarded, inputs)

    def _guarded(self, jobs: Sequence[Job], length: Mapping[str, int | None]) -> list[Job]:
        return [replace(job, guard=self.guard(job.party, length)) for job in jobs]

    def _released(self, guarded: Sequence[Job], inputs: Mapping[str, Basis]) -> dict[str, Basis]:
        basis: dict[str, Basis] = {}
        for job in guarded:
            basis[job.party] = self.release(job.party, job.guard, inputs=inputs[job.party])
        return basis


def joined(*parts: Basis | Sequence[int]) -> Basis:
    """Return the union of bases, in order of first mention; `ALL` if any part is `ALL`."""
    if ALL in parts:
        return ALL
    return tuple(dict.fromkeys(chain.from_iterable(parts)))
