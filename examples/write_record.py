"""Write a record of a federation with Python's standard library alone: `python examples/write_record.py`.

The format is that of docs/recording.md and docs/transcript.md. The recorder also makes each round durable.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
from pathlib import Path


def canonical(value):
    """Return a value as canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode(tensors):
    """Return a safetensors file of float32 tensors, given by name as (shape, values)."""
    header, data = {}, b""
    for name, (shape, values) in sorted(tensors.items()):
        more = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return header, len(data), len(text).to_bytes(8, "little") + text + data


def write(directory, parties, messages):
    """Write a record of (round, sender, receivers, kind, tensors), in the order of sending."""
    transcript, previous, step, rounds = directory / "transcript", "0" * 64, 0, []
    (transcript / "payloads").mkdir(parents=True)
    for seq, (round, sender, receivers, kind, tensors) in enumerate(messages):
        header, size, payload = encode(tensors)
        shared = len(payload) <= 1 << 20
        file = f"payloads/round-{round:06d}.shard" if shared else f"payloads/{seq:08d}.safetensors"
        with (transcript / file).open("ab") as out:
            out.write(payload)
        step = step + 1 if round in rounds[-1:] else 0
        rounds += [round] if step == 0 else []
        salt = secrets.token_bytes(16)
        line = {"seq": seq, "round": round, "step": step, "sender": sender, "receivers": sorted(receivers)}
        line |= {"kind": kind, "inputs": "all", "fields": {}, "defenses": [], "event": None}
        line |= {"tensors": {n: {"dtype": t["dtype"], "shape": t["shape"]} for n, t in header.items()}}
        line |= {"bytes_on_wire": size, "payload": {"file": file, "length": len(payload)}}
        line |= {"salt": salt.hex(), "sha256": hashlib.sha256(salt + payload).hexdigest()}
        text = canonical(line | {"previous": previous})
        with (transcript / "messages.jsonl").open("ab") as out:
            out.write(text + b"\n")
        previous = hashlib.sha256(text).hexdigest()
    end = {"head": previous, "messages": seq + 1, "rounds": len(rounds), "status": "closed"}
    about = {"schema": "fdaudit-record/1", "recorder": "1", "parties": parties}
    (directory / "record.json").write_bytes(canonical(about | end) + b"\n")


if __name__ == "__main__":
    model = {"weight": ([2, 3], [0.5, -1, 2, 0, 1, 3]), "bias": ([2], [0, 1])}
    sent = [
        (0, "server", ["client/1", "client/0"], "model_parameters", model),
        (0, "client/0", ["server"], "model_update", model),
        (0, "client/1", ["server"], "model_update", model),
        (1, "server", ["world"], "model_parameters", model),
    ]
    write(Path("WRITTEN"), ["server", "client/0", "client/1", "world"], sent)
