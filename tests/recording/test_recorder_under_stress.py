"""The recorder under many senders, kills, failed writes and very many messages."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from fdaudit.recording import recorder
from fdaudit.recording.recorder import Recorder, RecordError
from fdaudit.storage.files import decode
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, read_messages, verify_transcript

from ..helpers.recordings import closed_part, state

W = {"w": np.zeros(2, dtype=np.float32)}


# -- many senders ----------------------------------------------------------------------------------------------


def test_eight_threads_send_at_once(tmp_path: Path) -> None:
    clients, each = 8, 60
    parties = ["server", *(f"client/{k}" for k in range(clients))]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Recorder(tmp_path / "r", parties, truth=tmp_path / "t") as record:
            record.round(0)

            def send(k: int) -> dict[int, np.ndarray[Any, Any]]:
                sent, last = {}, []
                for n in range(each):
                    size = (1 << 17) + 1 if n % 20 == 7 else n  # one in twenty has a file of its own
                    value = np.full(size, k * each + n, dtype=np.float64)
                    got = record.send(
                        f"client/{k}", "server", "gradient", {"x": value}, ["data", *last], records=[k]
                    )
                    assert np.array_equal(got["x"], value)
                    sent[got.seq], last = value, [got.seq]
                    if k == 0 and n % 10 == 9:
                        record.round(n // 10 + 1)
                return sent

            with ThreadPoolExecutor(clients) as threads:
                sent = {seq: v for found in threads.map(send, range(clients)) for seq, v in found.items()}
    finally:
        sys.setswitchinterval(before)
    said = state(tmp_path / "r")
    folder = tmp_path / "r" / "transcript"
    assert verify_transcript(folder, head=said["head"], count=clients * each) == []
    assert sorted(sent) == list(range(clients * each))
    for message in read_messages(folder):
        assert np.array_equal(decode(read_payload(folder, message))["x"].numpy(), sent[message.seq])
    uses = [json.loads(line) for line in (tmp_path / "t" / "uses.jsonl").read_bytes().splitlines()]
    senders = [m.sender for m in read_messages(folder)]
    assert [(u["seq"], f"client/{u['records'][0]}") for u in uses] == list(enumerate(senders))


def test_the_record_waits_for_a_message_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round cannot be closed, and no other message begun, between a payload and its line."""
    begun, go, real = Event(), Event(), recorder._append

    def slow(file: Any, data: Any) -> None:
        real(file, data)
        begun.set()
        assert go.wait(60)

    with Recorder(tmp_path / "r", ["server", "client/0"]) as record, ThreadPoolExecutor(2) as threads:
        record.round(0)
        monkeypatch.setattr(recorder, "_append", slow)
        first = threads.submit(record.send, "client/0", "server", "gradient", W)
        assert begun.wait(60)
        closing = threads.submit(record.round, 1)
        assert not closing.done()
        assert state(tmp_path / "r")["rounds"] == 0
        go.set()
        assert first.result().seq == 0
        closing.result()
        assert state(tmp_path / "r")["messages"] == 1


# -- kills -----------------------------------------------------------------------------------------------------

ENDLESS = """
import itertools, sys
import numpy as np
from fdaudit.recording.recorder import Recorder
record = Recorder(sys.argv[1], ["server", "client/0"], truth=sys.argv[2])
for t in itertools.count():
    record.round(t)
    print("opened", t, flush=True)
    for n in range(6):
        size = 140_000 if n == 3 else 50
        record.send("client/0", "server", "gradient", {"w": np.full(size, t * 6.0 + n)}, records=[t, n])
        print("sent", n, flush=True)
"""


@pytest.mark.parametrize(
    "moment", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 12))]
)
def test_a_killed_process_loses_at_most_its_open_round(moment: int, tmp_path: Path) -> None:
    chance = random.Random(moment)
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "r"), str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(1 + chance.randrange(40))]
        for _ in range(chance.randrange(100_000)):  # some way into what the process does next
            pass
        process.kill()
        said += process.stdout.readlines()
    opened = [int(line.split()[1]) for line in said if line.startswith("opened") and line.endswith("\n")]
    found = state(tmp_path / "r")
    assert found["status"] == "open"
    assert opened[-1] <= found["rounds"] <= opened[-1] + 1, "all rounds before the open one are on record"
    assert found["messages"] == 6 * found["rounds"]
    assert closed_part(tmp_path / "r", tmp_path / "copy") == []
    for k, message in enumerate(read_messages(tmp_path / "copy")):
        assert (decode(read_payload(tmp_path / "copy", message))["w"] == k).all()
    later = (tmp_path / "r/transcript" / LOG).read_bytes().split(b"\n")[found["messages"] : -1]
    assert {json.loads(line)["round"] for line in later} <= {found["rounds"]}, "only the open round's follow"
    uses = (tmp_path / "t" / "uses.jsonl").read_bytes().splitlines()[: found["messages"]]
    assert [json.loads(line) for line in uses] == [
        {"seq": k, "records": [k // 6, k % 6]} for k in range(found["messages"])
    ]


def test_a_round_is_durable_before_the_record_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and directory that changed is flushed, with all of its bytes, before `record.json` names its end."""
    synced: dict[str, int] = {}
    real, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        time.sleep(0.02)  # so that a recorder that does not wait replaces `record.json` before
        synced[path.relative_to(tmp_path).as_posix()] = path.stat().st_size
        real(descriptor)

    replaced: list[dict[str, int]] = []

    def replacing(self: Path, target: Path) -> Path:
        replaced.append(dict(synced))
        return replace(self, target)

    with Recorder(tmp_path / "r", ["server", "client/0"], truth=tmp_path / "t") as record:
        for t in range(2):
            record.round(t)
            record.send("client/0", "server", "gradient", W, records=[1])
            record.send("client/0", "server", "gradient", {"w": np.zeros(1 << 18)}, records=[2])
            monkeypatch.setattr(os, "fsync", fsync)
            monkeypatch.setattr(Path, "replace", replacing)
    assert len(replaced) == 2
    payloads = "r/transcript/payloads"
    for t, before in enumerate(replaced):
        wanted = {f"{payloads}/round-{t:06d}.shard", f"{payloads}/{2 * t + 1:08d}.safetensors"}
        wanted |= {"t/uses.jsonl", "r/transcript/messages.jsonl", payloads, "r/.record.json.tmp"}
        assert wanted <= before.keys()
        assert before[f"{payloads}/round-{t:06d}.shard"] > 0
    for file, size in replaced[1].items():
        if (tmp_path / file).is_file():
            assert (tmp_path / file).stat().st_size == size, file
    assert {"r"} <= synced.keys(), "the directory of record.json"


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["payload", "line", "truth", "own file"])
def test_after_a_failed_write_nothing_more_is_recorded(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Recorder(tmp_path / "r", ["server", "client/0"], truth=tmp_path / "t")
    record.round(0)
    record.send("client/0", "server", "gradient", W, records=[1])
    record.round(1)
    kept, real = state(tmp_path / "r"), recorder._append
    place = {"payload": "shard", "line": "messages", "truth": "uses", "own file": "safetensors"}[fails]

    def full(file: Any, data: Any) -> None:
        if place in Path(file.name).name:
            real(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        real(file, data)

    monkeypatch.setattr(recorder, "_append", full)
    size = (1 << 18) if fails == "own file" else 4
    with pytest.raises(RecordError, match=f"^file: .*{place}.*{os.strerror(errno.ENOSPC)}") as failed:
        record.send("client/0", "server", "gradient", {"w": np.zeros(size)}, records=[2])
    assert isinstance(failed.value.__cause__, OSError)
    monkeypatch.undo()
    acts: list[Callable[[], object]] = [
        lambda: record.send("client/0", "server", "gradient", W),
        lambda: record.round(2),
        record.close,
    ]
    for act in acts:
        with pytest.raises(RecordError, match=r"^recorder: .* error"):
            act()
    assert state(tmp_path / "r") == kept
    assert closed_part(tmp_path / "r", tmp_path / "copy") == []


def test_a_round_that_cannot_be_made_durable_is_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Recorder(tmp_path / "r", ["server", "client/0"])
    record.round(0)
    record.send("client/0", "server", "gradient", W)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(RecordError, match=f"^file: .*{os.strerror(errno.EIO)}"):
            record.round(1)
    with pytest.raises(RecordError, match=r"^recorder: .* error"):
        record.close()
    assert state(tmp_path / "r")["messages"] == 0


def test_a_round_is_made_durable_where_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python refuses new threads at its end, when a framework may close its record."""
    synced, real = set(), os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    def refused(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    with Recorder(tmp_path / "r", ["server", "client/0"]) as record:
        record.round(0)
        record.send("client/0", "server", "gradient", W)
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    monkeypatch.undo()
    assert synced >= {"round-000000.shard", LOG, "payloads", ".record.json.tmp", "r"}
    assert state(tmp_path / "r")["status"] == "closed"


def test_an_interrupt_amid_a_write_ends_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: Any, data: Any) -> None:
        raise KeyboardInterrupt

    with Recorder(tmp_path / "r", ["server", "client/0"]) as record:
        record.round(0)
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "_append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                record.send("client/0", "server", "gradient", W)
        with pytest.raises(RecordError, match=r"^recorder: .* error"):
            record.send("client/0", "server", "gradient", W)
        with pytest.raises(RecordError, match=r"^recorder: .* error"):
            record.close()
        record._state = "closed"  # or the end of the block would say so once more


def test_an_error_of_the_federation_leaves_the_record_open(tmp_path: Path) -> None:
    def federation() -> None:
        with Recorder(tmp_path / "r", ["server", "client/0"]) as record:
            for t in range(2):
                record.round(t)
                record.send("client/0", "server", "gradient", W)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        federation()
    said = state(tmp_path / "r")
    assert (said["status"], said["messages"], said["rounds"]) == ("open", 1, 1)
    assert closed_part(tmp_path / "r", tmp_path / "copy") == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=f"^file: .*file/r' .*{os.strerror(errno.ENOTDIR)}"):
        Recorder(tmp_path / "file" / "r", ["server"])


FORKS = """
import os, sys
import numpy as np
from fdaudit.recording.recorder import Recorder, RecordError
with Recorder(sys.argv[1], ["server", "client/0"]) as record:
    record.round(0)
    record.send("client/0", "server", "gradient", {"w": np.zeros(2)})
    child = os.fork()
    if child == 0:
        acts = [lambda: record.round(1), record.close]
        acts.append(lambda: record.send("client/0", "server", "gradient", {"w": np.zeros(2)}))
        for act in acts:
            try:
                act()
            except RecordError as error:
                assert "belongs to another process" in str(error), error
            else:
                os._exit(1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    record.send("client/0", "server", "gradient", {"w": np.zeros(2)})
"""


def test_a_forked_process_cannot_write_into_the_record(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "r")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = state(tmp_path / "r")
    assert verify_transcript(tmp_path / "r" / "transcript", head=said["head"], count=2) == []


# -- memory ----------------------------------------------------------------------------------------------------

MANY = """
import sys
import numpy as np
from pathlib import Path
from fdaudit.recording.recorder import Recorder

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

values = {"index": np.arange(4), "values": np.ones((4, 10), dtype=np.float32)}
with Recorder(sys.argv[1], ["server", "client/0"], truth=sys.argv[2]) as record:
    for t in range(100):
        record.round(t)
        for n in range(1000):
            record.send("client/0", "server", "logits", values, inputs=["data"], records=[n])
        if t == 0:
            before = resident()
print(resident() - before)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_messages(tmp_path: Path) -> None:
    """From a thousand messages to a hundred thousand, whose lines alone have 60 million bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "r"), str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r/transcript" / LOG).stat().st_size > 50_000_000
    assert state(tmp_path / "r")["messages"] == 100_000
    assert int(done.stdout) < 4 * 1024, f"{done.stdout} KiB"
