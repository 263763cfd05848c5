"""The log of a finished transcript: parsed once, and sorted by party for all views.

Guarantees:
  * a log is parsed once while its file is unchanged, however many views, ledgers and tables use it;
  * one party's view takes time proportional to its own messages, so all views take time proportional to the deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from fdaudit.transcript.messages import Message
from fdaudit.transcript.transcript import LOG, read_messages

__all__ = ["Log", "read_log"]

_Stamp = tuple[int, int, int, int, int]
_last: dict[Path, tuple[_Stamp, Log]] = {}
"""The log that was read last; a process rarely uses two at once."""


class Log:
    """The messages of one transcript.

    Args:
        messages: all of them, in order.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = tuple(messages)

    def of(self, parties: Sequence[str]) -> tuple[Message, ...]:
        """Return the messages that one of the parties sent or received, in order."""
        numbers = set[int]()
        for party in parties:
            numbers.update(self._numbers.get(party, ()))
        return tuple(self.messages[number] for number in sorted(numbers))

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """Return by party the positions of its messages."""
        numbers: dict[str, list[int]] = {}
        for number, message in enumerate(self.messages):
            for party in {*message.parties()}:
                numbers.setdefault(party, []).append(number)
        return numbers


def read_log(directory: Path) -> Log:
    """Return the log of a transcript; the same object as before if the file has not changed since.

    Raises:
        IntegrityError: a line is not a message.
    """
    path = (directory / LOG).absolute()
    stamp = _stamp(path)
    if path not in _last or stamp is None or _last[path][0] != stamp:
        log = Log(read_messages(directory))
        _last.clear()
        if stamp is None or stamp != _stamp(path):  # written to meanwhile: not worth keeping
            return log
        _last[path] = (stamp, log)
    return _last[path][1]


def _stamp(path: Path) -> _Stamp | None:
    """Return values that change with a file's content. Programs cannot set the last one, the change time."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
