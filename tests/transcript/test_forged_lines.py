"""Lines that a stranger has made, and a stranger who reads lines."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fdaudit.storage.digests import canonical
from fdaudit.transcript.transcript import LOG, verify_transcript

from ..helpers.transcript_cases import (
    filled,
)


def forged(directory: Path, **changes: Any) -> list[str]:
    """Findings on a transcript of one message whose line was edited, and whose head was rewritten to match."""
    filled(directory, [{"a": torch.zeros(2)}])
    value = json.loads((directory / LOG).read_bytes())
    line = canonical({**value, **changes})
    (directory / LOG).write_bytes(line + b"\n")
    return verify_transcript(directory, head=hashlib.sha256(line).hexdigest(), count=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": {"file": "../../etc/passwd", "length": 10}},
        {"payload": {"file": "/etc/passwd", "length": 10}},
        {"payload": {"file": "payloads/../messages.jsonl", "length": 10}},
        {"payload": {"file": "payloads/round-000000.shard\n", "length": 10}},
        {"payload": {"file": "payloads/round-000000.shard", "length": 10**30}},
        {"payload": {"file": "payloads/round-000000.shard", "length": 10**15}},
        {"payload": {"file": "payloads/round-000000.shard", "length": -1}},
        {"payload": {"file": "payloads/round-000000.shard", "length": 80, "offset": 0}},
        {"payload": {"file": "payloads/round-000001.shard", "length": 80}},
        {"offset": 0},
        {"offset": 8},
        {"payload": {"file": ["x"], "length": 1}},
        {"payload": []},
        {"payload": "payloads/round-000000.shard"},
        {"payload": {}},
        {"payload": None},
        {"round": "x"},
        {"round": -1},
        {"step": None},
        {"seq": 5},
        {"seq": True},
        {"kind": ["gradient"]},
        {"kind": "not a kind"},
        {"receivers": [["server"]]},
        {"inputs": [0]},
        {"inputs": [-1]},
        {"inputs": ["everything"]},
        {"inputs": [[0]]},
        {"inputs": {"data": 1}},
        {"tensors": {}},
        {"tensors": {"a": {"dtype": "F32", "shape": [3]}}},
        {"tensors": {"a": {"dtype": ["F32"], "shape": [2]}}},
        {"salt": 7},
        {"salt": "zz"},
        {"sha256": ""},
        {"previous": "1" * 64},
        {"event": {"event": []}},
        {"event": {"event": "Gaussian", "scale": "much"}},
        {"defenses": ["noise"]},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_forged_line_is_a_finding_and_no_crash(changes: dict[str, Any], tmp_path: Path) -> None:
    """The forger may rewrite the head; what a line says must still be possible."""
    findings = forged(tmp_path, **changes)
    assert findings
    assert all("messages.jsonl" in f or "message 0" in f or "payloads/" in f for f in findings), findings


def test_a_forged_header_is_a_finding_and_no_crash(tmp_path: Path) -> None:
    for number, text in enumerate((b"[" * 50_000, b"{}", b'{"a":{"dtype":"F32","shape":[[2]]}}')):
        directory = tmp_path / str(number)
        filled(directory, [{"a": torch.zeros(2)}])
        payload = len(text).to_bytes(8, "little") + text
        (directory / "payloads" / "00000000.safetensors").write_bytes(payload)
        value = json.loads((directory / LOG).read_bytes())
        value["payload"]["length"] = len(payload)
        value["sha256"] = hashlib.sha256(bytes.fromhex(value["salt"]) + payload).hexdigest()
        line = canonical(value)
        (directory / LOG).write_bytes(line + b"\n")
        assert verify_transcript(directory, head=hashlib.sha256(line).hexdigest(), count=1)


def test_a_payload_that_is_no_plain_file_is_a_finding_and_not_read(tmp_path: Path) -> None:
    """Opening a named pipe would wait for ever, reading a device would never end."""
    for kind in ("pipe", "link", "device", "folder"):
        directory = tmp_path / kind
        position, _ = filled(directory, [{"a": torch.zeros(2)}])
        path = directory / "payloads" / "round-000000.shard"
        if kind == "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        findings = verify_transcript(directory, head=position.head, count=1)
        assert any("round-000000.shard" in f for f in findings), (kind, findings)


# -- a stranger -----------------------------------------------------------------------------------------------

STRANGER = """
import hashlib, json, sys
from pathlib import Path
from safetensors import safe_open

directory, previous, shapes = Path(sys.argv[1]), "0" * 64, []
for line in (directory / "messages.jsonl").read_bytes().split(b"\\n")[:-1]:
    message = json.loads(line)
    assert message["previous"] == previous
    previous = hashlib.sha256(line).hexdigest()
    payload = (directory / message["payload"]["file"]).read_bytes()
    assert hashlib.sha256(bytes.fromhex(message["salt"]) + payload).hexdigest() == message["sha256"]
    with safe_open(directory / message["payload"]["file"], "numpy") as tensors:
        shapes.append({name: list(tensors.get_tensor(name).shape) for name in tensors.keys()})
    assert shapes[-1] == {name: t["shape"] for name, t in message["tensors"].items()}
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"fdaudit", "torch", "pickle5"}, loaded
print(json.dumps({"head": previous, "shapes": shapes}))
"""


def test_a_stranger_reads_it_with_json_and_safetensors_alone(tmp_path: Path) -> None:
    position, _ = filled(
        tmp_path, [{"a": torch.zeros(2, 3), "b": torch.tensor(1)}, {}, {"c": torch.zeros(0)}]
    )
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "head": position.head,
        "shapes": [{"a": [2, 3], "b": []}, {}, {"c": [0]}],
    }
