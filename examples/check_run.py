"""Read and check a run without fdaudit: `python examples/check_run.py RUN`.

Prints one line for each message and stops at the first defect. The format is that of docs/transcript.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from safetensors import deserialize


def sha(data):
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical(value):
    """Return a value as canonical JSON."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def need(condition, problem):
    """End the program if a condition does not hold."""
    if not condition:
        sys.exit(f"refused: {problem}")


def read(run):
    """Yield each message of a run with its tensors, checked."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    stated = manifest.pop("self")
    need(sha(canonical(manifest)) == stated, "manifest.json was changed")
    for name, digest in manifest["files"].items():
        need(sha((run / name).read_bytes()) == digest, f"{name} was changed")
    folder, covered, previous = run / "transcript", {}, "0" * 64
    *lines, rest = (folder / "messages.jsonl").read_bytes().split(b"\n")
    need(rest == b"" and len(lines) == manifest["messages"], "lines are missing, or too many")
    for seq, line in enumerate(lines):
        message, tensors = json.loads(line), {}
        need(canonical(message) == line, f"line {seq} is not canonical")
        need(message["seq"] == seq and message["previous"] == previous, f"line {seq} does not chain")
        if message["payload"] is not None:
            name = message["payload"]["file"]
            own, shared = f"payloads/{seq:08d}.safetensors", f"payloads/round-{message['round']:06d}.shard"
            need(name in (own, shared), f"line {seq} names another file")
            begin = covered.get(name, 0)
            covered[name] = begin + message["payload"]["length"]
            with (folder / name).open("rb") as file:
                file.seek(begin)
                data = file.read(message["payload"]["length"])
            need(sha(bytes.fromhex(message["salt"]) + data) == message["sha256"], f"{name} was changed")
            tensors = dict(deserialize(data))  # name -> dtype, shape, data
            shapes = {n: {"dtype": t["dtype"], "shape": t["shape"]} for n, t in tensors.items()}
            need(shapes == message["tensors"], f"line {seq} describes other tensors")
        previous = sha(line)
        yield message, tensors
    need(previous == manifest["head"], "the head is another")
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    del sizes["messages.jsonl"]
    need(sizes == covered, f"nobody listed {sorted(sizes.items() ^ covered.items())}")


if __name__ == "__main__":
    for m, tensors in read(Path(sys.argv[1])):
        size = sum(len(t["data"]) for t in tensors.values())
        receivers = " ".join(m["receivers"])
        line = f"{m['seq']} {m['round']} {m['sender']} -> {receivers} {m['kind']} {size} bytes\n"
        sys.stdout.write(line)
    sys.stdout.write("intact\n")
