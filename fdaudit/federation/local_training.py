"""Training on a client's own records: the one way in which protocols fit models to private data.

Under a training defence what is learnt is a release, on record inside the party; whatever is computed from the model
names that release in place of the records. `Basis` is what a message computed from a model has to declare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.training.jobs import Fit, Fitted, Job
from fdaudit.training.private_step import Guard
from fdaudit.transcript.messages import ALL, DATA, Inputs

if TYPE_CHECKING:
    from fdaudit.federation.networks import Trainers
    from fdaudit.transcript.wire import Wire
    from fdaudit.types import Trained

__all__ = ["Basis", "LocalTrainings", "basis_from_tensor", "basis_to_tensor", "joined"]

Basis = Inputs
"""What a model was made from: `"data"` and the `seq` of messages and releases, or all that its party held."""

_DATA = -1


class LocalTrainings:
    """Fits clients' models to their own records, under the training defences that the wire carries.

    Args:
        trainers: the training core of each party.
        wire: where releases are put on record; its training defences act here.
    """

    def __init__(self, trainers: Trainers, wire: Wire) -> None:
        self._trainers, self._wire = trainers, wire

    def defended(self, of: Trained = "model") -> bool:
        """Whether a training defence acts on what clients train."""
        return of in self._wire.training

    def guard(self, party: str, length: Mapping[str, int | None], of: Trained = "model") -> Guard | None:
        """The guard of one training of a party's, with coins of its own; None without a defence.

        Every guard must be followed by its `release` before the party is given another of the same kind.

        Args:
            party: who trains.
            length: `steps` or `epochs`.
            of: what is trained.
        """
        rule = self._wire.training.get(of)
        if rule is None:
            return None
        return Guard(rule, self._wire.coins(of, party), rule.steps(length))

    def release(self, party: str, guard: Guard | None, *, inputs: Basis, of: Trained = "model") -> Basis:
        """Puts a training on record and returns the basis of what came out of it.

        Args:
            party: who has trained.
            guard: what it trained under; None puts nothing on record.
            inputs: what went into the training besides the records: the basis of the model that it started from,
                and messages that it learnt from.
            of: what was trained.
        """
        behind = joined((DATA,), inputs)
        if guard is None:
            return behind
        described = {**guard.rule.describe(), "of": of}
        return (self._wire.release(party, guard.rule.event(guard.steps), inputs=behind, described=described),)

    def fit(
        self,
        jobs: Sequence[Job],
        fit: Fit,
        *,
        length: Mapping[str, int | None],
        inputs: Mapping[str, Basis],
    ) -> tuple[list[Fitted], dict[str, Basis]]:
        """Fits each job's model to its party's own records.

        Args:
            jobs: one a party; under a defence their batches are drawn anew by secret coins.
            fit: how they are fitted.
            length: `steps` or `epochs` of each, from which a defence takes the number of its steps.
            inputs: by party, what its job was made from besides the records.

        Returns:
            What was fitted, in the jobs' order, and by party the basis of its new model.

        Raises:
            TrainingDivergedError: a loss, or under a defence a parameter, became NaN or infinite.
        """
        return self._trained(self._trainers.fit, jobs, fit, length, inputs)

    def gradients(
        self, jobs: Sequence[Job], fit: Fit, *, inputs: Mapping[str, Basis]
    ) -> tuple[list[Fitted], dict[str, Basis]]:
        """The gradient of each job's model on one batch of its party's own records; like `fit` with one step.

        Raises:
            TrainingDivergedError: a loss, or under a defence the gradient, is NaN or infinite.
        """
        return self._trained(self._trainers.gradients, jobs, fit, {"steps": 1}, inputs)

    def _trained(
        self,
        run: Callable[[Sequence[Job], Fit], list[Fitted]],
        jobs: Sequence[Job],
        fit: Fit,
        length: Mapping[str, int | None],
        inputs: Mapping[str, Basis],
    ) -> tuple[list[Fitted], dict[str, Basis]]:
        guards = {job.party: self.guard(job.party, length) for job in jobs}
        guarded = [replace(job, guard=guards[job.party]) for job in jobs]
        fitted = run(guarded, fit)
        return fitted, {k: self.release(k, guards[k], inputs=inputs[k]) for k in guards}


def joined(*parts: Basis | Sequence[int]) -> Basis:
    """One basis of several, each input once in order of first mention; all that is held, where one part says so."""
    if ALL in parts:
        return ALL
    return tuple(dict.fromkeys(i for part in parts for i in part))


def basis_to_tensor(basis: Basis) -> Tensor:
    """A basis as int64 (n,), to be kept between rounds; the records are -1.

    Raises:
        ValueError: the basis is all that the party held, which has no numbers.
    """
    if basis == ALL:
        raise ValueError("basis_to_tensor: the basis is 'all'. Keep it by keeping nothing.")
    return torch.tensor([_DATA if i == DATA else int(i) for i in basis], dtype=torch.int64)


def basis_from_tensor(kept: Tensor) -> Basis:
    """The basis that `basis_to_tensor` wrote."""
    return tuple(DATA if i == _DATA else i for i in kept.tolist())
