"""Cost of the record alone: appending against bare safetensors and SHA-256, and memory against rounds.

A appends messages of one tensor and makes them durable at the end of the round. B writes the same tensors with
`safetensors`, hashes the files' bytes and makes nothing durable. Memory is the growth of a process's resident size
after two rounds: a record that is never held does not grow with their number.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _pairs import HEADS, Pairs, compare, table
from safetensors.torch import save

from fdaudit.rng import child
from fdaudit.transcript.messages import DATA, Message
from fdaudit.transcript.transcript import Transcript

SIZES = {"1 KB": 1 << 8, "100 KB": 100 << 8, "4 MB": 4 << 18}
"""Numbers of four bytes in a message."""
MESSAGES, ROUNDS = 20, (20, 200)
CLEAR = Path("/proc/self/clear_refs")


def recording(folder: Path, numbers: int) -> tuple[Transcript, dict[str, torch.Tensor]]:
    tensors = {"w": torch.rand(numbers, generator=child(1, "payload"))}
    return Transcript(folder, secret=bytes(32)), tensors


def write_round(transcript: Transcript, tensors: dict[str, torch.Tensor], number: int) -> None:
    for k in range(MESSAGES):
        draft = Message(
            seq=0,
            round=number,
            step=0,
            sender=f"client/{k}",
            receivers=("server",),
            kind="model_update",
            inputs=(DATA,),
        )
        transcript.append(draft, tensors)
    transcript.sync()


def throughput(numbers: int, pairs: int) -> Pairs:
    with tempfile.TemporaryDirectory() as folder:
        transcript, tensors = recording(Path(folder) / "transcript", numbers)
        bare = Path(folder) / "bare"
        bare.mkdir()
        written = 0

        def record() -> None:
            write_round(transcript, tensors, 0)

        def save_and_hash() -> None:
            nonlocal written
            for _ in range(MESSAGES):
                payload = save(tensors)
                hashlib.sha256(payload).hexdigest()
                (bare / f"{written:08d}.safetensors").write_bytes(payload)
                written += 1

        return compare(record, save_and_hash, pairs=pairs)


def growth(rounds: int) -> str:
    """MiB by which a process of its own grows at its highest while it writes so many rounds of 100 KB messages."""
    done = subprocess.run(
        [sys.executable, __file__, "--write", str(rounds)], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        transcript, tensors = recording(Path(folder), SIZES["100 KB"])
        for number in range(2):
            write_round(transcript, tensors, number)
        if not CLEAR.exists():
            print("unavailable: needs Linux's /proc")
            return
        CLEAR.write_text("5")  # the highest resident size so far is forgotten; imports would hide the rest
        before = resident("VmRSS")
        for number in range(2, 2 + rounds):
            write_round(transcript, tensors, number)
        print(f"{(resident('VmHWM') - before) / 1024:.1f}")


def resident(what: str) -> int:
    """A figure of this process's memory in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--write", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.write:
        write(options.write)
        return
    rows = []
    for name, numbers in SIZES.items():
        found = throughput(numbers, options.pairs)
        each = statistics.median(found.a) / MESSAGES
        rows.append(
            [*found.row(f"append / save: {name}"), f"{1 / each:.0f}", f"{4 * numbers / each / 1e6:.0f}"]
        )
    print(f"rounds of {MESSAGES} messages; A is durable when it ends, B is not")
    print(table((*HEADS, "messages/s", "MB/s"), rows))
    print()
    grown = [[str(n), str(MESSAGES * n), str(MESSAGES * n // 10), growth(n)] for n in ROUNDS]
    print(table(("rounds", "messages", "written, MB", "memory above 2 rounds, MiB"), grown))


if __name__ == "__main__":
    main()
