"""Checks on receipt: who refuses, what a refusal leaves of the round, and the same after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.defenses.checks import CheckConfig, FreshSamples, FreshSamplesConfig, SameBroadcast

from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.running import ProtocolRun
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.wire import Outgoing

from ..helpers.protocol_cases import run
from ..helpers.refusals import refused
from ..helpers.run_cases import known

SAME = {("model_parameters", "server"): (SameBroadcast(CheckConfig()),)}
FRESH = {("generated_samples", "server"): (FreshSamples(FreshSamplesConfig()),)}


class Apart:
    """A server that sends one client another model, in one round."""

    name = "apart"

    def __init__(self, round: int) -> None:
        self.round = round

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        """Return the model for all others, and another one for client/1."""
        if draft.kind != "model_parameters" or draft.round != self.round or "client/1" not in draft.receivers:
            return (draft,)
        others = tuple(receiver for receiver in draft.receivers if receiver != "client/1")
        other = {name: tensor + 1 for name, tensor in draft.tensors.items()}
        return replace(draft, receivers=others), replace(draft, receivers=("client/1",), tensors=other)


class Again:
    """A server that shows the samples of its first message again, from some round on."""

    name = "again"

    def __init__(self, first: int) -> None:
        self.first = first

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        """Return ones in place of generated samples."""
        if draft.kind != "generated_samples" or draft.round < self.first:
            return (draft,)
        draws = torch.Generator().manual_seed(1)
        samples = draft.tensors["samples"]
        return (replace(draft, tensors={"samples": torch.rand(samples.shape, generator=draws)}),)


def silent(ran: ProtocolRun) -> set[tuple[int, str]]:
    """Who was silent in which round."""
    return {(m.round, m.sender) for m in ran.messages if m.kind == "silence"}


def test_clients_that_were_sent_different_models_send_nothing_in_that_round(tmp_path: Path) -> None:
    ran = run(tmp_path, "fedavg", rounds=3, deviants={"server": Apart(1)}, checks=SAME)
    everybody = {f"client/{k}" for k in range(3)}
    assert silent(ran) == {(1, client) for client in everybody}
    heard = {(m.round, m.sender) for m in ran.messages if m.kind == "model_update" or m.kind == "gradient"}
    assert {sender for round, sender in heard if round == 2} == everybody
    assert not any(round == 1 for round, _ in heard)
    refused = {m.seq for m in ran.messages if m.round == 1 and m.kind == "model_parameters"}
    assert all(set(m.inputs) <= refused for m in ran.messages if m.kind == "silence")


@pytest.mark.parametrize(("name", "checks"), [("fedavg", SAME), ("fediod", FRESH)])
def test_a_check_changes_no_bit_of_an_honest_run(name: str, checks: Any, tmp_path: Path) -> None:
    assert (
        run(tmp_path / "plain", name, rounds=3).log
        == run(tmp_path / "checked", name, rounds=3, checks=checks).log
    )


def test_samples_that_were_shown_before_get_no_answer(tmp_path: Path) -> None:
    """Also in a run that was resumed, where the check has forgotten nothing."""
    settings: dict[str, Any] = {"deviants": {"server": Again(1)}, "checks": FRESH}
    whole = run(tmp_path / "whole", "fediod", rounds=3, **settings)
    # The second step of the first such round repeats the first one's.
    assert silent(whole) == {(r, f"client/{k}") for r in (1, 2) for k in range(3)}
    part = run(tmp_path / "part", "fediod", rounds=3, stop_after=1, **settings)
    resume = (2, part.states[1], part.positions[1])
    assert run(tmp_path / "part", "fediod", rounds=3, resume=resume, **settings).log == whole.log


def case_of(*defenses: dict[str, Any], **changes: Any) -> Any:
    fedmd = {"protocol": {"name": "fedmd", "params": {"rounds": 1}}, "splits__proxy": 0.2}
    return simulated_case(load_spec(small_spec(defenses=list(defenses), **fedmd, **changes)), known(3))


PLANTED: dict[str, Any] = {
    "deviations": [{"party": "server", "name": "planted-candidates"}],
}
OWN = {"at": "receipt", "kind": "proxy_indices", "sender": "server", "name": "own-public-set"}


def test_a_public_set_of_the_clients_own_has_no_candidates_in_it() -> None:
    def planted(case: Any) -> int:
        held = {row.numpy().tobytes() for k in case.clients for row in case.records(k)[0]}
        return sum(row.numpy().tobytes() in held for row in case.public)

    assert planted(case_of(**PLANTED)) > 0
    assert planted(case_of(OWN, **PLANTED)) == 0


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({**OWN, "at": "message"}, "defenses.0.name"),
        ({**OWN, "sender": "client"}, "defenses.0.kind"),
        ({**OWN, "kind": "ensemble_labels"}, "defenses.0.kind"),
        ({**OWN, "kind": "model_parameters"}, "defenses.0.kind"),
        ({**OWN, "name": "hard-label"}, "defenses.0.name"),
    ],
)
def test_a_check_where_it_cannot_act_is_refused(entry: dict[str, Any], field: str) -> None:
    refused(lambda: case_of(entry), field)


def test_what_goes_to_no_client_is_checked_by_none() -> None:
    entry = {"at": "receipt", "kind": "logits", "sender": "client", "name": "same-broadcast"}
    refused(lambda: case_of(entry), "defenses.0.kind", "logits", said="no client")
