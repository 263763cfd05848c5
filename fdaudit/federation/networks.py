"""The networks and training cores of a federation, by party."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fdaudit.models import Architecture
from fdaudit.rng import child, child_seed
from fdaudit.storage.digests import canonical
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Fitted, Job, Parameters, Trainer, parameters_of
from fdaudit.transcript.messages import role

__all__ = ["Networks", "Trainers"]


@dataclass(frozen=True)
class Networks:
    """The network that each party trains.

    Attributes:
        shared: network of the server, and of every client without its own.
        clients: the clients' own networks, by number; empty if all train `shared`. In a larger federation (a rehearsal)
            the list repeats from the start.
    """

    shared: Architecture
    clients: tuple[Architecture, ...] = ()

    def of(self, party: str) -> Architecture:
        """Return the network of `server` or `client/3`."""
        if role(party) != "client" or not self.clients:
            return self.shared
        return self.clients[int(party.partition("/")[2]) % len(self.clients)]

    @staticmethod
    def initial_seed(seed: int) -> int:
        """Return the seed of the server's initial parameters, which are public where it broadcasts them."""
        return child_seed(seed, "initial-parameters")

    @property
    def distinct(self) -> tuple[Architecture, ...]:
        """Return every network once, `shared` first."""
        by_key = {_key(network): network for network in (self.shared, *self.clients)}
        return tuple(by_key.values())

    def initial(self, parties: Sequence[str], seed: int) -> Mapping[str, Parameters]:
        """Return the initial parameters by party: each has its own, which are drawn whenever they are asked for."""
        return _Initial(self, tuple(parties), seed)


class _Initial(Mapping[str, Parameters]):
    """Initial parameters by party. None are held: a protocol that broadcasts a model needs the server's alone."""

    def __init__(self, networks: Networks, parties: tuple[str, ...], seed: int) -> None:
        self._networks, self._parties, self._seed = networks, parties, seed

    def __getitem__(self, party: str) -> Parameters:
        if party not in self._parties:
            raise KeyError(party)
        whose = (party,) if role(party) == "client" else ()
        stream = child(self._seed, "initial-parameters", *whose)
        return parameters_of(self._networks.of(party).build(stream))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parties)

    def __len__(self) -> int:
        return len(self._parties)


class Trainers(dict[str, Trainer]):
    """The training core of each party that may hold a model; parties with one network share one.

    Args:
        networks: the network of each party.
        execution: device, threads, strategy and memory format.
        parties: `server` and the clients.
    """

    def __init__(self, networks: Networks, execution: Execution, parties: Sequence[str]) -> None:
        cores = {_key(network): Trainer(network, execution) for network in networks.distinct}
        super().__init__()
        for party in parties:
            self[party] = cores[_key(networks.of(party))]

    def fit(self, jobs: Sequence[Job], fit: Fit) -> list[Fitted]:
        """Fit each job with its party's core, all jobs of a core in one call; results are in the jobs' order.

        Raises:
            TrainingDivergedError: a loss became NaN or infinite.
        """
        results: dict[int, Fitted] = {}
        for trainer, numbers in self._cores(jobs):
            own_jobs = [jobs[number] for number in numbers]
            results |= zip(numbers, trainer.fit(own_jobs, fit), strict=True)
        return [results[number] for number in range(len(jobs))]

    def gradients(self, jobs: Sequence[Job], fit: Fit) -> list[Fitted]:
        """Return the gradient of each job's first batch, as `Trainer.gradients` does, in the jobs' order.

        Raises:
            TrainingDivergedError: a loss is NaN or infinite.
        """
        results: dict[int, Fitted] = {}
        for trainer, numbers in self._cores(jobs):
            own_jobs = [jobs[number] for number in numbers]
            results |= zip(numbers, trainer.gradients(own_jobs, fit), strict=True)
        return [results[number] for number in range(len(jobs))]

    def predict(self, models: Mapping[str, Parameters], x: Tensor) -> dict[str, Tensor]:
        """Return logits (n, C) for samples x (n, c, h, w) of each party's model, on the CPU."""
        return {party: self[party].predict(parameters, x) for party, parameters in models.items()}

    def _cores(self, jobs: Sequence[Job]) -> list[tuple[Trainer, list[int]]]:
        """Return each core with the numbers of its jobs."""
        cores: dict[Trainer, list[int]] = {}
        for number, job in enumerate(jobs):
            cores.setdefault(self[job.party], []).append(number)
        return list(cores.items())


def _key(network: Architecture) -> str:
    described = {"name": network.name, "params": dict(network.params)}
    return hashlib.sha256(canonical(described)).hexdigest()
