"""Views: what each adversary saw and no more, out to a directory and back, against forged ones too."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os

import pytest
import torch

from fdaudit.adversary.view import EAVESDROPPER, export_view, members_of, open_view, view_digest, view_of
from fdaudit.errors import IntegrityError, SpecError
from fdaudit.rng import child
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import decode
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Transcript, read_messages

from ..helpers.transcript_cases import message as drafted

PARTIES = ("server", "client/0", "client/1", "client/2", "world")
SENT = [  # (sender, receivers): by party, what it sees follows by hand
    ("server", ("client/0", "client/1")),  # 0
    ("client/0", ("server",)),  # 1
    ("client/1", ("server",)),  # 2
    ("client/2", ()),  # 3: a release to itself
    ("client/2", ("client/2",)),  # 4: a message to itself
    ("client/1", ("client/2",)),  # 5
    ("server", ("client/0", "client/1", "client/2", "world")),  # 6
]
SEEN = {
    "server": {0, 1, 2, 6},
    "client/0": {0, 1, 6},
    "client/1": {0, 2, 5, 6},
    "client/2": {3, 4, 5, 6},
    "world": {6},
    EAVESDROPPER: {0, 1, 2, 5, 6},
    "server+client/2": {0, 1, 2, 3, 4, 5, 6},
    "client/0+world": {0, 1, 6},
    "client/0+eavesdropper": {0, 1, 2, 5, 6},
}


def tensors(seq):
    return {"w": torch.full((2, seq + 1), float(seq))}


@pytest.fixture
def transcript(tmp_path):
    with Transcript(tmp_path / "run", secret=b"s" * 16) as log:
        for seq, (sender, receivers) in enumerate(SENT):
            log.append(drafted("model_update", sender, receivers, round=seq // 3), tensors(seq))
    return tmp_path / "run"


def view(transcript, name, **more):
    return view_of(transcript, name, parties=PARTIES, hyperparameters={"lr": 0.1}, **more)


# -- who sees what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEEN)
def test_a_view_holds_what_a_member_sent_or_received(transcript, name):
    made = view(transcript, name)
    assert {m.seq for m in made.messages} == SEEN[name]
    assert [m.seq for m in made.messages] == sorted(SEEN[name])
    for message in made.messages:
        assert torch.equal(made.tensors(message)["w"], tensors(message.seq)["w"])


@pytest.mark.parametrize("name", SEEN)
def test_on_an_encrypted_transport_an_eavesdropper_sees_sizes_only(transcript, name):
    made = view(transcript, name, transport="encrypted")
    if EAVESDROPPER in made.members:
        others = SEEN[name.replace("+eavesdropper", "")] if "+" in name else set()
        assert {m.seq for m in made.messages} == others
        assert made.sizes == tuple(tensors(seq)["w"].nbytes for seq in sorted(SEEN[EAVESDROPPER]))
    else:
        assert {m.seq for m in made.messages} == SEEN[name]
        assert made.sizes == ()


def test_a_coalition_sees_exactly_what_its_members_see_together(transcript):
    for one in PARTIES:
        for two in PARTIES:
            both = {m.seq for m in view(transcript, f"{one}+{two}").messages}
            assert both == SEEN[one] | SEEN[two]


@pytest.mark.parametrize(
    "name", ["", "servr", "client/3", "client/00", "client/-1", "server+", "+server", "world ", "client"]
)
def test_who_is_no_party_is_refused(transcript, name):
    with pytest.raises(SpecError, match="not a party"):
        view(transcript, name)


def test_members_are_named_in_order():
    assert members_of("server+client/2", PARTIES) == ("server", "client/2")


def test_messages_are_selected_by_kind_sender_and_round(transcript):
    made = view(transcript, "server+client/2")
    assert [m.seq for m in made.select(sender="client/1")] == [2, 5]
    assert [m.seq for m in made.select(round=1)] == [3, 4, 5]
    assert [m.seq for m in made.select(kind="model_update", sender="server", round=2)] == [6]
    assert made.select(kind="gradient") == ()


def test_only_members_own_data_is_in_a_view(transcript):
    own = {f"client/{k}": (torch.full((1, 1, 2, 2), k / 4), torch.tensor([k])) for k in range(3)}
    assert set(view(transcript, "client/1", own_data=own).own_data) == {"client/1"}
    assert set(view(transcript, "server", own_data=own).own_data) == set()
    assert set(view(transcript, "server+client/0", own_data=own).own_data) == {"client/0"}


# -- out and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["plain", "encrypted"])
@pytest.mark.parametrize("name", SEEN)
def test_an_exported_view_is_the_same_view(transcript, tmp_path, name, transport):
    own = {"client/0": (torch.rand(3, 1, 2, 2, generator=child(0, "x")), torch.tensor([1, 0, 2]))}
    made = view(transcript, name, transport=transport, own_data=own)
    export_view(made, tmp_path / "out")
    back = open_view(tmp_path / "out")
    for field in ("name", "members", "parties", "hyperparameters", "messages", "sizes"):
        assert getattr(back, field) == getattr(made, field), field
    assert back.own_data.keys() == made.own_data.keys()
    for party, (x, y) in made.own_data.items():
        assert torch.equal(back.own_data[party][0], x)
        assert torch.equal(back.own_data[party][1], y)
    for message in back.messages:
        assert torch.equal(back.tensors(message)["w"], made.tensors(message)["w"])


def test_payload_files_hold_what_the_view_says(exported):
    made = open_view(exported)
    ends = dict.fromkeys((m.payload["file"] for m in made.messages), 0)
    for message in made.messages:
        name, length = message.payload["file"], message.payload["length"]
        content = (exported / name).read_bytes()[ends[name] :][:length]
        ends[name] += length
        assert torch.equal(decode(content)["w"], made.tensors(message)["w"])
    assert ends == {f"payloads/{p.name}": p.stat().st_size for p in (exported / "payloads").iterdir()}


@pytest.mark.parametrize("name", SEEN)
def test_other_messages_show_nothing_but_the_hash_of_their_line(transcript, tmp_path, name):
    export_view(view(transcript, name), tmp_path / "out")
    original = (transcript / LOG).read_bytes().split(b"\n")[:-1]
    exported = (tmp_path / "out" / LOG).read_bytes().split(b"\n")[:-1]
    assert len(exported) == len(original)
    for seq, (mine, line) in enumerate(zip(exported, original, strict=True)):
        if seq in SEEN[name]:
            assert mine == line
        else:
            assert json.loads(mine) == {"seq": seq, "line_sha256": hashlib.sha256(line).hexdigest()}
    kept = {p.name for p in (tmp_path / "out" / "payloads").iterdir()}
    assert kept == {f"round-{m.round:06d}.shard" for m in read_messages(transcript) if m.seq in SEEN[name]}
    everything = b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())
    for message in read_messages(transcript):
        if message.seq not in SEEN[name]:
            assert message.salt.encode() not in everything
            assert message.sha256.encode() not in everything
            assert read_payload(transcript, message) not in everything
    assert str(transcript).encode() not in everything


def test_equal_messages_have_unlike_hashes(tmp_path):
    """The hash of a hidden line cannot be matched against a guess of the line: its salt is random."""
    hidden = []
    for secret in (b"a" * 16, b"b" * 16):
        folder = tmp_path / secret.decode()
        with Transcript(folder / "run", secret=secret) as log:
            for _ in range(2):
                log.append(drafted("sample_count"), {"n": torch.tensor(7)})
        export_view(view(folder / "run", "client/2"), folder / "out")
        lines = (folder / "out" / LOG).read_bytes().split(b"\n")[:-1]
        hidden += [json.loads(line)["line_sha256"] for line in lines]
    assert len(set(hidden)) == 4


# -- forged views -------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(transcript, tmp_path):
    own = {"client/0": (torch.zeros(1, 1, 2, 2), torch.tensor([0]))}
    export_view(view(transcript, "server+client/0", own_data=own), tmp_path / "out")
    return tmp_path / "out"


def rewrite(exported, number, change):
    lines = (exported / LOG).read_bytes().split(b"\n")
    lines[number] = change(lines[number])
    (exported / LOG).write_bytes(b"\n".join(lines))


def edited(line, **values):
    message = Message.from_line(line)
    return dataclasses.replace(message, **values).to_line()[:-1]


FORGERIES = {
    "an edited line before a visible one": lambda e: rewrite(e, 0, lambda b: edited(b, round=1)),
    "an edited hash of a hidden line": lambda e: rewrite(e, 5, lambda b: b[:17] + b"0" * 8 + b[25:]),
    "a dropped line": lambda e: rewrite(e, 1, lambda b: b""),
    "another seq": lambda e: rewrite(e, 6, lambda b: edited(b, seq=9)),
    "a hidden line with another seq": lambda e: rewrite(e, 3, lambda b: b.replace(b'"seq":3', b'"seq":4')),
    "a hidden line with more in it": lambda e: rewrite(e, 3, lambda b: b[:-1] + b',"x":1}'),
    "a hidden line nested deeply": lambda e: rewrite(e, 3, lambda b: b'{"line_sha256":' + b"[" * 100_000),
    "a torn last line": lambda e: (e / LOG).write_bytes((e / LOG).read_bytes()[:-9]),
    "no final newline": lambda e: (e / LOG).write_bytes((e / LOG).read_bytes()[:-1]),
    "no log": lambda e: (e / LOG).unlink(),
    "no card": lambda e: (e / "view.json").unlink(),
    "no own data": lambda e: (e / "own-client-0.safetensors").unlink(),
    "own data that are no tensors": lambda e: (e / "own-client-0.safetensors").write_bytes(b"{}"),
    "a card that is no object": lambda e: (e / "view.json").write_bytes(b"[1]"),
    "a card that is not JSON": lambda e: (e / "view.json").write_bytes(b"\xff"),
    "a card nested deeply": lambda e: (e / "view.json").write_bytes(b"[" * 100_000),
    "another schema": lambda e: card(e, schema="fdaudit-view/1"),
    "another name": lambda e: card(e, name="server"),
    "a name of many parts": lambda e: card(e, name="+" * 1_000_000),
    "own data of a stranger": lambda e: card(e, own_data=["../../etc/passwd"]),
    "own data of a party that is no member": lambda e: card(e, own_data=["client/1"]),
    "own data of somebody twice": lambda e: card(e, own_data=["client/0", ["client/0"]]),
    "members that are no list": lambda e: card(e, members=5),
    "members that are no text": lambda e: card(e, members=[["server"], {}]),
    "parties that are no text": lambda e: card(e, parties=[5, None]),
    "sizes that are no numbers": lambda e: card(e, sizes=["many"]),
    "sizes without end": lambda e: card(e, sizes=[math.inf]),
    "sizes that are truth values": lambda e: card(e, sizes=[True]),
    "hyper-parameters that are no mapping": lambda e: card(e, hyperparameters=7),
    "hyper-parameters without end": lambda e: card(e, hyperparameters={"lr": math.inf}),
    "one field more": lambda e: card(e, more=1),
    "files that are no mapping": lambda e: card(e, files=[]),
    "a listed file that leads out": lambda e: listed(e, {"../run/messages.jsonl": {"size": 1, "sha256": ""}}),
    "a listed file that is not there": lambda e: listed(e, {"payloads/x": {"size": 1, "sha256": ""}}),
    "an entry with a size that is no number": lambda e: listed(e, {LOG: {"size": "1", "sha256": ""}}),
    "a log of more bytes than there are": lambda e: listed(e, {LOG: {"size": 1 << 40, "sha256": ""}}),
    "an entry that is no mapping": lambda e: listed(e, {LOG: 5}),
    "a file that nobody listed": lambda e: (e / "more").write_text("x"),
    "a payload that nobody listed": lambda e: (e / "payloads" / "round-000009.shard").write_text("x"),
    "a folder": lambda e: (e / "payloads" / "folder").mkdir(),
    "a payload without its last byte": lambda e: os.truncate(e / SHARD, (e / SHARD).stat().st_size - 1),
    "a payload with a byte more": lambda e: (e / SHARD).write_bytes((e / SHARD).read_bytes() + b"x"),
    "a payload file that is gone": lambda e: (e / SHARD).unlink(),
    "a pipe in place of a payload": lambda e: replaced(e / SHARD, os.mkfifo),
    "a pipe in place of the log": lambda e: replaced(e / LOG, os.mkfifo),
    "a pipe in place of the card": lambda e: replaced(e / "view.json", os.mkfifo),
    "a pipe in place of own data": lambda e: replaced(e / "own-client-0.safetensors", os.mkfifo),
    "a device in place of a payload": lambda e: replaced(e / SHARD, lambda p: p.symlink_to("/dev/zero")),
    "a device in place of the card": lambda e: replaced(e / "view.json", lambda p: p.symlink_to("/dev/zero")),
    "a link to a whole log": lambda e: linked(e, LOG),
    "a link to whole payloads": lambda e: linked(e, SHARD),
    "a link to the folder of payloads": lambda e: linked(e, "payloads"),
}
SHARD = "payloads/round-000000.shard"


def card(exported, **values):
    """Rewrites the card, with a digest of its own that fits where there can be one."""
    path = exported / "view.json"
    body = {k: v for k, v in {**json.loads(path.read_bytes()), **values}.items() if k != "self"}
    try:
        body["self"] = hashlib.sha256(canonical(body)).hexdigest()
        path.write_bytes(canonical(body) + b"\n")
    except ValueError:
        path.write_text(json.dumps({**body, "self": "0" * 64}, sort_keys=True, separators=(",", ":")) + "\n")


def listed(exported, more):
    card(exported, files={**json.loads((exported / "view.json").read_bytes())["files"], **more})


def made_anew(exported):
    """Rewrites the list of files as they lie there now."""
    files = {}
    for path in sorted(p for p in exported.rglob("*") if p.is_file() and p.name != "view.json"):
        content = path.read_bytes()
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files[path.relative_to(exported).as_posix()] = entry
    card(exported, files=files)


def replaced(path, make):
    path.unlink()
    make(path)


def linked(exported, name):
    (exported / name).rename(exported.parent / "elsewhere")
    (exported / name).symlink_to(exported.parent / "elsewhere")


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_or_damaged_view_is_refused(exported, forgery):
    FORGERIES[forgery](exported)
    with pytest.raises(IntegrityError) as refused:
        open_view(exported)
    assert len(str(refused.value)) < 1_000


MADE_ANEW = ("own data that", "a payload", "a hidden line", "a torn", "no final", "another seq", "a dropped")


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if name.startswith(MADE_ANEW)])
def test_what_cannot_be_a_view_is_refused_whatever_its_card_says(exported, forgery):
    FORGERIES[forgery](exported)
    made_anew(exported)
    with pytest.raises(IntegrityError):
        open_view(exported)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SEEN)
def test_any_byte_changed_in_any_file_is_refused(transcript, tmp_path, name):
    own = {f"client/{k}": (torch.zeros(1, 1, 2, 2), torch.tensor([0])) for k in range(3)}
    export_view(view(transcript, name, own_data=own), tmp_path / "out")
    for path in sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file()):
        content = path.read_bytes()
        changed = [
            content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(content), 13)
        ]
        for other in (*changed, content[: len(content) // 2], content[:-1], b"", content + b"\n"):
            path.write_bytes(other)
            with pytest.raises(IntegrityError):
                open_view(tmp_path / "out")
        path.write_bytes(content)
    assert open_view(tmp_path / "out").name == name


@pytest.mark.parametrize("name", SEEN)
def test_every_changed_line_is_refused_the_ones_before_hidden_ones_too(transcript, tmp_path, name):
    export_view(view(transcript, name), tmp_path / "out")
    for number in SEEN[name]:
        log = (tmp_path / "out" / LOG).read_bytes()
        rewrite(tmp_path / "out", number, lambda b: edited(b, bytes_on_wire=1))
        with pytest.raises(IntegrityError):
            open_view(tmp_path / "out")
        (tmp_path / "out" / LOG).write_bytes(log)


def test_a_view_whose_list_is_made_anew_is_another_view(transcript, tmp_path):
    made = view(transcript, "client/1")
    digest = export_view(made, tmp_path / "out")
    assert digest == view_digest(made)
    assert digest == hashlib.sha256((tmp_path / "out" / "view.json").read_bytes()).hexdigest()
    assert open_view(tmp_path / "out", digest).name == "client/1"
    last = max(m.seq for m in made.messages)
    rewrite(tmp_path / "out", last, lambda b: edited(b, bytes_on_wire=1))
    made_anew(tmp_path / "out")
    open_view(tmp_path / "out")  # nothing in the directory can tell; what was handed out can
    with pytest.raises(IntegrityError, match="handed out"):
        open_view(tmp_path / "out", digest)


def test_each_of_its_settings_and_records_is_part_of_a_view_s_digest(transcript):
    own = {"client/0": (torch.zeros(1, 1, 2, 2), torch.tensor([0]))}
    other = {"client/0": (torch.ones(1, 1, 2, 2), torch.tensor([0]))}
    made = [
        view(transcript, "client/0"),
        view(transcript, "client/0", own_data=own),
        view(transcript, "client/0", own_data=other),
        view(transcript, "client/1"),
        dataclasses.replace(view(transcript, "client/0"), hyperparameters={"lr": 0.2}),
    ]
    assert len({view_digest(one) for one in made}) == len(made)


def test_a_directory_that_is_no_view_is_refused(tmp_path):
    with pytest.raises(IntegrityError):
        open_view(tmp_path)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b + b"x", lambda b: b[:-1]]
)
def test_a_payload_that_is_edited_meanwhile_is_refused_when_it_is_read(exported, change):
    payload = exported / "payloads" / "round-000000.shard"
    made, content = open_view(exported), payload.read_bytes()
    payload.write_bytes(change(content))
    last = [m for m in made.messages if m.round == 0][-1]
    if len(change(content)) > len(content):
        assert made.tensors(last)  # a byte beyond what the line names is not read
    else:
        with pytest.raises(IntegrityError):
            made.tensors(last)


PLACES = [
    "../vault/secrets.json",
    "/etc/hostname",
    "payloads/../view.json",
    "payloads/1.safetensors",
    "..",
    "",
    None,
]


@pytest.mark.parametrize("place", PLACES)
def test_a_payload_outside_its_directory_is_neither_read_nor_copied(transcript, tmp_path, place):
    target = tmp_path / "vault" / "secrets.json"
    target.parent.mkdir()
    target.write_text("seed")
    lines = (transcript / LOG).read_bytes().split(b"\n")
    last = Message.from_line(lines[6])
    lines[6] = edited(lines[6], payload={**last.payload, "file": place})
    (transcript / LOG).write_bytes(b"\n".join(lines))

    def follow() -> None:
        made = view(transcript, "world")
        made.tensors(made.messages[0])

    # A place that is no text makes the line no message; any other is refused when it is followed.
    refused = r"not a payload of this transcript|payload does not say file"
    with pytest.raises(IntegrityError, match=refused):
        follow()
    with pytest.raises(IntegrityError, match=refused):
        export_view(view(transcript, "world"), tmp_path / "deep" / "out")
    copied = {p.name for p in (tmp_path / "deep").rglob("*") if p.is_file()}
    assert copied <= {LOG}


def test_a_message_kept_as_a_digest_says_so(tmp_path):
    with Transcript(tmp_path / "run", secret=b"s" * 16, keep=lambda round: round == 1) as log:
        for round in (0, 1):
            log.append(drafted("model_parameters", "server", ("world",), round=round), tensors(round))
    export_view(view(tmp_path / "run", "world"), tmp_path / "out")
    made = open_view(tmp_path / "out")
    with pytest.raises(IntegrityError, match="digest only"):
        made.tensors(made.messages[0])
    assert torch.equal(made.tensors(made.messages[1])["w"], tensors(1)["w"])
