"""Texts that must not pass, and records forged by hand that hold them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fdaudit.recording.recorder import Recorder
from fdaudit.storage.digests import canonical


def text_places(document: type[Any], closed: bool = True) -> list[tuple[str, ...]]:
    """Return where a document may hold a text.

    `0` stands for an item of a list, `*` for a key of a mapping and its value. `closed` includes texts of which the
    document lists all values.
    """
    schema = document.model_json_schema()
    return sorted(set(_places(schema, schema.get("$defs", {}), (), closed)))


def _places(
    node: dict[str, Any], defs: dict[str, Any], path: tuple[str, ...], closed: bool
) -> Iterator[tuple[str, ...]]:
    if "$ref" in node:
        node = defs[node["$ref"].rpartition("/")[2]]
    for option in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from _places(option, defs, path, closed)
    if node.get("type") == "string" and (closed or not {"enum", "const"} & set(node)):
        yield path
    for name, below in node.get("properties", {}).items():
        yield from _places(below, defs, (*path, name), closed)
    if isinstance(node.get("items"), dict):
        yield from _places(node["items"], defs, (*path, "0"), closed)
    if node.get("type") == "object" and "properties" not in node:
        yield (*path, "*")


NO_TEXT: Mapping[str, str] = {
    "newline": "a\nb",
    "carriage return": "a\rb",
    "null": "a\0b",
    "escape": "a\x1b[31mb",
    "tab": "a\tb",
    "delete": "a\x7fb",
    "next line": "a\x85b",
    "line separator": "a\u2028b",
    "override": "a\u202eb",
    "isolate": "a\u2066b",
    "zero width": "a\u200bb",
    "soft hyphen": "a\xadb",
    "no-break space": "a\xa0b",
    "half a character": "a\ud800b",
    "unassigned": "a\u0378b",
    "private use": "a\ue000b",
    "a model": "a [2]\nmodel: {name: 'import:sentinel:Net'}\n#",
}
"""What is no text, by what is wrong with it."""

NO_NAME: Mapping[str, str] = {
    **NO_TEXT,
    "empty": "",
    "long": "a" * 501,
    "space before": " a",
    "space after": "a ",
    "parent": "..",
    "a parent's child": "a/../b",
    "here": "a/.",
    "filler": "a\u3164b",
    "variation": "a\ufe0fb",
    "joiner": "a\u034fb",
}
"""What is a text at most, and no name."""

NAMES = (
    "module.layer1.0.bn1.running_mean",
    "_module.fc.weight",
    "dense_1/kernel:0",
    "['params']['Dense_0']['kernel']",
    "acme/prototype-bank",
    "0",
    "größe",
    "重み",
    "a: b # {c} \"'&*!%@`",
    "---",
    "...",
    "a" * 500,
)
"""Names that real networks have, and some that only look odd."""

LINE: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "sender": lambda v, s: {"sender": s},
    "receivers": lambda v, s: {"receivers": [s]},
    "kind": lambda v, s: {"kind": s},
    "dtype": lambda v, s: {"tensors": {n: {**t, "dtype": s} for n, t in v["tensors"].items()}},
    "a field's name": lambda v, s: {"fields": {s: 1}},
    "a field": lambda v, s: {"fields": {"note": [s]}},
    "inputs": lambda v, s: {"inputs": [s]},
    "a defence": lambda v, s: {"defenses": [{"name": s}]},
    "a defence's setting": lambda v, s: {"defenses": [{"name": "x", s: {"deep": 1}}]},
    "event": lambda v, s: {"event": {"event": "NoGuarantee", "reason": s}},
    "payload": lambda v, s: {"payload": {**v["payload"], "file": s}},
    "salt": lambda v, s: {"salt": s},
    "sha256": lambda v, s: {"sha256": s},
}
"""Changes of a line: every place of a text but the name of a tensor, which its payload repeats."""


def a_record(folder: Path) -> Path:
    """A record of one update."""
    with Recorder(folder, ["server", "client/0"]) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "model_update", {"w": np.zeros(2, np.float32)})
    return folder


def forge(record: Path, change: Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Change the first line of a record, and make its head fit."""
    log = record / "transcript" / "messages.jsonl"
    line = json.loads(log.read_bytes())
    line |= change(line) if callable(change) else change
    text = canonical(line)
    log.write_bytes(text + b"\n")
    about = json.loads((record / "record.json").read_bytes())
    about["head"] = hashlib.sha256(text).hexdigest()
    (record / "record.json").write_bytes(canonical(about) + b"\n")


def rename_tensor(record: Path, name: str) -> None:
    """Give the tensor of the first line another name, in its payload as well."""
    try:
        header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
        text = json.dumps(header, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(header).encode("ascii")
    payload = struct.pack("<Q", len(text)) + text + bytes(8)
    (record / "transcript" / "payloads" / "round-000000.shard").write_bytes(payload)
    digest = hashlib.sha256(bytes(16) + payload).hexdigest()
    forge(
        record,
        lambda line: {
            "tensors": {name: {"dtype": "F32", "shape": [2]}},
            "payload": {**line["payload"], "length": len(payload)},
            "salt": bytes(16).hex(),
            "sha256": digest,
        },
    )
