"""Small payloads of a round in one file, large ones in their own: nothing lost, nothing uncovered, nothing of others
in an exported view."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from fdaudit.adversary.view import export_view, open_view, view_of
from fdaudit.errors import IntegrityError
from fdaudit.recording import recorder
from fdaudit.rng import child
from fdaudit.storage.files import decode, encode
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Position, Transcript, read_messages, verify_transcript

from ..helpers.run_cases import tree
from ..helpers.transcript_cases import message

SECRET = b"a secret of the auditor, sixteen"
ROUNDS, CLIENTS = 3, 2
PARTIES = ("server", "client/0", "client/1", "world")


@pytest.fixture(params=["all in one file", "every other one in its own", "each in its own"])
def small(request, monkeypatch):
    """Which payloads share a file; as they are, tensors of odd messages are larger than those of even ones."""
    most = {"all in one file": 1 << 20, "every other one in its own": len(encode(tensors(0)))}
    monkeypatch.setattr(recorder, "_SMALL", most.get(request.param, 0))


def tensors(seq: int) -> dict[str, torch.Tensor]:
    return {"values": torch.rand(3 + seq % 2, 4, generator=child(0, "payload", seq))}


def append(transcript: Transcript, rounds: range) -> None:
    for r in rounds:
        for k in range(CLIENTS):
            transcript.append(message("logits", f"client/{k}", round=r), tensors(transcript.position.seq))


def recorded(folder: Path, keep=lambda round: True) -> Position:
    with Transcript(folder, secret=SECRET, keep=keep) as transcript:
        append(transcript, range(ROUNDS))
        return transcript.sync()


def test_a_round_has_one_file_and_a_stranger_reads_it(tmp_path):
    end = recorded(tmp_path / "t")
    names = sorted(p.name for p in (tmp_path / "t" / "payloads").iterdir())
    assert names == ["round-000000.shard", "round-000001.shard", "round-000002.shard"]
    lines = (tmp_path / "t" / LOG).read_text(encoding="ascii").splitlines()
    ends = dict.fromkeys((json.loads(line)["payload"]["file"] for line in lines), 0)
    for seq, line in enumerate(lines):
        where = json.loads(line)["payload"]
        content, begin = (tmp_path / "t" / where["file"]).read_bytes(), ends[where["file"]]
        found = load(content[begin : begin + where["length"]])
        ends[where["file"]] += where["length"]
        assert torch.equal(found["values"], tensors(seq)["values"])
    assert verify_transcript(tmp_path / "t", head=end.head, count=end.seq) == []


def test_the_log_is_that_of_a_file_a_message_but_for_where_payloads_lie(tmp_path, monkeypatch):
    recorded(tmp_path / "shared")
    monkeypatch.setattr(recorder, "_SMALL", 0)
    with Transcript(tmp_path / "own", secret=SECRET) as transcript:
        append(transcript, range(ROUNDS))
    pairs = zip(read_messages(tmp_path / "shared"), read_messages(tmp_path / "own"), strict=True)
    for a, b in pairs:
        assert (a.sha256, a.salt, a.tensors, a.bytes_on_wire) == (
            b.sha256,
            b.salt,
            b.tensors,
            b.bytes_on_wire,
        )
        assert read_payload(tmp_path / "shared", a) == read_payload(tmp_path / "own", b)


@pytest.mark.parametrize(
    "left", ["nothing more", "half a round", "half a payload", "a later round", "a temporary file"]
)
@pytest.mark.parametrize("keep_last", [True, False])
@pytest.mark.usefixtures("small")
def test_a_run_goes_on_where_it_was_left(left, keep_last, tmp_path):
    def keep(round: int) -> bool:
        return keep_last or round != 1

    recorded(tmp_path / "whole", keep)
    with Transcript(tmp_path / "parts", secret=SECRET, keep=keep) as first:
        append(first, range(2))
        position = first.sync()
        if left in {"half a round", "a later round"}:
            append(first, range(2, 4 if left == "a later round" else 3))
    folder = tmp_path / "parts" / "payloads"
    if left == "half a payload":
        with (folder / "round-000001.shard").open("ab") as file:
            file.write(b"half")
    if left == "a temporary file":
        (folder / ".00000009.safetensors.tmp").write_bytes(b"x")
    with Transcript(tmp_path / "parts", secret=SECRET, keep=keep, start=position) as second:
        append(second, range(2, 3))
        second.sync()
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")


@pytest.mark.thorough
@settings(deadline=None)
@given(data=st.data())
def test_it_goes_on_wherever_a_round_was_left_and_whatever_lay_beyond(data):
    """Rounds of small and large messages in any order, stopped after any of them."""
    sent = data.draw(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=12))
    at = data.draw(st.integers(0, len(sent)))
    beyond = data.draw(st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=6))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_SMALL", len(encode(tensors(0))))

        def recorded(folder: str, *parts: list[tuple[int, bool]], start: Position | None = None) -> Position:
            with Transcript(Path(name, folder), secret=SECRET, start=start) as transcript:
                before = [] if start is None else sent[:at]
                for later, large in chain(*parts):
                    before = [*before, (later, large)]
                    draft = message("logits", round=sum(step for step, _ in before))
                    transcript.append(draft, tensors(2 * transcript.position.seq + large))
                return transcript.sync()

        end = recorded("whole", sent)
        middle = recorded("parts", sent[:at])
        recorded("parts", beyond, start=middle)
        assert recorded("parts", sent[at:], start=middle) == end
        assert tree(Path(name, "parts")) == tree(Path(name, "whole"))
        assert verify_transcript(Path(name, "parts"), head=end.head, count=end.seq) == []


@pytest.mark.usefixtures("small")
def test_every_byte_of_every_file_is_covered(tmp_path):
    end = recorded(tmp_path / "t")
    for path in sorted((tmp_path / "t" / "payloads").iterdir()):
        content = path.read_bytes()
        for at in range(0, len(content), 7):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            found = verify_transcript(tmp_path / "t", head=end.head, count=end.seq)
            assert len(found) == 1, at
            assert "its digest" in found[0]
        for changed in (content + b"\0", content[:-1], content[1:], b"", content[len(content) // 2 :] * 2):
            path.write_bytes(changed)
            assert verify_transcript(tmp_path / "t", head=end.head, count=end.seq) != []
        path.write_bytes(content)
    (tmp_path / "t" / "payloads" / "round-000009.shard").write_bytes(b"")
    (finding,) = verify_transcript(tmp_path / "t", head=end.head, count=end.seq)
    assert finding.startswith("payloads/round-000009.shard ")


@pytest.mark.parametrize("longer", [1, 10_000, -1])
def test_a_payload_that_does_not_end_where_the_next_one_begins_is_a_finding(longer, tmp_path):
    end = recorded(tmp_path / "t")
    lines = (tmp_path / "t" / LOG).read_bytes().splitlines()
    value = json.loads(lines[1])
    value["payload"]["length"] += longer
    lines[1] = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    (tmp_path / "t" / LOG).write_bytes(b"\n".join(lines) + b"\n")
    found = verify_transcript(tmp_path / "t", head=end.head, count=end.seq)
    assert any("of message 1 " in line for line in found)


@pytest.mark.parametrize(
    "name", ["payloads/round-1.shard", "payloads/../round-000000.shard", "/etc/passwd", "vault"]
)
def test_no_line_leads_out_of_the_payloads(name, tmp_path):
    recorded(tmp_path / "t")
    first = next(read_messages(tmp_path / "t"))
    (tmp_path / "vault").write_bytes(b"secret")
    changed = Message(**{**vars(first), "payload": {"file": name, "length": 1}})
    with pytest.raises(IntegrityError, match="not a payload"):
        read_payload(tmp_path / "t", changed)


@pytest.mark.parametrize("member", ["client/0", "client/1", "server"])
@pytest.mark.usefixtures("small")
def test_an_exported_view_holds_its_own_bytes_and_no_others(member, tmp_path):
    recorded(tmp_path / "t")
    view = view_of(tmp_path / "t", member, parties=PARTIES, hyperparameters={})
    export_view(view, tmp_path / "out")
    shutil.rmtree(tmp_path / "t" / "payloads")
    opened = open_view(tmp_path / "out")
    assert [m.seq for m in opened.messages] == [m.seq for m in view.messages]
    mine = {m.seq for m in opened.messages}
    assert mine
    for m in opened.messages:
        assert torch.equal(opened.tensors(m)["values"], tensors(m.seq)["values"])
    exported = b"".join(p.read_bytes() for p in (tmp_path / "out" / "payloads").iterdir())
    for seq in range(ROUNDS * CLIENTS):
        raw = tensors(seq)["values"].numpy().tobytes()
        assert (raw in exported) == (seq in mine)
        assert (encode(tensors(seq)) in exported) == (seq in mine)
    assert decode(encode(tensors(0)))  # what was looked for is what a payload is


@pytest.mark.parametrize("member", ["server", "client/0"])
def test_an_exported_view_shares_no_file_with_the_run(member, tmp_path):
    """Whoever attacks the view may write to it, and the record stays as it was."""
    end = recorded(tmp_path / "t")
    before = tree(tmp_path / "t")
    export_view(view_of(tmp_path / "t", member, parties=PARTIES, hyperparameters={}), tmp_path / "out")
    for path in (p for p in (tmp_path / "out").rglob("*") if p.is_file()):
        assert path.stat().st_nlink == 1
        with path.open("r+b") as file:
            file.write(b"other bytes")
    assert tree(tmp_path / "t") == before
    assert verify_transcript(tmp_path / "t", head=end.head, count=end.seq) == []


# -- what an exported view tells of what it hides -----------------------------------------------------------------


def shown(export: Path) -> dict[str, object]:
    """All that a directory tells but for hashes: names, sizes, blocks on the disk, bytes with hashes blotted out."""
    found: dict[str, object] = {}
    for path in sorted(export.rglob("*")):
        state = path.lstat()
        content = b"" if path.is_dir() else re.sub(rb'"[0-9a-f]{64}"', b'"-"', path.read_bytes())
        found[path.relative_to(export).as_posix()] = (
            state.st_size * path.is_file(),
            state.st_blocks,
            content,
        )
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("member", ["client/0", "world", "client/0+world"])
def test_an_export_tells_neither_size_nor_kind_of_hidden_messages(member, tmp_path):
    """Of 40 rounds each, in which client/1 answers for other samples: whoever sees client/0's view sees no difference.

    With where payloads begin in the lines, the distance of two of them told how many samples client/1 answered.
    """
    generator = child(0, "hidden")
    told = []
    for number in range(4):
        with Transcript(tmp_path / f"t{number}", secret=SECRET) as transcript:
            for r in range(40):
                answered = int(torch.randint(1, 200, (), generator=generator))
                kind = ("hard_labels", "logits")[int(torch.randint(2, (), generator=generator))]
                for sender, sent_kind, n in (("client/0", "logits", 5), ("client/1", kind, answered)):
                    draft = message(sent_kind, sender, round=r // 4, step=r % 4)
                    transcript.append(draft, {"values": torch.full((n, 3), float(sender == "client/0"))})
        export_view(
            view_of(tmp_path / f"t{number}", member, parties=PARTIES, hyperparameters={}),
            tmp_path / f"out{number}",
        )
        told.append(shown(tmp_path / f"out{number}"))
    assert all(one == told[0] for one in told)
    hidden = {m.payload["length"] for m in read_messages(tmp_path / "t0") if m.sender == "client/1"}
    assert len(hidden) > 20  # there was something to be told
