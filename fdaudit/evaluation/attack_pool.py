"""The local processes that run attack cells; the module loads fast, so that they can start first."""

from __future__ import annotations

import os
import secrets
import sys
from functools import cache
from threading import active_count

from fdaudit.parallel.memory import fitting
from fdaudit.parallel.pool import Pool, processors, standing_pool
from fdaudit.storage.cache import BYTES, DIRECTORY, KEY, handed_on
from fdaudit.storage.scratch import new_folder

__all__ = ["attack_pool", "common_cache", "dismiss", "fork_attacker", "stand_by"]

_WORKER = "fdaudit.evaluation.attack_worker"
_MOST_IN_COMMON = 1 << 30
"""Bytes of the shared cache if the user names no directory."""


def attack_pool(size: int) -> Pool:
    """Return the pool of a size, always the same one; a process starts when it is first needed."""
    return standing_pool(_WORKER, size, _in_common())


def common_cache() -> dict[str, str]:
    """Return the variables with which a process shares this one's results, wherever it runs."""
    return _in_common() or handed_on()


def stand_by() -> None:
    """Start the processes of a run with the default number of threads; none for one thread."""
    if _usual() > 1:
        attack_pool(_usual()).stand_by()


def fork_attacker() -> None:
    """Fork the process of fdaudit's own attacks from this one, so that both share libraries that take long to load.

    A process that has loaded PyTorch may have read a run. It forks none: its attacks start as a new program.
    """
    if "torch" not in sys.modules and active_count() == 1:
        from fdaudit.isolation.attacker import fork_ahead

        fork_ahead()


def dismiss() -> None:
    """End the idle processes if they will not be needed."""
    attack_pool(_usual()).close()


def _usual() -> int:
    """Return the number of processes of a run with the default number of threads, if they fit in memory."""
    return min(processors(), fitting())


@cache
def _in_common() -> dict[str, str]:
    """Return variables for a cache that processes share; without a named directory it lasts as long as this process."""
    if os.environ.get(DIRECTORY):
        return {}
    return {DIRECTORY: str(new_folder("cache")), BYTES: str(_MOST_IN_COMMON), KEY: secrets.token_hex(32)}
