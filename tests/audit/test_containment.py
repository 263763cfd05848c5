"""Which views contain which: by messages, own records, sizes on an encrypted transport, and what may be asked."""

from __future__ import annotations

from pathlib import Path

import torch

from fdaudit.adversary.view import EAVESDROPPER, View, members_of
from fdaudit.audit.containment import contained
from fdaudit.handout.oracle_access import Access
from fdaudit.transcript.messages import Message

PARTIES = ("server", "client/0", "client/1", "world")
SENT = (  # (sender, receivers, kind)
    ("server", ("client/0", "client/1"), "model_parameters"),
    ("client/0", ("server",), "model_update"),
    ("client/1", ("server",), "model_update"),
    ("client/1", (), "release"),
    ("server", ("world",), "model_parameters"),
)
ASKED_BY_WORLD = Access(
    name="released-model", asked_by=frozenset({"world"}), heard_by=frozenset({"world"}), answers=("soft",)
)


def message(seq: int) -> Message:
    sender, receivers, kind = SENT[seq]
    return Message(seq=seq, round=0, step=0, sender=sender, receivers=receivers, kind=kind)


def view(name: str, seen: tuple[int, ...], sizes: tuple[int, ...] = ()) -> View:
    members = members_of(name, PARTIES)
    nothing = torch.zeros(0)
    return View(
        name=name,
        members=members,
        parties=PARTIES,
        hyperparameters={},
        messages=tuple(message(seq) for seq in seen),
        own_data={m: (nothing, nothing) for m in members if m.startswith("client/")},
        sizes=sizes,
        directory=Path(),
    )


def table(*views: View, oracles: tuple[Access, ...] = (), transport: str = "plain") -> dict[str, list[str]]:
    return {row.adversary: list(row.contains) for row in contained(views, oracles, transport)}


SERVER, WORLD = view("server", (0, 1, 2, 4)), view("world", (4,))
CLIENT = view("client/0", (0, 1))
COALITION = view("server+client/0", (0, 1, 2, 4))


def test_messages_and_own_records_decide() -> None:
    assert table(SERVER, WORLD, CLIENT, COALITION) == {
        "server": ["world"],
        "world": [],
        "client/0": [],
        "server+client/0": ["server", "world", "client/0"],
    }


def test_an_eavesdropper_on_a_plain_transport_sees_all_that_the_server_sees_but_nobody_s_records() -> None:
    heard = view(EAVESDROPPER, (0, 1, 2, 4))
    found = table(SERVER, WORLD, CLIENT, heard)
    assert found[EAVESDROPPER] == ["server", "world"]
    assert found["server"] == ["world", EAVESDROPPER]
    assert table(view("client/1", (0, 2, 3)), heard)[EAVESDROPPER] == []  # a release within client/1


def test_sizes_on_an_encrypted_transport_are_part_of_a_view() -> None:
    heard = view(EAVESDROPPER, (), sizes=(10, 20, 30, 40))
    both = view("server+eavesdropper", (0, 1, 2, 4), sizes=(10, 20, 30, 40))
    found = table(SERVER, heard, both, transport="encrypted")
    assert found == {"server": [], EAVESDROPPER: [], "server+eavesdropper": ["server", EAVESDROPPER]}


def test_an_oracle_is_part_of_a_view_unless_the_published_model_is_in_it() -> None:
    withheld = view("world", ())
    blind = view("server", (0, 1, 2))
    assert table(blind, withheld, oracles=(ASKED_BY_WORLD,))["server"] == []
    assert table(blind, withheld)["server"] == ["world"]
    assert table(SERVER, WORLD, oracles=(ASKED_BY_WORLD,))["server"] == ["world"]
    together = view("server+world", (0, 1, 2))
    assert table(together, blind, withheld, oracles=(ASKED_BY_WORLD,))["server+world"] == ["server", "world"]
