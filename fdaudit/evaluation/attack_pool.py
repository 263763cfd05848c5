"""The processes of this machine that run attack cells; loaded in no time, so that they can be started first of all."""

from __future__ import annotations

import os
import secrets
from functools import cache

from fdaudit.parallel.pool import Pool, processors, standing_pool
from fdaudit.storage.cache import BYTES, DIRECTORY, KEY
from fdaudit.storage.scratch import new_folder

__all__ = ["attack_pool", "dismiss", "stand_by"]

_WORKER = "fdaudit.evaluation.attack_worker"
_MOST_IN_COMMON = 1 << 30
"""Bytes that processes keep for each other where the user names no directory."""


def attack_pool(size: int) -> Pool:
    """The processes, the same ones whenever as many are asked for; none is started before it is needed."""
    return standing_pool(_WORKER, size, _in_common())


def stand_by() -> None:
    """Starts the processes that a run of as many threads as usual will ask for; none for one thread."""
    if processors() > 1:
        attack_pool(processors()).stand_by()


def dismiss() -> None:
    """Ends them, where it turns out that nobody will ask."""
    attack_pool(processors()).close()


@cache
def _in_common() -> dict[str, str]:
    """Where processes keep what one of them has computed for all; as long as this process lasts, if none is named."""
    if os.environ.get(DIRECTORY):
        return {}
    return {DIRECTORY: str(new_folder("cache")), BYTES: str(_MOST_IN_COMMON), KEY: secrets.token_hex(32)}
