"""A coalition that knows all terms of a secure sum but one reads the term that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fdaudit.adversary.single_terms import with_single_terms
from fdaudit.adversary.view import View, view_of
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.wire import Outage

from ..helpers.protocol_cases import run

SECURE = {"aggregation": "secure", "weighting": "public", "local_steps": 2}


def seen(ran: ProtocolRun, adversary: str) -> View:
    return view_of(ran.folder, adversary, parties=ran.parties, hyperparameters={})


def uploads(view: View, client: str) -> list[dict[str, torch.Tensor]]:
    """A client's updates, each over its weight."""
    messages = view.select(kind="model_update", sender=client)
    return [{n: t / m.fields["weight"] for n, t in view.tensors(m).items()} for m in messages]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    return run(tmp_path_factory.mktemp("ran"), "fedavg", SECURE, rounds=2)


def test_all_clients_but_one_and_the_server_read_that_clients_updates(ran: ProtocolRun) -> None:
    read = with_single_terms(seen(ran, "server+client/0+client/2"))
    found, truth = uploads(read, "client/1"), uploads(seen(ran, "aggregator"), "client/1")
    assert len(found) == len(truth) == 2
    for one, other in zip(found, truth, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("adversary", ["server", "server+client/0", "client/0+client/2", "aggregator"])
def test_other_adversaries_read_what_they_saw(ran: ProtocolRun, adversary: str) -> None:
    """Two terms are missing, the sum itself is, or none is missing."""
    view = seen(ran, adversary)
    assert with_single_terms(view) is view


def test_a_sum_without_silent_clients_is_read_too(tmp_path: Path) -> None:
    outages = [Outage(party="client/2", first=0, last=0)]
    ran = run(tmp_path, "fedavg", SECURE, rounds=2, outages=outages)
    read = with_single_terms(seen(ran, "server+client/0"))
    assert [m.round for m in read.select(kind="model_update", sender="client/1")] == [0]
    (found,), truth = uploads(read, "client/1"), uploads(seen(ran, "aggregator"), "client/1")[0]
    for name in found:
        torch.testing.assert_close(found[name], truth[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("change", [{"clients": None}, {"weight": "1"}, {"exact_sum": False}])
def test_a_sum_that_does_not_say_what_is_in_it_stays_a_sum(ran: ProtocolRun, change: dict[str, Any]) -> None:
    from dataclasses import replace

    view = seen(ran, "server+client/0+client/2")
    messages = tuple(
        replace(m, fields={**m.fields, **change}) if m.sender == "aggregator" else m for m in view.messages
    )
    view = replace(view, messages=messages)
    assert with_single_terms(view) is view
