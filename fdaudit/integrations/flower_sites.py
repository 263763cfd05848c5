"""At a client of Flower: note which records are behind a reply, in a directory of the client's own site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord

from .truth import hold_dataset, note_uses

__all__ = ["note_records", "noting"]

Mod: TypeAlias = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

_HELD = "fdaudit.held"
"""In a client's state: its records were written to the truth in this run."""


def note_records(
    message: Message,
    context: Context,
    truth: str | Path,
    dataset: Any = None,
    *,
    held_out: Any = None,
    ids: Any = None,
    site: int | str | None = None,
) -> None:
    """Note at the client's own site which of its records are behind the reply to a message. Nothing of it travels.

    Args:
        message: the instruction that the client answers.
        context: the client's context.
        truth: the site's own directory of the truth.
        dataset: the site's records, as a `DataLoader` takes them. They are written to `truth` once in a run.
        held_out: another dataset, of records that the site never trains on: candidates of membership attacks.
        ids: numbers of the records that were used, as the site counts them. Default: all of `dataset`.
        site: the site's number or name. Default: `partition-id` of the node's configuration, or the node's identifier.

    Raises:
        ValueError: neither a dataset nor numbers are given, or one of them is refused.
    """
    if dataset is None and ids is None:
        raise ValueError("dataset: neither a dataset nor ids are given. Give one of them.")
    if ids is None:
        numbers = list(range(len(dataset)))
    else:
        numbers = []
        for value in ids.tolist() if hasattr(ids, "tolist") else list(ids):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ValueError(f"ids: {value!r} is no number of a record. Give a list such as [0, 1].")
            numbers.append(int(value))
    if site is None:
        site = context.node_config.get("partition-id", context.node_id)
    directory, name = Path(truth), str(site)
    if dataset is not None and _HELD not in context.state:
        hold_dataset(directory, name, dataset, held_out)
        context.state[_HELD] = MetricRecord({"records": len(dataset)})
    note_uses(directory, message.metadata.message_id, name, numbers)


def noting(truth: str | Path | Callable[[Context], str | Path], key: str = "fdaudit.records") -> Mod:
    """Return a mod that calls `note_records` for clients of Flower's older interface, which see no message.

    Such a client lists its records in its state: `context.state[key] = ConfigRecord({"ids": [17, 42]})`. A state never
    leaves its node, and the mod removes the list.

    Args:
        truth: the site's own directory of the truth, or a function of the context that returns it.
        key: name of the record in the client's state.
    """

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        context.state.pop(key, None)  # left by a reply that failed
        reply = call_next(message, context)
        record = context.state.pop(key, None)
        if record is None:
            return reply
        ids = None
        if isinstance(record, ConfigRecord):
            ids = record.get("ids")
        directory = truth
        if callable(directory):
            directory = directory(context)
        note_records(message, context, directory, ids=ids or [None])
        return reply

    return mod
