"""Records a run again, with the recorder, as if another system had sent its messages; and what an auditor brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fdaudit.audit.run import Run
from fdaudit.recording.recorder import Recorder
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages


def rerecord(run: Run, folder: Path) -> None:
    """Write `record/` and `truth/` to a folder."""
    transcript, uses = run.directory / "transcript", uses_of(run)
    with Recorder(folder / "record", run.case.parties, truth=folder / "truth") as recorder:
        last = -1
        for message in read_messages(transcript):
            if message.round != last:
                recorder.round(last := message.round)
            tensors = readable(decode(read_payload(transcript, message)))
            recorder.send(
                message.sender,
                list(message.receivers),
                message.kind,
                {name: tensor.numpy() for name, tensor in tensors.items()},
                "all" if message.inputs == "all" else list(message.inputs),
                uses.get(message.seq),
            )
    bring(run, folder / "truth")


def uses_of(run: Run) -> dict[int, list[int]]:
    """Return the records behind each message, by the clients' own numbers."""
    vault = run.opened.vault
    return {int(k): n.tolist() for name in vault.names("truth") for k, n in vault.load(name).items()}


def bring(run: Run, truth: Path, **changes: Any) -> None:
    """Write all records of a run as an auditor brings them."""
    data, splits = run.case.dataset, run.case.splits
    clients = {
        party: {
            "records": [*split.train.tolist(), *split.non_members.tolist()],
            "members": split.members.tolist(),
            "non_members": split.non_members.tolist(),
        }
        for party, split in zip(run.case.clients, splits.clients, strict=True)
    }
    lists = {"auxiliary": splits.auxiliary, "public": splits.proxy, "test": splits.test}
    np.savez(truth / "records.npz", x=data.x.numpy().transpose(0, 2, 3, 1), y=data.y.numpy())
    value = {
        "schema": "fdaudit-records/1",
        "clients": clients,
        "design": None,
        **{name: rows.tolist() for name, rows in lists.items()},
        **changes,
    }
    (truth / "records.json").write_bytes(canonical(value) + b"\n")


def with_coins(truth: Path) -> str:
    """Add the commitment of a design to the lists in a truth; return it."""
    from fdaudit.planning.brought import ClientRecords, array_digests, commit

    value = json.loads((truth / "records.json").read_bytes())
    held = dict(np.load(truth / "records.npz"))
    import torch

    clients = {
        party: ClientRecords(**{name: torch.tensor(rows, dtype=torch.int64) for name, rows in own.items()})
        for party, own in value["clients"].items()
    }
    salt = bytes(range(32))
    made = commit(salt, clients, array_digests(held))
    value["design"] = {"kind": "matched-pairs", "salt": salt.hex(), "commitment": made}
    (truth / "records.json").write_bytes(canonical(value) + b"\n")
    return made


def card_of(run: Run, **changes: Any) -> dict[str, Any]:
    """Return the card of a run, as its operator would fill it in."""
    case = run.case
    return {
        "name": "re-recorded",
        "asserted_by": "the tests",
        "classes": case.dataset.classes,
        "input_shape": list(case.dataset.input_shape),
        **({"preprocess": {}} if len(case.dataset.input_shape) == 3 else {}),
        "task": case.dataset.task.name,
        "model": case.spec.model.model_dump(mode="json"),
        "client_models": [m.model_dump(mode="json") for m in case.spec.client_models],
        "initial_seed": case.initial_seed,
        "protocol": {"name": case.protocol.card.name, "params": case.protocol_config.model_dump(mode="json")},
        **changes,
    }


def audit_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run's audit."""
    spec = run.case.spec.model_dump(mode="json")
    names = ("profile", "threads", "device", "victims", "adversaries", "queries", "power", "auxiliary")
    return {name: spec[name] for name in names}
