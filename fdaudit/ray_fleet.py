"""Groups of clients, and of shadow models, on the workers of a Ray cluster.

A group goes as what fits it: the network's name and settings, the memory format, each job's tensors and batches.
Tensors travel as safetensors in Ray's object store; what several jobs have in common, or the core that asks has sent
for its last jobs, is put there once.

Guarantees:
  * what comes back is what one thread here would have made, bit for bit, given the same versions and processors;
  * a group whose worker is lost is fitted again, at most `fdaudit.ray_tasks.RETRIES` times; then the training stops;
  * the fleet keeps nothing of what it has sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from fdaudit import ray_tasks
from fdaudit.errors import RunError
from fdaudit.execution import Execution
from fdaudit.jobs import Fit, Fitted, Job
from fdaudit.models import Architecture
from fdaudit.ray_worker import prepare, surroundings, versions
from fdaudit.storage import decode, encode
from fdaudit.training import Trainer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Group", "RayFleet", "fit_group"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Jobs as plain values. Tensors are named by the number of the payload that holds them.

    Attributes:
        network: name, parameters, shape of an image and number of classes.
        memory_format: of the tensors that are trained on.
        fit: how, as JSON.
        jobs: of each job its party, its seed and the numbers of its payloads; None where it has none.
        names: of each payload the names of its tensors in their order, which safetensors do not keep.
        versions: of the packages that decide results, on the machine that asks.
        surroundings: its variables for threads and devices.
    """

    network: tuple[str, Mapping[str, Any], tuple[int, int, int], int]
    memory_format: Literal["contiguous", "channels_last"]
    fit: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]]
    names: Sequence[Sequence[str]]
    versions: Mapping[str, str]
    surroundings: Mapping[str, str | None]


_Made = tuple[bytes, list[str], list[str]]
"""Losses, parameters and moments of a fitted job as one payload, and the names of both in their order."""


class RayFleet:
    """Workers of a Ray cluster that fit groups of jobs; see `fdaudit.fleet.Fleet`.

    Args:
        size: connects to the cluster and says how many groups it fits at a time.
    """

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size

    @property
    def size(self) -> int:
        """Groups at a time."""
        return self._size()

    def fit(
        self,
        network: Architecture,
        execution: Execution,
        groups: Sequence[Sequence[Job]],
        fit: Fit,
        sent: dict[str, Any],
    ) -> list[list[Fitted]]:
        """Fits each group on a worker.

        Raises:
            RunError: a group could not be fitted, or its workers were lost too often.
        """
        import ray

        store = _Store(sent)
        task = ray.remote(fit_group).options(num_cpus=1, max_retries=ray_tasks.RETRIES)
        under_way = list[Any]()
        try:
            for jobs in groups:
                group, payloads = _group(network, execution, jobs, fit, store)
                under_way.append(task.remote(group, *payloads))
            store.forget_others()
            found = ray.get(under_way)
        except ray.exceptions.RayError as error:
            raise _not_fitted(f"{type(error).__name__}; tried again {ray_tasks.RETRIES} times") from None
        finally:
            _stop(under_way)
        for values in found:
            if isinstance(values, str):
                raise _not_fitted(values)
        return [
            [_fitted(job, *made) for job, made in zip(jobs, values, strict=True)]
            for jobs, values in zip(groups, found, strict=True)
        ]


def _stop(under_way: list[Any]) -> None:
    """Ends the workers of what has not ended. Ray ends this process where a task is cancelled as it ends."""
    import ray

    many = len(under_way)
    at_work = under_way and ray.wait(under_way, num_returns=many, timeout=0, fetch_local=False)[1]
    for ref in at_work:
        with suppress(ray.exceptions.RayError):
            ray.cancel(ref, force=True)


def _not_fitted(why: str) -> RunError:
    problem = f"could not fit a group of models ({why})"
    return RunError("executor", "ray", problem, "Go on with --resume, or without Ray.")


def fit_group(group: Group, *payloads: bytes) -> list[_Made] | str:
    """What a worker does with a group: fits each job on one thread.

    Returns:
        What came of each job; or what went wrong, since few errors survive the way back.
    """
    try:
        prepare(group.versions, group.surroundings)
        name, params, shape, classes = group.network
        execution = Execution(device="cpu", threads=1, strategy="loop", memory_format=group.memory_format)
        execution.begin()
        trainer = Trainer(Architecture(name, params, shape, classes), execution)
        opened = [_ordered(decode(data), names) for data, names in zip(payloads, group.names, strict=True)]
        jobs = [_job(described, opened) for described in group.jobs]
        return [_made(fitted) for fitted in trainer.fit_each(jobs, Fit(**group.fit))]
    except Exception as error:  # whatever it is, it is this training's
        return f"{type(error).__name__}: {error}"


# -- what is sent ----------------------------------------------------------------------------------------------


class _Store:
    """Payloads in Ray's object store, each once by its content."""

    def __init__(self, sent: dict[str, Any]) -> None:
        self._sent = sent
        self._used = set[str]()
        # With the tensors, so that no other tensor takes the place of one in memory.
        self._known: dict[tuple[int, ...], tuple[str, Sequence[Tensor]]] = {}

    def put(self, tensors: Mapping[str, Tensor]) -> tuple[str, Any]:
        """The payload's digest, and what it is exchanged for."""
        import ray

        known = tuple(id(t) for t in tensors.values())
        if known not in self._known:
            data = encode(tensors)
            digest = hashlib.sha256(data).hexdigest()
            if digest not in self._sent:
                self._sent[digest] = ray.put(data)
            self._known[known] = digest, tuple(tensors.values())
            self._used.add(digest)
        digest, _ = self._known[known]
        return digest, self._sent[digest]

    def forget_others(self) -> None:
        """Lets go of what these jobs had no use for."""
        for digest in self._sent.keys() - self._used:
            del self._sent[digest]


def _group(
    network: Architecture, execution: Execution, jobs: Sequence[Job], fit: Fit, store: _Store
) -> tuple[Group, list[Any]]:
    """The jobs as plain values, and their payloads."""
    numbers, payloads, names = dict[str, int](), list[Any](), list[list[str]]()

    def number(tensors: Mapping[str, Tensor] | None) -> int | None:
        if tensors is None:
            return None
        digest, ref = store.put(tensors)
        key = f"{digest} {list(tensors)}"
        if key not in numbers:
            numbers[key] = len(payloads)
            payloads.append(ref)
            names.append(list(tensors))
        return numbers[key]

    described = [
        {
            "party": job.party,
            "seed": job.seed,
            "parameters": number(job.parameters),
            "x": number({"x": job.x}),
            "targets": number({"targets": job.targets}),
            "batches": number(_batches(job)),
            "anchor": number(job.anchor),
            "moments": number(job.moments),
        }
        for job in jobs
    ]
    group = Group(
        network=(network.name, dict(network.params), network.input_shape, network.classes),
        memory_format=execution.memory_format,
        fit=fit.model_dump(mode="json"),
        jobs=described,
        names=names,
        versions=versions(),
        surroundings=surroundings(),
    )
    return group, payloads


def _batches(job: Job) -> dict[str, Tensor]:
    """All batches as one tensor, and how long each is."""
    nothing = torch.zeros(0, dtype=torch.int64)
    lengths = torch.tensor([len(b) for b in job.batches], dtype=torch.int64)
    return {
        "index": torch.cat([nothing, *(b.cpu() for b in job.batches)]),
        "lengths": lengths,
    }


def _job(described: Mapping[str, Any], opened: Sequence[dict[str, Tensor]]) -> Job:
    """The job that was described."""

    def of(what: str) -> dict[str, Tensor] | None:
        return None if described[what] is None else opened[described[what]]

    batches = opened[described["batches"]]
    return Job(
        party=described["party"],
        parameters=opened[described["parameters"]],
        x=opened[described["x"]]["x"],
        targets=opened[described["targets"]]["targets"],
        batches=batches["index"].split(batches["lengths"].tolist()),
        anchor=of("anchor"),
        seed=described["seed"],
        moments=of("moments"),
    )


def _made(fitted: Fitted) -> _Made:
    """What goes back of a job."""
    tensors = {"losses": fitted.losses}
    tensors |= {f"parameters/{n}": t for n, t in fitted.parameters.items()}
    tensors |= {f"moments/{n}": t for n, t in fitted.moments.items()}
    return encode(tensors), list(fitted.parameters), list(fitted.moments)


def _fitted(job: Job, data: bytes, parameter_names: list[str], moment_names: list[str]) -> Fitted:
    """What came back of a job; its batches are as they were."""
    tensors = decode(data)
    parameters = {n: tensors[f"parameters/{n}"] for n in parameter_names}
    moments = {n: tensors[f"moments/{n}"] for n in moment_names}
    return Fitted(parameters, tensors["losses"], moments, job.batches)


def _ordered(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}
