"""Attack processes: they hold the trial and the exported view, and no other data of the auditor.

fdaudit's own attacks share a process and its computed results: they are as trusted as the auditor. Every trial of a
third-party attack gets its own process and directory, so nothing passes from one trial to the next.

Guarantees:
  * a third-party attack starts in a new program, without the auditor's memory, open files and variables;
  * fdaudit's own attacks start in the same way, or in a fork of a process that has not read anything of a run yet;
  * a process that ends before it has answered fails only its own trial;
  * each process is confined (`fdaudit.isolation.confinement`), and each cell is told by which layers;
  * a cell's attacks end at its deadline, and no process of theirs is left.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader, BufferedWriter
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from tempfile import gettempdir
from threading import Lock
from time import monotonic
from typing import Any, BinaryIO, cast

from fdaudit.errors import FdauditError
from fdaudit.isolation.confinement import LAYERS, Allowed
from fdaudit.isolation.frames import MOST_ANSWER, EndedError, Frame, MalformedError, Tensors, receive, send
from fdaudit.isolation.keeper import BY_SIGNAL, ENDINGS, Bounds
from fdaudit.isolation.launch import (
    THREADS,
    Launch,
    OverdueError,
    Pipe,
    Process,
    ended_within,
    fork,
    new_program,
)
from fdaudit.isolation.paths import devices, has_accelerator, readable
from fdaudit.result import Confinement
from fdaudit.storage.cache import DIRECTORY, handed_on, private_directory
from fdaudit.storage.scratch import new_folder, remove_tree

__all__ = [
    "ENDED",
    "KILLED",
    "OVERDUE",
    "AttackFailedError",
    "Attacker",
    "CellAttacks",
    "attacker_for",
    "dismiss",
    "fork_ahead",
    "home",
    "offered_confinement",
    "stand_by",
    "stated_reason",
]

ENDED = "the process that ran it ended before it was done"
KILLED = (
    "the system killed the process that ran it (signal 9), most likely because memory ran out. Free memory, "
    "set FDAUDIT_MEMORY lower, or use fewer threads"
)
"""Why a cell has no outcome if its process is gone."""
OVERDUE = "its attacks took longer than the {:g} seconds of `limits.seconds_per_cell`"
_PATIENCE, _START_UP = 10.0, 600.0
"""Seconds in which a process that was told to end does, and in which a new one is ready for its first attack."""
_MEMORY_SHARE, _MOST_PROCESSES, _MOST_DISK = 0.9, 128, 16 << 30
_FIRST_USER, _USERS = 61184, 4336
"""Numbers of users that belong to nobody, as systemd gives them to services."""
_OUTPUT = "output.txt"
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables of this process that an attack's process receives."""
_SET = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    **THREADS,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
}
_LONGEST_REASON = 2_000
"""Most characters of an attack's own reason in a result."""
_MOST_OUTPUT = 1 << 16
"""Most bytes of a process's output per trial that are printed."""
_TIME = "time"
"""The layer that is on this side: the deadline."""
Launcher = Callable[[Launch], tuple[Process, BinaryIO, BinaryIO]]


class AttackFailedError(FdauditError):
    """An attack raised an error, or its process ended without an answer; the text says which."""


class CellAttacks:
    """The attacks of one cell.

    Args:
        seconds: how long they may take together.

    Attributes:
        left: seconds that are left.
        missing: layers of confinement that some of them lacked, with reasons; None before the first has begun.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self.left = float(seconds)
        self.missing: dict[str, str] | None = None

    @property
    def confinement(self) -> Confinement | None:
        """Return how they were confined; None if none has begun."""
        if self.missing is None:
            return None
        return _confined(self.missing)


def _confined(missing: Mapping[str, str]) -> Confinement:
    layers: list[str] = []
    for layer in (*LAYERS, _TIME):
        if layer not in missing:
            layers.append(layer)
    return Confinement(held=tuple(layers), missing=dict(missing))


class Attacker:
    """A process that attacks run in.

    Args:
        own: whether fdaudit's own attacks run in it, one after the other. Others get a process for each trial.
        launched: starts the process.
        reads: files that it may read in addition to Python and its libraries: those of pretrained networks.
    """

    def __init__(
        self, own: bool, launched: Launcher = new_program, *, reads: frozenset[str] = frozenset()
    ) -> None:
        self._launched, self._own = launched, own
        self.reads = reads
        self.surroundings = _surroundings(own)
        if own:
            self.folder = home()
            self._temporary = new_folder("attacker")
        else:
            self.folder = self._temporary = new_folder("attack")
        self._user: int | None = None
        if os.geteuid() == 0 and not own and "user" not in _without:
            self._user = _FIRST_USER + secrets.randbelow(_USERS)
        self._printed = 0
        self._until = 0.0
        self._spoiled = False
        self._output: BinaryIO | None = None
        self._process: Process | None = None
        self._reading, self._writing = self._started()
        self._missing: dict[str, str] | None = None

    def missing(self) -> dict[str, str]:
        """Wait until the process is ready; return the layers of its confinement that are missing, with reasons.

        Raises:
            AttackFailedError: it ended before.
            MalformedError: it sent something else.
        """
        if self._missing is None:
            self._until = monotonic() + _START_UP
            with self._conversation(_START_UP):
                layers = receive(self._reading, 0).fields.get("missing")
            if not isinstance(layers, dict):
                raise MalformedError("the attack's process did not say how it is confined")
            self._missing = {layer: str(layers[layer]) for layer in LAYERS if layer in layers}
        return self._missing

    def ask(
        self,
        kind: str,
        fields: Mapping[str, Any],
        tensors: Tensors,
        cell: CellAttacks,
        serve: Callable[[Frame, BinaryIO], None] | None = None,
    ) -> Frame:
        """Send one request and return the answer; questions of the process are served meanwhile.

        Args:
            kind: the request's type.
            fields: its JSON values.
            tensors: its tensors.
            cell: the cell whose time it takes.
            serve: answers a question to the oracle on the pipe to the process; None if there is no oracle.

        Raises:
            AttackFailedError: the attack failed, the process ended, or the time is up.
            MalformedError: the process sent an invalid frame.
        """
        missing = self.missing()
        cell.missing = {**(cell.missing or {}), **missing}
        start = monotonic()
        self._until = start + cell.left
        try:
            with self._conversation(cell.seconds):
                send(self._writing, kind, fields, tensors.named)
                while (frame := receive(self._reading, most_header=MOST_ANSWER)).kind == "question":
                    if serve is None:
                        raise MalformedError("the attack's process asked an oracle that there is not")
                    serve(frame, self._writing)
        finally:
            cell.left -= monotonic() - start
        if frame.kind == "failed":
            raise AttackFailedError(stated_reason(frame))
        return frame

    @contextmanager
    def _conversation(self, seconds: float) -> Iterator[None]:
        """Turn the end of the process, or of its time, into a failure of the attack; print what it printed."""
        self._spoiled = True
        try:
            yield
            self._spoiled = False
        except OverdueError:
            raise AttackFailedError(OVERDUE.format(seconds)) from None
        except EndedError:
            raise AttackFailedError(self._ending()) from None
        finally:
            if self._output is not None:
                number = self._output.fileno()
                # The process writes at this file's position, which pread does not move.
                data = os.pread(number, _MOST_OUTPUT, self._printed)
                self._printed = os.fstat(number).st_size
                text = data.decode("ascii", "backslashreplace")
                printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
                if printable.strip():
                    sys.stderr.write(printable.rstrip() + "\n")

    @property
    def alive(self) -> bool:
        """Return whether the process can take another request."""
        return not self._spoiled and self._process is not None and self._process.poll() is None

    def _ending(self) -> str:
        """Return why the process gave no answer: it was killed, it took too much, or it ended by itself."""
        if self._process is None or not ended_within(self._process, _PATIENCE):
            return ENDED
        status = self._process.poll() or 0
        if status == -SIGKILL:
            return KILLED
        with suppress(ValueError):
            return f"{ENDED} ({Signals(status - BY_SIGNAL).name})"
        return ENDINGS.get(status, ENDED)

    def close(self) -> None:
        """End the process and all its children, and remove its directories."""
        if self._process is not None:
            with suppress(OSError):
                os.kill(self._process.pid, SIGTERM)  # to its keeper, which ends all others
            if not ended_within(self._process, _PATIENCE):
                for end in (os.killpg, os.kill):  # a child that was just forked has no group of its own yet
                    with suppress(OSError):
                        end(self._process.pid, SIGKILL)
            self._process.wait()
        for stream in (self._reading, self._writing, self._output):
            if stream is not None:
                with suppress(OSError, FdauditError):
                    stream.close()
        remove_tree(self._temporary)

    def give(self, place: Path) -> None:
        """Let the process read and change what is in a directory of its own."""
        if self._user is None or "user" in self.missing():
            return
        for path in (place, *place.rglob("*")):
            os.chown(path, self._user, self._user, follow_symlinks=False)

    def _started(self) -> tuple[BinaryIO, BinaryIO]:
        """Start a process; return the pipe from it and the pipe to it."""
        temporary = str(self._temporary)
        folders = [temporary, str(self.folder)]
        cache_directory = self.surroundings.get(DIRECTORY)
        if cache_directory:  # a cleaner may have removed it, and the confined process could not make it
            os.close(private_directory(Path(cache_directory), DIRECTORY))
            folders.append(cache_directory)
        # Never opened by its name again: the attack may have replaced it by a link.
        self._output = (self._temporary / _OUTPUT).open("w+b", buffering=0)
        if self._user is not None:
            os.chown(self._temporary, self._user, self._user)
        allowed = Allowed(
            readable=(*readable(), *sorted(self.reads)),
            writable=(*dict.fromkeys(folders), *devices()),
            bounds=_bounds(self._temporary, None if self._own else temporary),
            user=self._user,
            trusted=self._own,
            accelerator=has_accelerator(),
            without=_without,
        )
        launch = Launch(
            allowed=allowed,
            output=self._output,
            directory=self._temporary,
            variables={**self.surroundings, **_SET, "HOME": temporary, "TMPDIR": temporary},
        )
        self._process, reading, writing = self._launched(launch)
        from_process = Pipe(reading, self._process, lambda: self._until)
        to_process = Pipe(writing, self._process, lambda: self._until)
        return cast(BinaryIO, BufferedReader(from_process)), cast(BinaryIO, BufferedWriter(to_process))


def stated_reason(frame: Frame) -> str:
    """Return the attack's own reason for not giving guesses, shortened."""
    return str(frame.fields.get("reason", ""))[:_LONGEST_REASON]


def _surroundings(own: bool) -> dict[str, str]:
    """Return the environment variables that an attack's process receives."""
    variables: dict[str, str] = {}
    for name in _KEPT:
        if name in os.environ:
            variables[name] = os.environ[name]
    if own:
        variables |= handed_on()
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return variables


def _bounds(place: Path, folder: str | None) -> Bounds:
    """Return what a process may take of this machine, whose folder for temporary files is given."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or `max`
            limits.append(int(Path(limit).read_text(encoding="ascii")))
    disk = min(_MOST_DISK, shutil.disk_usage(place).free // 2)
    return Bounds(int(_MEMORY_SHARE * min(limits)), _MOST_PROCESSES, disk, folder)


# -- the processes ----------------------------------------------------------------------------------------------

_without: tuple[str, ...] = ()
"""Layers of confinement that are left out, in measurements of their cost and in tests."""
_free: list[Attacker] = []
_turn = Lock()
_dismissed = False


def offered_confinement() -> Confinement:
    """Return how this machine confines a third party's attack, as a process that starts and runs none finds it.

    Raises:
        AttackFailedError: the process does not start.
        MalformedError: it sends something else.
    """
    attacker = Attacker(own=False)
    try:
        return _confined(attacker.missing())
    finally:
        attacker.close()


def home() -> Path:
    """Return the shared directory of views and rehearsals for fdaudit's own attacks."""
    folder = _home(gettempdir(), os.getpid())
    if not folder.is_dir():  # a cleaner of the temporary directory may have removed it
        _home.cache_clear()
        folder = _home(gettempdir(), os.getpid())
    return folder


@cache
def _home(above: str, process: int) -> Path:
    atexit.register(dismiss, for_good=True)
    return new_folder("handed")


def stand_by(launched: Launcher = new_program) -> None:
    """Start the process of fdaudit's own attacks in advance, so that it loads its libraries meanwhile."""
    with _turn:
        if not _free:
            _free.append(Attacker(True, launched))


def fork_ahead() -> None:
    """Start the process of fdaudit's own attacks as a fork of this one, which has not read anything of a run yet.

    It shares the libraries of this process, which computes on one thread from then on where nothing says otherwise.

    Raises:
        RuntimeError: other threads run.
    """
    os.environ.update(THREADS)
    stand_by(fork)


def dismiss(for_good: bool = False) -> None:
    """End the idle processes; `for_good` if this process is about to end."""
    global _dismissed
    _dismissed = _dismissed or for_good
    with _turn:
        while _free:
            _free.pop().close()


@contextmanager
def attacker_for(own: bool, reads: frozenset[str] = frozenset()) -> Iterator[Attacker]:
    """Yield a process for one trial: an idle one for fdaudit's own attacks, or a new one.

    Args:
        own: whether the attack is fdaudit's own.
        reads: files that the process must be able to read.
    """
    attacker = _standing(reads) if own else None
    if attacker is None:
        attacker = Attacker(own, reads=reads)
    reusable = False
    try:
        yield attacker
        reusable = own
    except AttackFailedError:
        reusable = own and attacker.alive
        raise
    finally:
        with _turn:
            if reusable and not _dismissed:
                _free.append(attacker)
            else:
                attacker.close()


def _standing(reads: frozenset[str]) -> Attacker | None:
    """Return an idle process that can read these files; end the others."""
    with _turn:
        while _free:
            attacker = _free.pop()
            same = attacker.surroundings == _surroundings(own=True) and attacker.folder == home()
            if attacker.alive and same and reads <= attacker.reads:
                return attacker
            attacker.close()
    return None
