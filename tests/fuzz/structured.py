"""A fuzzer that knows the documents it changes, and drives the commands that read them.

Six kinds of files come from a stranger: run directories, records, cards, designs (the key of coins and the records it
is about), guesses, and a site's statements. A case copies one of them, changes fields of its documents, seals it again
where a stranger could (digests, chains, heads, commitments), and gives it to one command. The command must end with one
of fdaudit's own errors or do its work. What else happens is a finding:

  * a traceback, or an exit code other than those of the command line;
  * more than `PATIENCE` seconds of processor time, or `MEMORY` bytes more than before;
  * a changed or new file anywhere but in the case's own directory;
  * code that ran because a file named it: the module `SENTINEL` writes a file when it is imported;
  * a changed file that was accepted although what it says and what fdaudit shows of it differ.

A case depends on its kind, its number and `SEED` alone:

    python -m tests.fuzz.structured KIND NUMBER
"""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fdaudit.cli.app import main as command_line
from fdaudit.storage.digests import canonical

from .fuzzing import Hang, bound_memory, watched
from .fuzzing import _places as places_in

SEED = 21
PATIENCE = 10.0
"""Seconds of processor time that a command may take."""
BLOCKED = 300.0
"""Seconds after which a command that waits is taken for one that waits for ever."""
MEMORY = 1 << 30
"""Bytes that a command may take beyond those of the libraries."""
SENTINEL = "sentinel_of_the_fuzzer"
OUTSIDE = "outside"


@dataclass(frozen=True)
class Kind:
    """One kind of files.

    Attributes:
        files: patterns of the documents that are changed.
        seal: makes digests match the changed documents, as far as a stranger could.
        commands: by name, the arguments of a command on a case's directory.
        differs: returns how an accepted change means something else than is shown, or an empty text.
    """

    files: tuple[str, ...]
    seal: Callable[[Path, random.Random], None]
    commands: Mapping[str, Callable[[Path], list[object]]]
    differs: Callable[[Path, str, bool], str]


# -- changes ------------------------------------------------------------------------------------------------------

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 255, 4096, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400),
    *(1e-300, 1e300, -0.0, 0.5, float("nan"), float("inf"), float("-inf")),
)
TEXTS: tuple[str, ...] = (
    *("", "a", "0", "1", "true", "null", "NaN", "\0", "\n", "a\nb", "\ud800", "é", "\u202e", " ", "=cmd()"),
    *(
        "../outside/private.txt",
        "../../outside",
        "/etc/passwd",
        "..",
        ".",
        "./",
        "a/../../b",
        "~",
        "x" * 70_000,
    ),
    *("client/99", "client/-1", "client/0\n", "server+server", "client/0+client/0", "world", "eavesdropper"),
    *(f"import:{SENTINEL}", f"import:{SENTINEL}:Anything", f"import:{SENTINEL}:run", "import:os:system"),
    *("import:", "import::", "npz:../outside/private.npz", "folder:../outside", "hf:nobody/nothing"),
    *(
        "<script>alert(1)</script>",
        "{{ 7*7 }}",
        "%s%n",
        "$(touch x)",
        "`touch x`",
        "-" * 3,
        "--out",
        "__class__",
    ),
    *(
        "0" * 64,
        "f" * 64,
        "fedavg",
        "fedkd",
        "mlp",
        "resnet18",
        "logits",
        "model_parameters",
        "float32",
        "F64",
    ),
)
SHAPES: tuple[Any, ...] = (
    *([], {}, [[]], [None], {"": None}, [0] * 2000, ["data"], {"__class__": "x"}),
    *([4096, 4096, 4096], [1, 4096, 4096], [2**31, 2**31], [2**62, 4], [-1, 8], [0], [1] * 70),
    *({"name": f"import:{SENTINEL}:Anything"}, {"name": "mlp", "params": {"widths": [2**20, 2**20]}}),
)


def disturbed(value: Any, draws: random.Random) -> tuple[Any, str]:
    """Change a document in one place; return it, and what was done."""
    places = list(places_in(value))
    if not places:
        return draws.choice((*NUMBERS, *SHAPES)), "replace all"
    node, key = draws.choice(places)
    way = draws.choice(_WAYS)
    with suppress(KeyError, IndexError, TypeError):
        way(node, key, places, draws)
    return value, f"{way.__name__.strip('_')} {str(key)[:40]!r}"


def _put(values: tuple[Any, ...]) -> Callable[[Any, Any, Any, random.Random], None]:
    def put(node: Any, key: Any, places: Any, draws: random.Random) -> None:
        node[key] = copy.deepcopy(draws.choice(values))

    return put


def _drop(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    del node[key]


def _rename(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    if isinstance(node, dict):
        node[draws.choice((*TEXTS, key.upper(), f"{key} ", f"_{key}"))] = node.pop(key)


def _double(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    if isinstance(node, list):
        node[key:key] = [copy.deepcopy(node[key])] * draws.choice((1, 2, 1000))
    else:
        node[f"{key}2"] = copy.deepcopy(node[key])


def _swap(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    other, name = draws.choice(places)
    if copy.deepcopy(other[name]) is not None:
        # Copies, so that no value comes to lie in itself.
        one, two = copy.deepcopy(node[key]), copy.deepcopy(other[name])
        node[key], other[name] = two, one


def _nest(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    levels = draws.choice((1, 2, 500, 900))
    value = copy.deepcopy(node[key])
    for _ in range(levels):
        value = [value] if draws.random() < 0.5 else {"a": value}
    node[key] = value


def _retype(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    value = node[key]
    others: list[Any] = [str(value), [value], {"value": value}, None, bool(value)]
    if isinstance(value, int | float):
        others += [float(value), -value, value + 1, value * 1000]
    if isinstance(value, str):
        others += [value.upper(), value[:-1], value + "0", value[::-1]]
    if isinstance(value, list):
        others += [value[::-1], value[:-1], value * 2, dict(enumerate(value))]
    node[key] = draws.choice(others)


def _products(node: Any, key: Any, places: Any, draws: random.Random) -> None:
    """Large values in several number fields at once: each is within its own limit."""
    for other, name in places:
        if type(other[name]) is int and draws.random() < 0.3:
            other[name] = draws.choice((100, 1000, 4096, 65_536, 1_000_000))


_WAYS = (
    *(_put(NUMBERS), _put(TEXTS), _put(TEXTS), _put(SHAPES), _drop, _rename, _double, _swap, _nest),
    *(_retype, _retype),
    _products,
)


def _names(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): inner for key, inner in value.items()}


def text_of(value: Any) -> bytes:
    """A document's bytes: canonical where they can be, and as JSON writes them otherwise."""
    with suppress(ValueError, TypeError, RecursionError):
        return canonical(value)
    with suppress(ValueError, TypeError, RecursionError):
        return json.dumps(value).encode("utf-8", "surrogatepass")
    return b"null"


def change_document(path: Path, draws: random.Random) -> str:
    """Change one document of a case; return what was done."""
    how = draws.random()
    if how < 0.06:
        return _change_file(path, draws)
    data = path.read_bytes()
    with suppress(ValueError, RecursionError, yaml.YAMLError):
        if path.suffix == ".jsonl":
            lines = data.splitlines()
            at = draws.randrange(len(lines))
            value, told = disturbed(json.loads(lines[at]), draws)
            lines[at] = text_of(value)
            told = _reorder(lines, draws) or told
            path.write_bytes(b"\n".join(lines) + b"\n")
        elif path.suffix in (".yaml", ".yml"):
            value, told = disturbed(yaml.safe_load(data), draws)
            with suppress(UnicodeError):
                path.write_text(yaml.safe_dump(value))
        elif path.suffix == ".safetensors" or path.suffix == ".shard":
            length = int.from_bytes(data[:8], "little")
            value, told = disturbed(json.loads(data[8 : 8 + length]), draws)
            head = text_of(value)
            path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :])
        elif path.name == "scored.json":
            told = _change_envelope(path, draws)
        else:
            value, told = disturbed(json.loads(data), draws)
            path.write_bytes(text_of(value) + b"\n")
        return f"{path.name}: {told}"
    return f"{path.name}: nothing"


def _reorder(lines: list[bytes], draws: random.Random) -> str:
    if draws.random() > 0.2:
        return ""
    at, other = draws.randrange(len(lines)), draws.randrange(len(lines))
    way = draws.choice(("drop", "copy", "swap"))
    if way == "drop":
        del lines[at]
    elif way == "copy":
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return f"{way} line {at}"


def _change_envelope(path: Path, draws: random.Random) -> str:
    """Change the statement in an envelope, or the envelope."""
    envelope = json.loads(path.read_bytes())
    if draws.random() < 0.15 or not _holds_statement(envelope):
        envelope, told = disturbed(envelope, draws)
    else:
        value, told = disturbed(json.loads(base64.b64decode(envelope["payload"])), draws)
        envelope["payload"] = base64.b64encode(text_of(value)).decode()
    path.write_bytes(text_of(envelope) + b"\n")
    return told


def _holds_statement(envelope: Any) -> bool:
    """Return whether an envelope, which an earlier change may have spoilt, still holds a statement."""
    try:
        json.loads(base64.b64decode(envelope["payload"]))
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _change_file(path: Path, draws: random.Random) -> str:
    """Put a link, a pipe or a folder in the place of a file or of the folder around it."""
    folders = (
        "transcript",
        "payloads",
        "attacks",
        "controls",
        "truth",
        "vault",
        "report",
        "models",
        "scores",
    )
    if draws.random() < 0.3 and path.parent.name in folders:
        path = path.parent
    outside = next(p / OUTSIDE for p in path.parents if (p / OUTSIDE).is_dir())
    way = draws.choice(
        ("link", "link to a folder", "dead link", "hard link", "pipe", "folder", "file", "none")
    )
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if way == "link":
        path.symlink_to(outside / "private.txt")
    elif way == "link to a folder":
        path.symlink_to(outside)
    elif way == "dead link":
        path.symlink_to(outside / "nowhere")
    elif way == "hard link":
        path.hardlink_to(outside / "private.txt")
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way == "file":
        path.write_bytes(b"{}")
    return f"{path.name}: {way}"


# -- seals ------------------------------------------------------------------------------------------------------


def rechain(transcript: Path, draws: random.Random) -> tuple[str, int]:
    """Chain a transcript's lines again, and perhaps digest its payloads again; return its head and its length."""
    from fdaudit.storage.files import commitment

    log, previous, ends = transcript / "messages.jsonl", "0" * 64, dict[str, int]()
    first = json.loads(content(log).split(b"\n", 1)[0] or b"{}")
    previous = str(first.get("previous", previous)) if isinstance(first, dict) else previous
    redigest, renumber, lines = draws.random() < 0.5, draws.random() < 0.7, []
    for number, line in enumerate(content(log).splitlines()):
        value = json.loads(line)
        if isinstance(value, dict):
            value["previous"] = previous
            value["seq"] = number if renumber else value.get("seq")
            with suppress(KeyError, TypeError, OSError, ValueError):
                name, length = str(value["payload"]["file"]), int(value["payload"]["length"])
                begin = ends.get(name, 0)
                ends[name] = begin + length
                payload = content(transcript / name)[begin : begin + length] if redigest else None
                if payload is not None:
                    value["sha256"] = commitment(bytes.fromhex(value["salt"]), payload)
        lines.append(text_of(value))
        previous = hashlib.sha256(lines[-1]).hexdigest()
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    return previous, len(lines)


def _seal_run(case: Path, draws: random.Random) -> None:
    run = case / "run"
    manifest = json.loads(content(run / "manifest.json"))
    manifest["head"], manifest["messages"] = rechain(run / "transcript", draws)
    for name in manifest["files"]:
        manifest["files"][name] = hashlib.sha256(content(run / name)).hexdigest()
    manifest.pop("self", None)
    manifest["self"] = hashlib.sha256(canonical(manifest)).hexdigest()
    (run / "manifest.json").write_bytes(canonical(manifest) + b"\n")


def _seal_record(case: Path, draws: random.Random) -> None:
    record = case / "record"
    value = json.loads(content(record / "record.json"))
    head, count = rechain(record / "transcript", draws)
    value |= {"head": head, "messages": count}
    (record / "record.json").write_bytes(canonical(value) + b"\n")


def _seal_design(case: Path, draws: random.Random) -> None:
    """Commit to the changed lists, and name the commitment in the card half the time."""
    from tests.helpers.rerecorded import with_coins

    content(case / "truth" / "records.json")  # nothing is sealed that is no file
    made = with_coins(case / "truth")
    if draws.random() < 0.5:
        card = yaml.safe_load((case / "record" / "card.yaml").read_text())
        (case / "record" / "card.yaml").write_text(yaml.safe_dump({**card, "design": made}))


def _seal_guesses(case: Path, draws: random.Random) -> None:
    """Nothing: guesses name digests, and nothing covers them."""


def _seal_statement(case: Path, draws: random.Random) -> None:
    """State the digest of the guesses that lie beside the statement."""
    path = case / "scored.json"
    envelope = json.loads(content(path))
    value = json.loads(base64.b64decode(envelope["payload"]))
    value["subject"] = [{"name": "guesses.json", "digest": {"sha256": _sha256(case / "guesses.json")}}]
    envelope["payload"] = base64.b64encode(canonical(value)).decode()
    path.write_bytes(canonical(envelope) + b"\n")


def content(path: Path) -> bytes:
    """The bytes of a regular file.

    Raises:
        FileNotFoundError: it is none; what is in its place is not opened, for a pipe would be waited for.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def _sha256(path: Path) -> str:
    return hashlib.sha256(content(path)).hexdigest()


# -- meaning ----------------------------------------------------------------------------------------------------


def _same_json(one: Any, other: Any) -> bool:
    return text_of(one) == text_of(other)


def _of_a_run(case: Path, command: str, sealed: bool) -> str:
    """Unsealed changes of what digests cover are refused; sealed ones have another head."""
    run, before = case / "run", _template_of(case) / "run"
    covered = ["manifest.json", "spec.yaml", "utility.csv", "transcript/messages.jsonl"]
    covered += [f"transcript/payloads/{p.name}" for p in (before / "transcript" / "payloads").iterdir()]
    same = all((run / n).is_file() and _sha256(run / n) == _sha256(before / n) for n in covered)
    if same:
        return ""
    head = json.loads(content(run / "manifest.json"))["self"]
    if head == json.loads(content(before / "manifest.json"))["self"]:
        return "a record with the same manifest says something else"
    return "" if sealed else "a change that no seal covers was accepted"


def _of_a_record(case: Path, command: str, sealed: bool) -> str:
    """What was imported is the record, line for line; an unsealed change is refused."""
    log, before = case / "record" / "transcript" / "messages.jsonl", _template_of(case) / "record"
    if not sealed and content(log) != content(before / "transcript" / "messages.jsonl"):
        return "changed lines were accepted without a seal" if command != "card new" else ""
    imported = case / "out" / "transcript" / "messages.jsonl"
    if imported.is_file() and imported.read_bytes() != content(log)[: imported.stat().st_size]:
        return "the imported lines are not the record's"
    return ""


def _of_a_card(case: Path, command: str, sealed: bool) -> str:
    """The run shows the card's own statements."""
    kept = case / "out" / "card.yaml"
    if not kept.is_file():
        return ""
    stated = yaml.safe_load((case / "record" / "card.yaml").read_text())
    shown = yaml.safe_load(kept.read_text())
    lost = [n for n, value in stated.items() if value is not None and not _contained(value, shown.get(n))]
    return f"the run's card does not show {lost}" if lost else ""


def _contained(stated: Any, shown: Any) -> bool:
    """Whether every stated value is shown; defaults may be written out besides."""
    if isinstance(stated, dict) and isinstance(shown, dict):
        return all(k in shown and _contained(v, shown[k]) for k, v in stated.items() if v is not None)
    if isinstance(stated, list) and isinstance(shown, list):
        return len(stated) == len(shown) and all(map(_contained, stated, shown))
    if type(stated) in (int, float) and type(shown) in (int, float):
        return float(stated) == float(shown)
    return type(stated) is type(shown) and bool(stated == shown)


def _of_a_design(case: Path, command: str, sealed: bool) -> str:
    """Lists that a commitment covers are the ones it was made for, or the commitment is another one and shown."""
    truth, before = case / "truth" / "records.json", _template_of(case) / "truth" / "records.json"
    if not truth.is_file():
        return ""  # no lists were brought
    now, then = (json.loads(content(p)) for p in (truth, before))
    card = yaml.safe_load((case / "record" / "card.yaml").read_text())
    kept = case / "out" / "manifest.json"
    if not kept.is_file() or card.get("design") is None or now.get("design") is None:
        return ""
    made = now["design"]["commitment"]
    if made != card["design"]:
        return "coins of another design than the card names were taken"
    if made == then["design"]["commitment"] and not _same_json(now["clients"], then["clients"]):
        return "a commitment covers two different lists"
    design = json.loads(kept.read_bytes())["recording"]["design"]
    return "" if made in json.dumps(design) or design else "the run does not show its design"


def _of_guesses(case: Path, command: str, sealed: bool) -> str:
    """What is kept names the guesses by the digest of their bytes, and the view that they are about."""
    given = json.loads(content(case / "guesses" / "guesses.json"))
    then = json.loads(content(_template_of(case) / "guesses" / "guesses.json"))
    if given["view"] != then["view"] and command == "score":
        return "guesses about another view were scored"
    kept = case / "run" / "attacks" / f"external-{given['name']}.json"
    if command == "score":
        cell = json.loads(kept.read_bytes())
        if cell["params"]["guesses_sha256"] != _sha256(case / "guesses" / "guesses.json"):
            return "the outcome does not name these guesses"
        if cell["adversary"] != given["adversary"]:
            return "the outcome is about another adversary"
    return ""


def _of_a_statement(case: Path, command: str, sealed: bool) -> str:
    """The run keeps the statement's figures as stated, and that nobody signed it."""
    envelope = json.loads(content(case / "scored.json"))
    value = json.loads(base64.b64decode(envelope["payload"]))
    if value["subject"][0]["digest"]["sha256"] != _sha256(case / "guesses.json"):
        return "figures of other guesses were taken"
    given = json.loads(content(case / "guesses.json"))
    cell = json.loads((case / "run" / "attacks" / f"external-{given['name']}.json").read_bytes())
    if cell["params"].get("scored_by") != "unsigned":
        return "an unsigned statement is not shown as one"
    stated = [(f["name"], f["value"]) for f in value["predicate"]["figures"]]
    shown = [(f["name"], f["value"]) for f in cell["figures"]]
    if not _same_json(stated, shown):
        return "the run shows other figures than were stated"
    return ""


KINDS: Mapping[str, Kind] = {
    "run": Kind(
        ("run/**/*.json", "run/**/*.jsonl", "run/*.yaml", "run/**/*.safetensors", "run/**/*.shard"),
        _seal_run,
        {
            "verify": lambda case: ["verify", case / "run"],
            "ledger": lambda case: ["ledger", case / "run"],
            "attack": lambda case: ["attack", case / "run", "label-counts"],
            "report": lambda case: ["report", case / "run"],
            "report --public": lambda case: ["report", case / "run", "--public"],
            "export-view": lambda case: ["export-view", case / "run", "server", "--out", case / "out"],
            "run --resume": lambda case: ["run", "--resume", "--out", case / "run"],
            "evidence": lambda case: ["evidence", case / "run", "--out", case / "out"],
        },
        _of_a_run,
    ),
    "record": Kind(
        ("record/*.json", "record/**/*.jsonl", "record/**/*.shard", "record/**/*.safetensors"),
        _seal_record,
        {
            "import --check": lambda case: ["import", case / "record", "--check"],
            "import": lambda case: ["import", case / "record", "--out", case / "out"],
            "verify": lambda case: ["verify", case / "record"],
            "card new": lambda case: ["card", "new", case / "record", "--out", case / "new.yaml"],
        },
        _of_a_record,
    ),
    "card": Kind(
        ("record/card.yaml",),
        _seal_guesses,
        {
            "import --check": lambda case: ["import", case / "record", "--check"],
            "import": lambda case: ["import", case / "record", "--out", case / "out"],
        },
        _of_a_card,
    ),
    "design": Kind(
        ("truth/records.json",),
        _seal_design,
        {
            "import --check": lambda case: ["import", case / "record", "--check", "--truth", case / "truth"],
            "import": lambda case: [
                "import",
                case / "record",
                "--out",
                case / "out",
                "--truth",
                case / "truth",
            ],
        },
        _of_a_design,
    ),
    "guesses": Kind(
        ("guesses/guesses.json", "guesses/record/**/*.json*", "guesses/record/*.yaml"),
        _seal_guesses,
        {
            "score": lambda case: ["score", case / "run", case / "guesses" / "guesses.json"],
            "score --truth": lambda case: [
                *("score", case / "guesses", "--truth", case / "truth", "--out", case / "out.json")
            ],
        },
        _of_guesses,
    ),
    "statement": Kind(
        ("scored.json", "guesses.json"),
        _seal_statement,
        {
            "score --scored": lambda case: [
                *("score", case / "run", case / "guesses.json", "--scored", case / "scored.json")
            ],
        },
        _of_a_statement,
    ),
}


def _template_of(case: Path) -> Path:
    return Path(os.environ["FDAUDIT_FUZZ_TEMPLATES"]) / case.name.partition("-")[0]


# -- cases --------------------------------------------------------------------------------------------------------


def run_command(arguments: list[object]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, what it printed, and its errors.

    Raises:
        Exception: what escaped the command line, which would be a traceback.
    """
    out, errors = io.StringIO(), io.StringIO()
    code: object = 0
    sys.argv = ["fdaudit", *map(str, arguments)]
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            command_line()
        except SystemExit as end:
            code = end.code
    return int(code or 0) if isinstance(code, int | None) else 1, out.getvalue(), errors.getvalue()


def _stat_of(folder: Path) -> dict[str, Any]:
    """Everything of a tree that a write would change; the number of names of a file may."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        digest = _sha256(path) if path.is_file() else ""
        found[str(path)] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, digest)
    return found


def run_case(name: str, number: int, templates: Path, scratch: Path) -> tuple[str, str]:
    """Run one case; return its outcome in a word and, if it is a finding, in a sentence."""
    kind, draws = KINDS[name], random.Random(f"{SEED}/{name}/{number}")
    case = scratch / f"{name}-{number}"
    shutil.copytree(templates / name, case)
    told, sealed = _changed(kind, case, draws)
    command = draws.choice(sorted(kind.commands))
    before, beside = _stat_of(scratch / OUTSIDE), sorted(p.name for p in scratch.iterdir())
    outcome, problem = _judged(kind, case, command, sealed)
    if _stat_of(scratch / OUTSIDE) != before or sorted(p.name for p in scratch.iterdir()) != beside:
        outcome, problem = "finding", "something outside the case was written"
    if (ran := Path(os.environ["FDAUDIT_FUZZ_RAN"])).exists():
        ran.unlink()
        outcome, problem = "finding", "code that the files name was run"
    shutil.rmtree(case)
    sort = "sealed" if sealed else "unsealed"
    return outcome, problem and f"{name} {number}, `{command}`, {sort} ({'; '.join(told)}): {problem}"


def _changed(kind: Kind, case: Path, draws: random.Random) -> tuple[list[str], bool]:
    """Change documents of a case, and seal them; return what was done, and whether the seal fits."""
    told = []
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        found = {path for pattern in kind.files for path in case.glob(pattern)}
        files = sorted(p for p in found if p.is_file() and not p.is_symlink())
        if files:
            told.append(change_document(draws.choice(files), draws))
    if draws.random() < 0.7:
        with suppress(Exception):  # what was changed cannot be sealed: then it is given as it is
            kind.seal(case, draws)
            return told, True
    return told, False


def _judged(kind: Kind, case: Path, command: str, sealed: bool) -> tuple[str, str]:
    try:
        with watched(BLOCKED, PATIENCE):
            code, out, errors = run_command(kind.commands[command](case))
    except Hang:
        return "finding", f"takes more than {PATIENCE:g} s of processor time, or waits for ever"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return "finding", f"a traceback: {type(error).__name__} in {where}: {str(error)[:200]}"
    if "PRIVATE-OUTSIDE" in out + errors:
        return "finding", "what is private was shown"
    if code not in (0, 1, 2, 3):
        return "finding", f"exit code {code}: {errors[-300:]}"
    if code == 1 and "failed" not in out + errors and "contradicted" not in errors:
        return "finding", f"exit code 1: {(out + errors)[-300:]}"
    if code == 2 and (not errors or any(not x.startswith("fdaudit: ") for x in errors.splitlines())):
        return "finding", f"a mistake of several lines: {errors[-300:]}"
    if code != 0:
        return "refused", ""
    problem = kind.differs(case, command, sealed)
    return ("finding", problem) if problem else ("accepted", "")


def main() -> None:
    """Run one case, or those from one number to another, in bounded memory; print a line for each."""
    import torch

    from .structured_templates import make_templates

    name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3] if len(sys.argv) > 3 else sys.argv[2])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        os.environ.setdefault("XDG_STATE_HOME", str(home / "state"))  # by hand: never the user's own ledger
        templates = Path(os.environ.get("FDAUDIT_FUZZ_TEMPLATES") or make_templates(home / "templates"))
        os.environ["FDAUDIT_FUZZ_TEMPLATES"] = str(templates)
        os.environ["FDAUDIT_FUZZ_RAN"] = str(home / "ran")
        os.environ["FDAUDIT_CACHE"] = str(home / "cache")
        sys.path.insert(0, str(templates / "plugins"))
        (home / "cases" / OUTSIDE).mkdir(parents=True)
        (home / "cases" / OUTSIDE / "private.txt").write_text("PRIVATE-OUTSIDE\n")
        os.chdir(home / "cases" / OUTSIDE)
        _warm_up(name, templates, home / "cases")
        bound_memory(MEMORY)  # once the libraries are loaded
        for number in range(first, last + 1):
            outcome, problem = run_case(name, number, templates, home / "cases")
            print(json.dumps([number, outcome, problem]), flush=True)


def _warm_up(name: str, templates: Path, scratch: Path) -> None:
    """Run every command of a kind on unchanged files: it loads its libraries, and must do its work."""
    for command, arguments in KINDS[name].commands.items():
        case = scratch / f"{name}-whole"
        shutil.copytree(templates / name, case)
        code, out, errors = run_command(arguments(case))
        assert code == 0, f"{name}, {command}: {out[-300:]}{errors[-300:]}"
        assert not KINDS[name].differs(case, command, False), f"{name}, {command}"
        shutil.rmtree(case)


if __name__ == "__main__":
    main()
