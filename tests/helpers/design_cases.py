"""Keys of designs: two clients with four records each, of which one pair is a pair of candidates, and other rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fdaudit.planning.brought import ClientRecords, array_digests, commit
from fdaudit.storage.digests import canonical

ROWS = 14
CLIENTS: dict[str, dict[str, list[int]]] = {
    "client/0": {"records": [7, 0, 2, 5], "members": [0], "non_members": [2]},
    "client/1": {"records": [1, 3, 4, 6], "members": [3], "non_members": [1]},
}
SHARED = {"auxiliary": [8, 9], "public": [10, 11], "test": [12, 13]}
SALT = bytes(range(32))

Change = Callable[[dict[str, Any]], object]


def arrays() -> dict[str, Any]:
    """The records: rows of even numbers are of class 0."""
    images = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 4), dtype=np.uint8)
    return {"x": images, "y": np.arange(ROWS) % 2}


def committed(clients: dict[str, Any], **held: Any) -> str:
    """The commitment to clients as JSON has them, and to arrays."""
    rows = {p: ClientRecords(**{n: torch.tensor(r) for n, r in own.items()}) for p, own in clients.items()}
    return commit(SALT, rows, array_digests(held))


def write_key(
    folder: Path,
    before: Change | None = None,
    after: Change | None = None,
    *,
    coins: bool = True,
    held: dict[str, Any] | None = None,
) -> Path:
    """Writes the two files of a key, changed before or after the commitment to them is made."""
    folder.mkdir(parents=True, exist_ok=True)
    held = arrays() if held is None else held
    value: dict[str, Any] = json.loads(
        json.dumps({"schema": "fdaudit-records/1", "clients": CLIENTS, "design": None, **SHARED})
    )
    if before is not None:
        before(value)
    if coins:
        made = committed(value["clients"], **held)
        value["design"] = {"kind": "matched-pairs", "salt": SALT.hex(), "commitment": made}
    if after is not None:
        after(value)
    (folder / "records.json").write_bytes(canonical(value) + b"\n")
    np.savez(folder / "records.npz", **held)
    return folder
