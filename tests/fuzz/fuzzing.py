"""A fuzzer of every file that may come from a stranger: what is changed, how, and what must not happen.

Each case copies a target's files, changes them once or more, and reads them as a command would. It must end in one of
fdaudit's own errors, or be read. A target whose files a digest covers must then be read as before the change. What
ends otherwise, or takes longer than `PATIENCE` seconds, is a finding.

A case depends on its target, its number and `SEED` alone:

    python -m tests.fuzz.fuzzing TARGET NUMBER
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fdaudit.errors import FdauditError

SEED = 20
PATIENCE = 10.0
"""Seconds that reading may take."""
SPARSE = 8 << 30
MEMORY = 3 << 30
"""Bytes that the reading of a few small files may take, damaged as they are."""

Meaning = object
Read = Callable[[Path], Meaning]


@dataclass(frozen=True)
class Target:
    """Files that are read together.

    Attributes:
        template: a directory with the files as they should be.
        read: reads a copy of it; returns something to compare, or raises.
        files: patterns of the files that are changed.
        covered: whether digests cover them, so that a change which is accepted must change no meaning.
    """

    template: Path
    read: Read
    files: tuple[str, ...] = ("**/*",)
    covered: bool = False


class Hang(BaseException):
    """No `Exception`: nobody who catches those may swallow it."""


@contextmanager
def watched(seconds: float = PATIENCE, processor: float = 0) -> Iterator[None]:
    """Raise `Hang` when the block takes longer, or more seconds of processor time; zero is no limit."""

    def bark(*_: object) -> None:
        raise Hang

    timers = ((signal.SIGALRM, signal.ITIMER_REAL, seconds), (signal.SIGPROF, signal.ITIMER_PROF, processor))
    before = [(number, signal.signal(number, bark)) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


def run_case(name: str, target: Target, number: int, scratch: Path) -> str:
    """Runs one case: `refused`, `same` or `other`, by what came of it.

    Raises:
        AssertionError: a finding; the message says how to see it again.
    """
    draws = random.Random(f"{SEED}/{name}/{number}")
    folder = scratch / f"{name}-{number}"
    shutil.copytree(target.template, folder)
    try:
        told = [mutate(folder, target.files, draws) for _ in range(draws.choice((1, 1, 1, 2, 4)))]
        outcome = _read(target, folder)
        again = f"python -m tests.fuzz.fuzzing {name} {number}"
        assert outcome in ("refused", "same", "other"), f"{again} ({'; '.join(told)}): {outcome}"
        return outcome
    finally:
        shutil.rmtree(folder)


def _read(target: Target, folder: Path) -> str:
    """What comes of reading a changed copy: `refused`, `same`, `other`, or what must not happen, in words."""
    try:
        with watched():
            meaning = target.read(folder)
    except FdauditError as error:
        return "refused" if "\n" not in str(error) else f"an error of several lines: {error}"
    except Hang:
        return f"takes longer than {PATIENCE:g} s"
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error}"
    if meaning == target.read(target.template):
        return "same"
    return "accepted, and read as something else" if target.covered else "other"


# -- changes ------------------------------------------------------------------------------------------------------


def mutate(folder: Path, patterns: tuple[str, ...], draws: random.Random) -> str:
    """Changes one file below a folder, or what lies in its place; says what was done."""
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    files = sorted(p for p in found if p.is_file() and not p.is_symlink() and p.stat().st_size < SPARSE)
    if not files:
        return "nothing left to change"
    file = draws.choice(files)
    ways = [*_AS_BYTES * 2, *_AS_FILES]
    if file.suffix in _AS_DOCUMENTS:
        ways += _AS_DOCUMENTS[file.suffix] * 4
    way = draws.choice(ways)
    way(file, draws)
    return f"{way.__name__.strip('_')} {file.relative_to(folder)}"


def _changed(change: Callable[[bytearray, random.Random], object]) -> Callable[[Path, random.Random], None]:
    def way(file: Path, draws: random.Random) -> None:
        data = bytearray(file.read_bytes())
        change(data, draws)
        file.write_bytes(data)

    way.__name__ = change.__name__
    return way


def _range(data: bytearray, draws: random.Random) -> slice:
    begin = draws.randrange(len(data) + 1)
    return slice(begin, begin + draws.choice((1, 2, 8, 64, 1024)))


@_changed
def flip_bits(data: bytearray, draws: random.Random) -> None:
    for _ in range(draws.choice((1, 1, 2, 16)) if data else 0):
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)


@_changed
def set_bytes(data: bytearray, draws: random.Random) -> None:
    part = _range(data, draws)
    data[part] = bytes([draws.choice((0, 0xFF, 0x7F, 0x80, 0x22, 0x0A))]) * len(data[part])


@_changed
def insert(data: bytearray, draws: random.Random) -> None:
    at = draws.randrange(len(data) + 1)
    data[at:at] = draws.choice(
        (draws.randbytes(draws.randrange(1, 64)), b"\n", b"{" * 5000, b"9" * 5000, b"\xff\xfe")
    )


@_changed
def cut(data: bytearray, draws: random.Random) -> None:
    del data[_range(data, draws)]


@_changed
def truncate(data: bytearray, draws: random.Random) -> None:
    del data[draws.randrange(len(data) + 1) :]


@_changed
def repeat(data: bytearray, draws: random.Random) -> None:
    part = _range(data, draws)
    data[part] = data[part] * draws.choice((2, 3, 100))


@_changed
def set_number(data: bytearray, draws: random.Random) -> None:
    """Overwrites a number as binary formats have them."""
    width = draws.choice((2, 4, 8))
    if len(data) >= width:
        at = draws.randrange(min(len(data) - width + 1, draws.choice((64, 1 << 30))))
        value = draws.choice((0, 1, (1 << 8 * width) - 1, 1 << (8 * width - 1), draws.getrandbits(8 * width)))
        data[at : at + width] = value.to_bytes(width, draws.choice(("little", "big")))


def remove(file: Path, draws: random.Random) -> None:
    file.unlink()


def swap(file: Path, draws: random.Random) -> None:
    other, aside = draws.choice(sorted(file.parent.iterdir())), file.with_name("aside")
    if other != file:
        file.rename(aside)
        other.rename(file)
        aside.rename(other)


def add(file: Path, draws: random.Random) -> None:
    shutil.copyfile(
        file, file.with_name(draws.choice(("stray", f".{file.name}.tmp", "00000099.safetensors", "a.png")))
    )


def link(file: Path, draws: random.Random) -> None:
    content = file.read_bytes()
    file.unlink()
    target = draws.choice(
        (Path("/dev/zero"), Path("/proc/self/mem"), file, file.parent, file.with_name("nowhere"), None)
    )
    if target is None:
        target = file.with_name("kept-elsewhere")
        target.write_bytes(content)
    file.symlink_to(target)


def pipe(file: Path, draws: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def plug(file: Path, draws: random.Random) -> None:
    """A socket: nothing to read from."""
    file.unlink()
    before = Path.cwd()
    os.chdir(file.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made, suppress(OSError):
            made.bind(file.name)
    finally:
        os.chdir(before)


def become_folder(file: Path, draws: random.Random) -> None:
    file.unlink()
    file.mkdir()


def grow(file: Path, draws: random.Random) -> None:
    """Eight gigabytes that take no room on the disk, after what was there or in its place."""
    with file.open("r+b") as opened:
        opened.truncate(draws.choice((0, file.stat().st_size)))
        opened.truncate(SPARSE)


_AS_BYTES = (flip_bits, set_bytes, insert, cut, truncate, repeat, set_number)
_AS_FILES = (remove, swap, add, link, pipe, plug, become_folder, grow)

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400, 1e308, -0.0, 0.5),
    *(float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "a",
        "0",
        "NaN",
        "\0",
        "\ud800",
        "é",
        "\u202e",
        "../../x",
        "/etc/passwd",
        "x" * 70_000,
        "client/99",
        "=cmd()",
    ),
    *([], {}, [[]], [None], {"": None}, [0] * 2000, {"__class__": "x"}, ["data"], "all", "server"),
)


def _deep(levels: int, *, mapping: bool) -> str:
    return '{"a":' * levels + "1" + "}" * levels if mapping else "[" * levels + "]" * levels


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    pending = [value]
    while pending:
        node = pending.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in list(keys):
            yield node, key
            pending.append(node[key])


def _disturbed(value: Any, draws: random.Random) -> Any:
    """A JSON value, changed in one place."""
    places = list(_places(value))
    if not places:
        return draws.choice(_ODD)
    node, key = draws.choice(places)
    what = draws.choice(("odd", "odd", "odd", "drop", "copy", "add", "near"))
    if what == "drop":
        del node[key]
    elif what == "copy":
        other, name = draws.choice(places)
        with suppress(KeyError, IndexError):
            node[key] = json.loads(json.dumps(other[name]))
    elif what == "add" and isinstance(node, dict):
        node[draws.choice(("x", "", "seed", str(key) + " ", str(key).upper()))] = draws.choice(_ODD)
    elif what == "near" and isinstance(node[key], int | float):
        node[key] = node[key] + draws.choice((1, -1, 0.5, 1e-9))
    else:
        node[key] = draws.choice(_ODD)
    return value


def disturb_json(file: Path, draws: random.Random) -> None:
    """Changes a value in the document, in the form in which it was written."""
    text = file.read_bytes()
    compact = b'": ' not in text[:200]
    with suppress(ValueError, RecursionError):
        value = _disturbed(json.loads(text), draws)
        file.write_text(_json(value, draws, compact=compact) + ("\n" if text.endswith(b"\n") else ""))


def _json(value: Any, draws: random.Random, *, compact: bool) -> str:
    if compact:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    else:
        text = json.dumps(value, sort_keys=True, indent=1)
    trick = draws.random()
    if trick < 0.05 and text.startswith("{"):  # a key twice
        head = text[1:].lstrip().partition(":")[0]
        text = f"{{{head}:0,{text[1:]}"
    elif trick < 0.1:
        levels = draws.choice((100, 900, 100_000))
        text = text.replace(
            draws.choice(("[]", "{}", "null", "0")), _deep(levels, mapping=draws.random() < 0.5), 1
        )
    return text


def disturb_line(file: Path, draws: random.Random) -> None:
    """Changes, copies, moves or drops a line of a log."""
    lines = file.read_bytes().split(b"\n")
    at = draws.randrange(len(lines))
    what = draws.choice(("value", "value", "value", "copy", "drop", "move", "long", "blank"))
    if what == "value":
        with suppress(ValueError, RecursionError):
            lines[at] = _json(_disturbed(json.loads(lines[at]), draws), draws, compact=True).encode()
    elif what == "copy":
        lines.insert(draws.randrange(len(lines)), lines[at])
    elif what == "drop":
        del lines[at]
    elif what == "move":
        lines.insert(draws.randrange(len(lines)), lines.pop(at))
    elif what == "long":
        lines[at] += b" " * 1_000_000
    else:
        lines.insert(at, b"")
    file.write_bytes(b"\n".join(lines))


def disturb_yaml(file: Path, draws: random.Random) -> None:
    """Changes a value of the document, or writes what only YAML has."""
    text = file.read_text(errors="replace")
    if draws.random() < 0.4:
        name = draws.choice(("clients", "threads", "name", "x", "protocol", "dataset", "queries"))
        file.write_text(f"{text}\n{name}: {draws.choice(_YAML)}\n")
        return
    with suppress(yaml.YAMLError, ValueError, TypeError, RecursionError):
        value = _disturbed(yaml.safe_load(text), draws)
        with suppress(UnicodeError):
            file.write_text(yaml.safe_dump(value))


_YAML = (
    *(
        "0x" + "f" * 10_000,
        "1" + ":59" * 5000,
        "1" + ":59" * 5000 + ".5",
        "9" * 5000,
        ".inf",
        ".nan",
        "1e400",
    ),
    *("[" * 3000, "{a: " * 3000, "- " * 3000, "&a [*a]", "*nobody", "!!python/object:os.system x", "!!int x"),
    *(
        "!!timestamp soon",
        "2020-13-45",
        "2020-01-01",
        "!!binary AA==",
        "!!set {a, b}",
        "? [a]\n: 1",
        "<<: x",
        "'\\ud800'",
    ),
    "\n  a0: &a0 [x, x]\n" + "".join(f"  a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
    "\n" + "".join(f"  k{n}: 1\n" for n in range(3000)),
    "'" + "x" * 100_000 + "'",
)


def disturb_table(file: Path, draws: random.Random) -> None:
    """Changes a cell, a row or the head of a table."""
    rows = [line.split(",") for line in file.read_text(errors="replace").split("\n")]
    row = draws.choice(rows)
    at = draws.randrange(len(row))
    what = draws.choice(("cell", "drop", "head", "wide"))
    if what == "cell":
        row[at] = draws.choice(("", "nan", "1e999", "-1", "x", '"', "=cmd()", "9" * 5000, "\0"))
    elif what == "drop":
        del row[at]
    elif what == "head":
        rows.pop(0)
    else:
        row += ["1"] * 5000
    file.write_text("\n".join(map(",".join, rows)))


def disturb_header(file: Path, draws: random.Random) -> None:
    """Changes the JSON in front of tensors, and its length with it."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    with suppress(ValueError, RecursionError):
        header = _json(_disturbed(json.loads(data[8 : 8 + length]), draws), draws, compact=True).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


_AS_DOCUMENTS: Mapping[str, tuple[Callable[[Path, random.Random], None], ...]] = {
    ".json": (disturb_json,),
    ".jsonl": (disturb_line,),
    ".yaml": (disturb_yaml,),
    ".csv": (disturb_table,),
    ".safetensors": (disturb_header,),
}


def main() -> None:
    """Runs one case, or those from one number to another, in bounded memory; the first finding ends it."""
    from .fuzz_targets import targets

    name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[-1])
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        target = targets(Path(folder) / "templates")[name]
        bound_memory()
        for number in range(first, last + 1):
            print(f"seed {SEED}, {name} {number}: {run_case(name, target, number, Path(folder))}")


def bound_memory(more: int = MEMORY) -> None:
    """Let this process have so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
