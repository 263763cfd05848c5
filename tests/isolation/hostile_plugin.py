"""An attack that attacks the auditor. A test writes this file to disk as somebody's package and installs it.

It does what `mode` says and raises what it found, as JSON: the reason why its cell failed. Nothing of it is run by the
tests' own process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

import torch

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability

AUDITORS = {"Case", "Vault", "Secrets", "Splits", "Dataset", "Truth", "Stage", "Run", "Transcript", "Wire"}
AT_IMPORT = sorted({type(o).__name__ for o in gc.get_objects() if type(o).__name__ in AUDITORS})


class FoundError(Exception):
    """What was found."""


class Settings(Config):
    """What to do, and where the run lies: a hint that no honest auditor gives."""

    mode: str = "snoop"
    place: str = ""
    other: str = ""
    auditor: int = 0
    behaviour: str = ""


class Lying(torch.Tensor):
    """A tensor that says it is empty and runs code of its own wherever it is used."""

    def __len__(self) -> int:
        return 0

    def __reduce__(self) -> Any:
        return (os.system, ("touch /tmp/fdaudit-was-here",))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __array__(self, *given: Any) -> Any:
        raise FoundError(_looked())

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame, seen = sys._getframe(), []
        while frame is not None:
            seen += [v for v in frame.f_locals.values() if type(v).__name__ in AUDITORS]
            frame = frame.f_back  # type: ignore[assignment]
        if seen:
            raise FoundError(json.dumps({"in frames": [type(v).__name__ for v in seen]}))
        return super().__torch_function__(function, types, args, kwargs or {})


class Hostile:
    """Looks for everything that it was not given."""

    card = AttackCard(
        name="hostile",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        self.config = config

    def applicable(self, view: Any, knowledge: Any, task: Any) -> Applicability:
        return Applicability(True)

    def run(self, view: Any, knowledge: Any, task: Any, generator: Any) -> Any:
        return getattr(self, "_" + self.config.mode)(view, knowledge, task)

    def _guess(self, view: Any, knowledge: Any, task: Any) -> Any:
        return tuple(Membership(target=k, scores=torch.zeros(len(c.y))) for k, c in task.challenges.items())

    def _together(self, view: Any, knowledge: Any, task: Any) -> Any:
        from hostile_extras import behaviours

        found = behaviours.tried_together(self._place())
        raise FoundError(json.dumps(found, sort_keys=True))

    def _alone(self, view: Any, knowledge: Any, task: Any) -> Any:
        from hostile_extras import behaviours

        behaviours.ALONE[self.config.behaviour][0](self._place())
        return self._guess(view, knowledge, task)

    def _place(self) -> Any:
        from hostile_extras import behaviours

        return behaviours.Place(self.config.place, self.config.auditor, self.config.other)

    def _empty(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Asks questions without samples, for ever."""
        x = next(iter(task.challenges.values())).x[:0]
        while True:
            task.oracle._spent = 0
            task.oracle.query(x)

    def _snoop(self, view: Any, knowledge: Any, task: Any) -> Any:
        looked: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: looked.update(_looks(self.config.place, self.config.other)))
        thread.start()
        thread.join()
        raise FoundError(json.dumps(looked, sort_keys=True))

    def _overdraw(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Buys answers past the budget by what it does to its own handle, and to its questions."""
        oracle, x = task.oracle, next(iter(task.challenges.values())).x
        budget = oracle.budget
        lying = x.repeat(budget // len(x) + 2, 1, 1, 1)[: budget + 1].as_subclass(Lying)
        oracle._budget = oracle._spent = 10**9
        oracle._spent = -(10**9)
        answers = []
        for _ in range(3):
            try:
                answers.append(oracle.query(lying))
            except Exception:
                continue
        return self._guess(view, knowledge, task)

    def _subclass(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Asks and guesses with tensors that run code."""
        x = next(iter(task.challenges.values())).x
        answer = task.oracle.query(x[:5].as_subclass(Lying))
        if type(answer) is not torch.Tensor or answer.shape[0] != 5:
            raise FoundError(f"{type(answer)}")
        return tuple(
            Membership(target=k, scores=torch.zeros(len(c.y)).as_subclass(Lying))
            for k, c in task.challenges.items()
        )

    def _pickled(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Sends the auditor a pickle where a frame is due."""
        data = pickle.dumps(torch.zeros(3).as_subclass(Lying))
        _say(struct.pack(">IQ", len(data), 0) + data)
        raise SystemExit

    def _linked(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Puts links to a file of the auditor's where its own output was, for the auditor to read and show."""
        for path in Path.cwd().iterdir():
            if path.is_file():
                path.unlink()
                path.symlink_to(self.config.place)
        return self._guess(view, knowledge, task)

    def _death(self, view: Any, knowledge: Any, task: Any) -> Any:
        os._exit(3)

    def _remember(self, view: Any, knowledge: Any, task: Any) -> Any:
        """Leaves a note for its next case, wherever it can, and reads what an earlier one left."""
        places = [
            Path(p) for p in (tempfile.gettempdir(), "/tmp", "/dev/shm", os.getcwd(), str(view.directory))
        ]
        places += [Path.home(), Path(view.directory).parents[1]]
        read = [str(p) for p in places if _reads(p / "fdaudit-note")]
        for place in places:
            try:
                (place / "fdaudit-note").write_text(",".join(task.targets))
            except OSError:
                continue
        raise FoundError(json.dumps({"read": read}))


def _say(data: bytes) -> None:
    """Writes bytes to every descriptor that takes them: the pipe to the auditor among them."""
    for descriptor in range(3, 64):
        try:
            if os.path.islink(f"/proc/self/fd/{descriptor}") and os.readlink(
                f"/proc/self/fd/{descriptor}"
            ).startswith("pipe:"):
                os.write(descriptor, data)
        except OSError:
            continue


def _looked() -> str:
    return json.dumps(_looks("", ""))


def _looks(run: str, other: str) -> dict[str, Any]:
    """Everything that can be reached which was not given, by where it was found."""
    return {
        "at import": AT_IMPORT,
        "objects": sorted({type(o).__name__ for o in gc.get_objects() if type(o).__name__ in AUDITORS}),
        "frames": sorted(
            {
                type(v).__name__
                for frame in sys._current_frames().values()
                for f in _back(frame)
                for v in f.f_locals.values()
                if type(v).__name__ in AUDITORS
            }
        ),
        "environment": sorted(k for k in os.environ if "SECRET" in k or "FDAUDIT" in k or "DATA" in k),
        "arguments": [a for a in sys.argv if run and run in a],
        "descriptors": _descriptors(run),
        "read": [
            name for name in ("vault/secrets.json", "result.json", "spec.yaml") if _reads(Path(run, name))
        ],
        "listed": _lists(Path(run)),
        "written": _writes(Path(run, "transcript", "messages.jsonl")),
        "another's": _lists(Path(other)),
        "temporary": [p for p in _entries("/tmp") if os.path.isdir(f"/tmp/{p}") and _lists(Path("/tmp", p))],
        "processes": [p for p in _entries("/proc") if p.isdigit() and int(p) != os.getpid() and _spied(p)],
        "parent": [n for n in ("environ", "cmdline", "fd", "mem", "maps") if _of_parent(n)],
        "traced": _traces(),
        "signalled": _signals(),
        "connected": _connects(),
    }


def _back(frame: Any) -> list[Any]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _descriptors(run: str) -> list[str]:
    found = []
    for name in _entries("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if (run and run in target) or "tty" in target or "pts" in target or "socket" in target:
            found.append(target)
    return found


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _reads(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def _lists(path: Path) -> bool:
    try:
        return bool(os.listdir(path))
    except OSError:
        return False


def _writes(path: Path) -> bool:
    try:
        with path.open("ab") as file:
            file.write(b"")
        return True
    except OSError:
        return False


def _spied(process: str) -> bool:
    return any(_reads(Path("/proc", process, name)) for name in ("environ", "cmdline", "maps", "auxv"))


def _of_parent(name: str) -> bool:
    path = Path("/proc", str(os.getppid()), name)
    if name == "fd":
        return _lists(path)
    try:
        with path.open("rb") as file:
            return name == "mem" or bool(file.read(1))
    except OSError:
        return False


def _traces() -> bool:
    """Whether it can stop its parent as a debugger would; if it can it lets go again."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, os.getppid(), 0, 0) != 0:
        return False
    os.waitpid(os.getppid(), 0)
    libc.ptrace(17, os.getppid(), 0, 0)
    return True


def _signals() -> bool:
    """Whether its parent can be signalled; the first process of a namespace sees none, and 0 is its own group."""
    if not os.getppid():
        return False
    try:
        os.kill(os.getppid(), 0)
    except OSError:
        return False
    return True


def _connects() -> bool:
    """Whether a connection is refused by its other end, not by the system."""
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
