"""What the result says of messages: which tell an adversary something that no other message of its view holds."""

from __future__ import annotations

import pytest

from fdaudit.result import derived_from_data, exposed_rows, told_anew
from fdaudit.testing.running import ProtocolRun

from ..helpers.protocol_cases import run


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    return run(tmp_path_factory.mktemp("fkd") / "run", "fkd", rounds=2)


def anew(ran: ProtocolRun, *parties: str) -> tuple[set[int], set[int]]:
    """Return the messages of a view that tell something new, and all that a client sent."""
    view = [m.seq for m in ran.messages if set(parties) & {m.sender, *m.receivers}]
    sent = {m.seq for m in ran.messages if m.sender.startswith("client/")}
    return set(told_anew(ran.messages, view, derived_from_data(ran.messages))), sent


def test_a_mean_is_derived_where_every_term_is_in_view(ran: ProtocolRun) -> None:
    found, sent = anew(ran, "server")
    assert found == sent


def test_a_mean_is_new_where_a_term_is_not_in_view(ran: ProtocolRun) -> None:
    found, _ = anew(ran, "client/0")
    received = {m.seq for m in ran.messages if "client/0" in m.receivers}
    assert received <= found


def test_the_exposure_marks_derived_messages(ran: ProtocolRun) -> None:
    seen, private = ran.messages, derived_from_data(ran.messages)
    rows = exposed_rows(seen, "eavesdropper", private, anew=told_anew(seen, [m.seq for m in seen], private))
    assert {r.senders: r.derived for r in rows} == {("client",): False, ("server",): True}
    assert not any(r.derived for r in exposed_rows(seen, "eavesdropper", private))
