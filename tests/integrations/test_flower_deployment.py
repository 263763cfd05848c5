"""A recorded app of Flower, deployed as processes on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import fdaudit
from fdaudit.recording.record import Checked, check_record
from fdaudit.recording.truth import joined_notes
from fdaudit.storage.files import decode
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.recordings import closed_part, state
from .deployment import Deployment, deployment

pytestmark = pytest.mark.thorough

ROUNDS = 3


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployed")
    with deployment(folder, sites=2) as running:
        yield running
    assert running.processes() == []


def begun(record: Path) -> dict[str, Any]:
    """Return what the record says of itself, also before there is one."""
    return state(record) if (record / "record.json").exists() else {"rounds": 0, "status": "none"}


def digests(record: Path, message: Message) -> dict[str, str]:
    tensors = decode(read_payload(record / "transcript", message))
    return {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in tensors.items()}


def notes(output: Path, site: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / f"site-{site}" / "log.jsonl").read_bytes().splitlines()]


def test_a_deployment_is_recorded(deployed: Deployment) -> None:
    output = deployed.folder / "whole"
    record = output / "record"
    deployed.submit(output, ROUNDS)
    deployed.until(lambda: begun(record)["status"] == "closed", "closed record")
    said = state(record)
    assert check_record(record) == Checked((), ())
    assert said["rounds"] == ROUNDS
    messages = list(read_messages(record / "transcript"))
    clients = ["client/0", "client/1"]
    for t in range(ROUNDS):
        here = [(m.sender, list(m.receivers), m.kind) for m in messages if m.round == t]
        assert here[:2] == [
            ("server", clients, "model_parameters"),
            ("server", clients, "flower/config"),
        ]
        assert sorted(here[2:]) == [
            (c, ["server"], kind) for c in clients for kind in ("model_parameters", "sample_count")
        ]

    truth = output / "truth"
    own = [output / f"site-{i}" / "notes.jsonl" for i in range(2)]
    used, sites = joined_notes(truth / "replies.jsonl", own, truth / "nodes.json")
    assert sorted(sites) == clients
    assert sorted(sites.values()) == ["0", "1"]
    for party, site in sites.items():
        noted = notes(output, int(site))
        uploads = [m for m in messages if (m.sender, m.kind) == (party, "model_parameters")]
        assert [digests(record, m) for m in uploads] == [n["sent"] for n in noted]
        downloads = [m for m in messages if (m.sender, m.kind) == ("server", "model_parameters")]
        assert [digests(record, m) for m in downloads] == [n["received"] for n in noted]
        assert [used[m.seq] for m in uploads] == [tuple(n["records"]) for n in noted]
    assert_averaged(record, messages)


def assert_averaged(record: Path, messages: list[Message]) -> None:
    """Each model that the server sends is the mean of the uploads of the round before."""
    for t in range(1, ROUNDS):
        arrays = {
            m.sender: decode(read_payload(record / "transcript", m))["weight"].numpy()
            for m in messages
            if m.kind == "model_parameters" and m.round == (t if m.sender == "server" else t - 1)
        }
        mean = (arrays["client/0"] + arrays["client/1"]) / 2
        np.testing.assert_allclose(arrays["server"], mean, rtol=1e-6, atol=1e-7)
        assert not np.array_equal(arrays["client/0"], arrays["client/1"])


def test_a_killed_server_leaves_its_closed_rounds(deployed: Deployment) -> None:
    output = deployed.folder / "killed"
    record = output / "record"
    deployed.submit(output, rounds=10_000)
    deployed.until(lambda: begun(record)["rounds"] >= 1, "closed round")
    begin = time.monotonic()
    deployed.until(lambda: begun(record)["rounds"] >= 2, "second closed round")
    time.sleep(random.uniform(0, 2 * (time.monotonic() - begin)))
    server = int((output / "server.pid").read_text())
    assert server in deployed.processes()
    os.kill(server, signal.SIGKILL)
    deployed.until(lambda: server not in deployed.processes(), "end of the server app")

    said = state(record)
    assert said["status"] == "open"
    assert said["rounds"] >= 2
    copy = deployed.folder / "closed"
    assert closed_part(record, copy) == []
    messages = list(read_messages(copy))
    assert len(messages) == said["messages"] == 6 * said["rounds"]
    sent = {json.dumps(n["sent"], sort_keys=True) for site in range(2) for n in notes(output, site)}
    uploads = [m for m in messages if m.sender != "server" and m.kind == "model_parameters"]
    assert len(uploads) == 2 * said["rounds"]
    for m in uploads:
        assert json.dumps(digests(record, m), sort_keys=True) in sent

    card = {
        "name": "killed",
        "asserted_by": "the tests",
        "classes": 10,
        "input_shape": [1, 8, 8],
        "protocol": {"name": "x"},
    }
    about = fdaudit.import_record(record, deployed.folder / "imported", card=card).result.run
    assert about.recording is not None
    assert (about.recording.closed, about.rounds) == (False, said["rounds"])
    assert any("was not closed" in note for note in about.recording.notes)
