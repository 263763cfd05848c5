"""Executors of a run's work, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fdaudit.audit.backend import HERE, Elsewhere
from fdaudit.errors import UsageError, nearest

__all__ = ["EXECUTORS", "elsewhere", "refuse_misfit"]


EXECUTORS = ("local", "ray")
"""Names of the executors."""


@contextmanager
def elsewhere(executor: str, workers: int | None = None, address: str | None = None) -> Iterator[Elsewhere]:
    """Yield the machines that share a run's work, by the executor's name, as long as they are needed.

    Args:
        executor: one of `EXECUTORS`.
        workers: workers of a cluster at a time; default: one per processor of the cluster.
        address: address of a cluster, as for `fdaudit.cluster.sweeps.ray_cluster`.

    Raises:
        UsageError: there is no such executor, or it is not available.
    """
    refuse_misfit(executor, address)
    if executor == "local":
        if workers is not None:
            remedy = "Set threads in the spec, or add --executor ray."
            raise UsageError("workers", workers, "is of use to Ray alone", remedy)
        yield HERE
        return
    from fdaudit.cluster.attacks import ray_elsewhere

    with ray_elsewhere(workers, address) as far:
        yield far


def refuse_misfit(executor: str, address: str | None) -> None:
    """Refuse an unknown executor, and an address without a cluster.

    Raises:
        UsageError: executor and address do not fit.
    """
    if executor not in EXECUTORS:
        raise UsageError("executor", executor, "is not a known executor", nearest(executor, EXECUTORS))
    if executor != "ray" and address is not None:
        raise UsageError("address", address, "is of use to Ray alone", "Leave it out, or add --executor ray.")
