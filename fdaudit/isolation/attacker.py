"""Attack processes: they hold the trial and the exported view, and no other data of the auditor.

fdaudit's own attacks share a process and its computed results: they are as trusted as the auditor. Every trial of a
third-party attack gets its own process and directory, so nothing passes from one trial to the next.

Guarantees:
  * a third-party attack starts in a new program, without the auditor's memory, open files and variables;
  * fdaudit's own attacks start in the same way, or in a fork of a process that has not read anything of a run yet;
  * its answers are bytes, from which plain tensors are rebuilt here, and counted;
  * a process that ends before it has answered fails only its own trial;
  * each process is confined (`fdaudit.isolation.confinement`), and each cell is told by which layers;
  * a cell's attacks end at its deadline, and no process of theirs is left.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from io import BufferedReader, BufferedWriter
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from tempfile import gettempdir, mkdtemp
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fdaudit.errors import BudgetExceededError, FdauditError, SpecError
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

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.oracle import Oracle
    from fdaudit.adversary.view import View
    from fdaudit.goals import Guess
    from fdaudit.isolation.schema import Trial
    from fdaudit.models import Architecture

__all__ = [
    "ENDED",
    "KILLED",
    "OVERDUE",
    "AttackFailedError",
    "Attacker",
    "CellAttacks",
    "applies",
    "attack",
    "dismiss",
    "fork_ahead",
    "home",
    "offered_confinement",
    "one_cell",
    "settings_of",
    "stand_by",
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
_SETTINGS_SECONDS, _ALONE_SECONDS = 600.0, 86_400.0
"""Seconds in which an attack's settings are found, and for an attack that belongs to no cell."""
_MEMORY_SHARE, _MOST_PROCESSES, _MOST_DISK = 0.9, 128, 16 << 30
_FIRST_USER, _USERS = 61184, 4336
"""Numbers of users that belong to nobody, as systemd gives them to services."""
_MOST_REFUSED = 100
"""Questions after a refused one that are still answered with a refusal."""
_OUTPUT = "output.txt"
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables of this process that an attack's process receives."""
_SET = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    **THREADS,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
}
_LONGEST_REASON, _LONGEST_SETTINGS = 2_000, 65_536
"""Most characters of an attack's own texts in a result."""
_MOST_OUTPUT = 1 << 16
"""Most bytes of a process's output per trial that are printed."""
Launcher = Callable[[Launch], tuple[Process, BinaryIO, BinaryIO]]
Reply = Callable[["Tensor", "str | None"], "Tensor"]
"""Maps samples (n, c, h, w) and the party whose model is asked to answers."""


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
        return None if self.missing is None else _confined(self.missing)


_TIME = "time"
"""The layer that is on this side: the deadline."""
_cell: ContextVar[CellAttacks | None] = ContextVar("cell", default=None)


@contextmanager
def one_cell(seconds: float) -> Iterator[CellAttacks]:
    """Count all attacks of the block as one cell's, with one deadline for all."""
    tried = CellAttacks(seconds)
    token = _cell.set(tried)
    try:
        yield tried
    finally:
        _cell.reset(token)


class Attacker:
    """A process that attacks run in.

    Args:
        own: whether fdaudit's own attacks run in it, one after the other. Others get a process for each trial.
        launched: starts the process.
        reads: files that it may read besides Python and its libraries: those of pretrained networks.
    """

    def __init__(
        self, own: bool, launched: Launcher = new_program, *, reads: frozenset[str] = frozenset()
    ) -> None:
        self._launched, self._own = launched, own
        self.reads = reads
        self.folder = home() if own else new_folder("attack")
        self.surroundings = _surroundings(own)
        self._temporary = new_folder("attacker") if own else self.folder
        another = os.geteuid() == 0 and not own and "user" not in _without
        self._user = _FIRST_USER + secrets.randbelow(_USERS) if another else None
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
        served: _Served | None = None,
        tried: CellAttacks | None = None,
    ) -> Frame:
        """Send one request and return the answer; questions of the process are served meanwhile.

        Args:
            kind: the request's type.
            fields: its JSON values.
            tensors: its tensors.
            served: the oracle that the process may ask.
            tried: the cell whose time it takes; default: one of its own.

        Raises:
            AttackFailedError: the attack failed, the process ended, or the time is up.
            MalformedError: the process sent an invalid frame.
        """
        missing = self.missing()
        tried = tried or CellAttacks(_SETTINGS_SECONDS)
        tried.missing = {**(tried.missing or {}), **missing}
        start = monotonic()
        self._until = start + tried.left
        try:
            with self._conversation(tried.seconds):
                send(self._writing, kind, fields, tensors.named)
                while (frame := receive(self._reading, most_header=MOST_ANSWER)).kind == "question":
                    if served is None:
                        raise MalformedError("the attack's process asked an oracle that there is not")
                    served.serve(frame, self._writing)
        finally:
            tried.left -= monotonic() - start
        if frame.kind == "failed":
            raise AttackFailedError(_reason(frame))
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
            self._pass_on()

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
        temporary, cache_directory = str(self._temporary), self.surroundings.get(DIRECTORY)
        if cache_directory:  # a cleaner may have removed it, and the confined process could not make it
            os.close(private_directory(Path(cache_directory), DIRECTORY))
        folders = [temporary, str(self.folder), *([cache_directory] if cache_directory else [])]
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
        self._process, reading, writing = self._launched(
            Launch(
                allowed=allowed,
                output=self._output,
                directory=self._temporary,
                variables={**self.surroundings, **_SET, "HOME": temporary, "TMPDIR": temporary},
            )
        )
        ends = [Pipe(end, self._process, lambda: self._until) for end in (reading, writing)]
        return cast(BinaryIO, BufferedReader(ends[0])), cast(BinaryIO, BufferedWriter(ends[1]))

    def _pass_on(self) -> None:
        """Print the process's new output as plain text."""
        if self._output is None:
            return
        number = (
            self._output.fileno()
        )  # the process writes at this file's position, which pread does not move
        data = os.pread(number, _MOST_OUTPUT, self._printed)
        self._printed = os.fstat(number).st_size
        text = data.decode("ascii", "backslashreplace")
        printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        if printable.strip():
            sys.stderr.write(printable.rstrip() + "\n")


class _Served:
    """The auditor's side of an oracle: counts questions, and keeps the first one that it refused."""

    def __init__(self, oracle: Oracle, network: Architecture, reply: Reply) -> None:
        self._oracle, self._network, self._reply, self._left = oracle, network, reply, oracle.budget
        self._refused = 0
        self.refusal: Exception | None = None

    def serve(self, frame: Frame, writing: BinaryIO) -> None:
        """Answer a question, or report that it cannot be answered.

        Raises:
            MalformedError: the process does not stop to ask after a refusal.
        """
        values = None
        if self.refusal is None:
            try:
                values = self._reply(*self._checked(frame))
            except Exception as error:  # raised after the attack has ended
                self.refusal = error
        if values is None:
            self._refused += 1
            if self._refused > _MOST_REFUSED:
                raise MalformedError("the attack's process did not stop to ask")
            send(writing, "refused", {"reason": "the question could not be answered"}, {})
        else:
            send(writing, "answer", {}, {"values": values})

    def _checked(self, frame: Frame) -> tuple[Tensor, str | None]:
        from fdaudit.isolation.schema import question_of

        question = question_of(frame.fields.get("question"), frame.tensors)
        x, of = question.samples, question.of
        shape, words = self._network.input_shape, self._network.words
        fits = _are_tokens(x, words) if words else x.is_floating_point()
        if not fits or x.ndim != 1 + len(shape) or tuple(x.shape[1:]) != shape:
            what = f"texts of {words} words" if words else self._network.reads
            expected = f"{what} (n, {', '.join(map(str, shape))})"
            raise FdauditError(f"oracle: asked {x.dtype} of shape {tuple(x.shape)}, not {expected}.")
        if of not in (self._oracle.models or (None,)):
            raise FdauditError(f"oracle: {of!r:.60} has no model to ask.")
        self._left -= max(1, len(x))  # each question costs work, so their number is bounded too
        if self._left < 0:
            raise BudgetExceededError(f"oracle: more was asked than the budget of {self._oracle.budget}.")
        return x, of


def _are_tokens(x: Tensor, words: int) -> bool:
    """Return whether every entry is the number of a word."""
    return str(x.dtype) == "torch.int64" and bool(((x >= 0) & (x < words)).all())


def attack(
    asked: AttackPlan, view: View, trial: Trial, reply: Reply | None = None
) -> tuple[Guess, ...] | str:
    """Run an attack on a trial in a process that holds nothing else.

    Args:
        asked: the attack and its settings.
        view: the adversary's view; it is exported, unless the process can already read it.
        trial: the attack's other inputs.
        reply: answers the questions to the oracle of its task.

    Returns:
        Its guesses, or the reason why it does not apply.

    Raises:
        AttackFailedError: it raised an error, or its process ended.
        Exception: the exception of `reply`.
    """
    from fdaudit.isolation.schema import guesses_of

    frame = _answered("attack", asked, view, trial, reply)
    if frame.kind == "not-applicable":
        return _reason(frame)
    if frame.kind != "guesses":
        raise MalformedError(f"the attack's process answered with {frame.kind!r:.60}")
    most = len(trial.task.targets) + 1  # one for each victim, and for the released model
    return guesses_of(frame.fields.get("guesses"), frame.tensors, most)


def applies(asked: AttackPlan, view: View, trial: Trial) -> bool:
    """Return whether an attack says that it can be tried, from a process as for `attack`; it is not run.

    Raises:
        AttackFailedError: it raised an error, or its process ended.
    """
    return _answered("applies", asked, view, trial, None).kind != "not-applicable"


def _answered(kind: str, asked: AttackPlan, view: View, trial: Trial, reply: Reply | None) -> Frame:
    """Send a trial to a process that holds nothing else, and return its answer."""
    from fdaudit.isolation.schema import packed

    served, tried = _served(trial, reply), _cell.get() or CellAttacks(_ALONE_SECONDS)
    with (
        _attacker(asked.own, _networks_files(trial)) as attacker,
        _case_folder(attacker.folder, asked.own) as folder,
    ):
        directory = _laid_out(view, attacker.folder, Path(folder) / "view")
        attacker.give(Path(folder))
        tensors = Tensors()
        fields = {
            "target": asked.target,
            "params": dict(asked.params or {}),
            "view": str(directory),
            "trial": packed(_settled(trial, attacker.folder, Path(folder)), tensors),
        }
        try:
            return attacker.ask(kind, fields, tensors, served, tried)
        finally:
            if served is not None and served.refusal is not None:
                raise served.refusal


@contextmanager
def _case_folder(above: Path, own: bool) -> Iterator[str]:
    """Yield a directory of one trial. A third party's goes with its process: nothing is removed under its hands."""
    folder = mkdtemp(dir=above, prefix="trial-")
    try:
        yield folder
    finally:
        if own:
            remove_tree(Path(folder))


def _laid_out(view: View, readable_below: Path, place: Path) -> Path:
    """Return a directory with the view that the process may read; copy or export the view to `place` if needed."""
    from fdaudit.adversary.view import export_view, is_exported

    if not is_exported(view):
        export_view(view, place)
    elif not view.directory.is_relative_to(readable_below):
        shutil.copytree(view.directory, place)
    else:
        return view.directory
    return place


def _reason(frame: Frame) -> str:
    """Return the attack's own reason for not giving guesses, shortened."""
    return str(frame.fields.get("reason", ""))[:_LONGEST_REASON]


def settings_of(
    name: str, target: str, profile: str, params: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return an attack's settings under a profile; a separate process finds them, so its code is not loaded here.

    Raises:
        SpecError: a setting is unknown or out of range, or the attack cannot be loaded.
    """
    return dict(_settings_of(name, target, profile, json.dumps(params, sort_keys=True), where))


@cache
def _settings_of(name: str, target: str, profile: str, params: str, where: str) -> dict[str, Any]:
    request = {
        "name": name,
        "target": target,
        "profile": profile,
        "params": json.loads(params),
        "where": where,
    }
    remedy = "Correct the attack, or uninstall its package."
    try:
        with _attacker(own=False) as attacker:
            frame = attacker.ask("settings", request, Tensors())
    except (AttackFailedError, MalformedError) as error:
        raise SpecError(where, target, f"cannot be loaded ({error})", remedy) from None
    fields = frame.fields
    if frame.kind == "wrong":
        texts = [str(fields.get(name, "")) for name in ("field", "problem", "remedy")]
        raise SpecError(texts[0], fields.get("value"), texts[1], texts[2])
    resolved = fields.get("params")
    if frame.kind != "settings" or not isinstance(resolved, dict):
        raise SpecError(where, target, "cannot be loaded (it gave no settings)", remedy)
    if len(json.dumps(resolved)) > _LONGEST_SETTINGS:
        raise SpecError(where, target, f"has settings of more than {_LONGEST_SETTINGS} characters", remedy)
    return resolved


def _served(trial: Trial, reply: Reply | None) -> _Served | None:
    from fdaudit.adversary.oracle import Oracle

    oracle, network = trial.task.oracle, trial.knowledge.architecture
    if reply is None or not isinstance(oracle, Oracle) or network is None:
        return None
    return _Served(oracle, network, reply)


def _settled(trial: Trial, readable_below: Path, folder: Path) -> Trial:
    """Return the trial with rehearsal directories that its process may use."""
    rehearsal: Any = trial.knowledge.rehearse
    if rehearsal is None:
        return trial
    if rehearsal.own is None or not rehearsal.own.is_relative_to(readable_below):
        rehearsal = replace(rehearsal, own=folder, everybody=None)
    return replace(trial, knowledge=replace(trial.knowledge, rehearse=rehearsal))


def _networks_files(trial: Trial) -> frozenset[str]:
    """Return the files of pretrained networks that the adversary of a trial knows; they are public."""
    knowledge: Any = trial.knowledge
    networks = [] if knowledge.architecture is None else [knowledge.architecture]
    networks += [] if knowledge.train is None else [knowledge.train.architecture]
    networks += [] if knowledge.rehearse is None else knowledge.rehearse.common.networks.distinct
    return frozenset(file for network in networks for file in network.pretrained)


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


def _confined(missing: Mapping[str, str]) -> Confinement:
    layers = tuple(layer for layer in (*LAYERS, _TIME) if layer not in missing)
    return Confinement(held=layers, missing=dict(missing))


def home() -> Path:
    """Return the shared directory of views and rehearsals for fdaudit's own attacks."""
    folder = _home(gettempdir(), os.getpid())
    if not folder.is_dir():  # a cleaner of the temporary directory may have removed it
        _home.cache_clear()
        folder = _home(gettempdir(), os.getpid())
    return folder


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


@cache
def _home(above: str, process: int) -> Path:
    atexit.register(dismiss, for_good=True)
    return new_folder("handed")


def _surroundings(own: bool) -> dict[str, str]:
    """Return the environment variables that an attack's process receives."""
    variables = {k: os.environ[k] for k in _KEPT if k in os.environ} | (handed_on() if own else {})
    return {**variables, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def _attacker(own: bool, reads: frozenset[str] = frozenset()) -> Iterator[Attacker]:
    """Yield a process for one trial: an idle one for fdaudit's own attacks, or a new one."""
    attacker = _standing(reads) if own else None
    attacker = attacker or Attacker(own, reads=reads)
    again = False
    try:
        yield attacker
        again = own
    except AttackFailedError:
        again = own and attacker.alive
        raise
    finally:
        with _turn:
            if again and not _dismissed:
                _free.append(attacker)
            else:
                attacker.close()


def _standing(reads: frozenset[str]) -> Attacker | None:
    with _turn:
        while _free:
            attacker = _free.pop()
            same = attacker.surroundings == _surroundings(own=True) and attacker.folder == home()
            if attacker.alive and same and reads <= attacker.reads:
                return attacker
            attacker.close()
    return None
