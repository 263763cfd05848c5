"""A recorded job of NVIDIA FLARE in its simulator, whose server and clients are processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the extra `nvflare`")

from numpy.typing import NDArray

from fdaudit.recording.record import Checked, check_record
from fdaudit.recording.truth import joined_notes
from fdaudit.storage.files import decode
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.recordings import closed_part, state
from .processes import Processes

pytestmark = pytest.mark.thorough

JOB = Path(__file__).parent / "flared" / "job.py"
ROUNDS = 3
ENVIRONMENT = {"PYTHONPATH": str(JOB.parent), "PYTHONSAFEPATH": "1", "ROUNDS": str(ROUNDS)}
Arrays = dict[str, NDArray[Any]]


def simulated(folder: Path, record: Path | str, clients: str, *sites: str, **environment: str) -> Path:
    """Run the job, and return the folder in which its parts keep their arrays."""
    folder.mkdir()
    with Processes(folder, {**ENVIRONMENT, **environment}) as running:
        job = running.start("job", sys.executable, str(JOB), str(folder), str(record), clients, *sites)
        running.until(lambda: job.poll() is not None, "end of the job")
        print(running.logs())  # for the message of a failure
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job without a record."""
    return simulated(tmp_path_factory.mktemp("plain") / "job", "none", "", "north", "south")


def begun(record: Path) -> int:
    """Return the number of closed rounds, also before there is a record."""
    return int(state(record)["rounds"]) if (record / "record.json").exists() else 0


def models(folder: Path) -> dict[str, bytes]:
    return {p.name: np.load(p)["w"].tobytes() for p in folder.glob("model-*.npz")}


def arrays(record: Path, message: Message) -> Arrays:
    found = decode(read_payload(record / "transcript", message))
    return {name: tensor.numpy() for name, tensor in found.items()}


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize(
    ("clients", "sites"), [("", ("north", "south")), ("south,north", ("south", "north"))]
)
def test_a_simulated_job_is_recorded_and_learns_the_same(
    plain: Path, tmp_path: Path, clients: str, sites: tuple[str, ...]
) -> None:
    record = tmp_path / "record"
    folder = simulated(tmp_path / "job", record, clients, *sites)
    assert check_record(record) == Checked((), ())
    assert state(record)["rounds"] == ROUNDS
    assert len(models(plain)) == ROUNDS
    assert models(folder) == models(plain)

    truth = folder / "truth"
    notes = [folder / f"notes-{site}" / "notes.jsonl" for site in sites]
    used, named = joined_notes(truth / "replies.jsonl", notes, truth / "nodes.json")
    assert json.loads((truth / "nodes.json").read_bytes()) == named
    assert sorted(named) == ["client/0", "client/1"]
    assert sorted(named.values()) == sorted(sites)
    messages = list(read_messages(record / "transcript"))
    assert {m.kind for m in messages} == {"model_parameters", "nvflare/meta"}
    if not clients:
        assert messages[0].receivers == ("client/0",)
    else:
        assert named == {"client/0": "south", "client/1": "north"}
    for party, site in named.items():
        for t in range(ROUNDS):
            [down] = [
                m for m in messages if (m.round, m.kind) == (t, "model_parameters") and party in m.receivers
            ]
            [up] = [m for m in messages if (m.round, m.kind, m.sender) == (t, "model_parameters", party)]
            place = folder / "sites" / site
            assert used[up.seq] == (t, 7)
            assert same(arrays(record, up), dict(np.load(place / f"sent-{t}.npz")))
            received = {k: v.astype(np.float64) for k, v in arrays(record, down).items()}
            assert same(received, dict(np.load(place / f"received-{t}.npz")))
            [meta] = [m for m in messages if (m.round, m.kind, m.sender) == (t, "nvflare/meta", party)]
            assert arrays(record, meta) == {"NUM_STEPS_CURRENT_ROUND": 3}


def test_a_job_whose_recording_fails_ends_without_another_model(plain: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    small = {"FDAUDIT_MOST_LOG_BYTES": "4000"}
    folder = simulated(tmp_path / "job", record, "", "north", "south", **small)
    log = (folder / "workspace" / "server" / "log.txt").read_text()
    assert "The recording failed" in log
    assert "does not fit" in log
    assert models(folder).items() <= models(plain).items()
    assert len(models(folder)) < ROUNDS
    assert state(record)["status"] == "open"
    assert closed_part(record, tmp_path / "copy") == []


def test_a_killed_job_leaves_its_closed_rounds(tmp_path: Path) -> None:
    folder, record = tmp_path / "job", tmp_path / "record"
    folder.mkdir()
    command = (sys.executable, str(JOB), str(folder), str(record), "", "north", "south")
    with Processes(folder, {**ENVIRONMENT, "ROUNDS": "100000"}) as running:
        job = running.start("job", *command)
        running.until(lambda: begun(record) >= 1, "closed round")
        running.kill()
        job.wait()
    said = state(record)
    assert said["status"] == "open"
    assert said["rounds"] >= 1
    assert closed_part(record, tmp_path / "copy") == []
    messages = list(read_messages(tmp_path / "copy"))
    uploads = [m for m in messages if m.sender != "server" and m.kind == "model_parameters"]
    assert len(uploads) == 2 * said["rounds"]
    sent = [dict(np.load(path)) for path in (folder / "sites").rglob("sent-*.npz")]
    for m in uploads:
        assert any(same(arrays(record, m), clear) for clear in sent)
