"""Deviations of clients and aggregators: receivers read the record, the sender keeps what it held back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.deviations.chosen_few import ChosenFew, ChosenFewConfig
from fdaudit.deviations.known_terms import KnownTerms, KnownTermsConfig
from fdaudit.deviations.poisoning import Poisoning, PoisoningConfig
from fdaudit.protocols import REGISTRY as PROTOCOLS

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.federation.protocol import PartyData
from fdaudit.federation.public_answers import count
from fdaudit.result import Noticed
from fdaudit.testing.federation import records
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import ALL, DEVIATION
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outage, Outgoing
from fdaudit.twin import make_twin

from ..helpers.by_hand import equal, sent
from ..helpers.protocol_cases import FAST, run
from ..helpers.refusals import refused
from ..helpers.run_cases import finished
from .deviation_cases import attacked, check_resume, party, same

VOTES: Mapping[str, dict[str, Any]] = {
    "fedavg": {"aggregation": "secure", "weighting": "uniform"},
    "fedkd": {"ensemble": "votes", "weights": "uniform", "temperature": 2.0, **FAST},
    "fediod": {"outputs": "votes", "weights": "uniform", "shares": "uniform", **FAST},
    "selective-fd": {"ensemble": "votes", "aggregator": "secure", "selector": "none"},
}
"""Settings with which protocols have an aggregator."""
SETTINGS = {"fedkd": VOTES["fedkd"]}
TRAIN_LAST = ("cronus", "fediod", "fedmd", "selective-fd")
"""Clients that train on what came back in the round."""
CLIENTS = [name for name in PROTOCOLS.names() if "client" in PROTOCOLS.describe(name).copies]


class Nudge:
    """Changes what a party sends in a round, or keeps it back."""

    name = "nudge"

    def __init__(self, protocol: str, sender: str, round: int, silent: bool = False) -> None:
        self.round, self.silent = round, silent
        self.kinds = PROTOCOLS.describe(protocol).copies[sender.partition("/")[0]]
        self.received: list[tuple[Outgoing, ...]] = []

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        self.received.append(draft.received)
        if draft.round != self.round or draft.kind not in self.kinds:
            return (draft,)
        return () if self.silent else (replace(draft, tensors=nudged(draft.tensors)),)


def nudged(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other parameters or answers, or other predicted classes of three."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if name == "index":
            continue
        changed[name] = tensor.flip(-1) + 0.5 if tensor.is_floating_point() else (tensor + 1) % 3
    return changed


def active_round(name: str) -> int:
    """Clients of FedKD and FedIOD answer from the second round on."""
    return int(name in ("fedkd", "fediod"))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_receiver_reads_a_clients_changed_message(name: str, tmp_path: Path) -> None:
    """Up to the first change nothing differs; the receivers go on from the record, the sender from its own model."""
    rounds = active_round(name) + 2
    nudge = Nudge(name, "client", active_round(name))
    honest = run(tmp_path / "honest", name, SETTINGS.get(name), rounds=rounds)
    active = run(tmp_path / "active", name, SETTINGS.get(name), rounds=rounds, deviants={"client/1": nudge})
    marked = [m for m in active.messages if DEVIATION in m.fields]
    assert marked
    assert all((m.sender, m.inputs, m.defenses, m.event) == ("client/1", ALL, (), None) for m in marked)
    first = marked[0].seq
    before = [honest.tensors(m) for m in honest.messages[:first]]
    assert same(before, [active.tensors(m) for m in active.messages[:first]])
    assert not same([honest.tensors(honest.messages[first])], [active.tensors(marked[0])])
    others = [p for p in active.parties if p != "client/1"]
    rest = [[r.tensors(m) for m in r.messages[first:] if m.sender in others] for r in (honest, active)]
    assert not same(*rest) or honest.states[-1] != active.states[-1]


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in TRAIN_LAST])
def test_a_client_that_deviates_in_the_last_round_keeps_its_own_model(name: str, tmp_path: Path) -> None:
    """What it trained before it sent is the same, bit for bit, as in an honest run."""
    rounds = active_round(name) + 1
    honest, active = (
        run(tmp_path / str(len(deviants)), name, SETTINGS.get(name), rounds=rounds, deviants=deviants)
        for deviants in ({}, {"client/1": Nudge(name, "client", rounds - 1)})
    )
    assert [r.losses.get("client/1") for r in honest.rounds] == [
        r.losses.get("client/1") for r in active.rounds
    ]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_run_with_a_deviating_client_resumes(name: str, tmp_path: Path) -> None:
    last = max(1, active_round(name))
    whole = check_resume(
        tmp_path,
        name,
        lambda: {"client/1": Nudge(name, "client", last)},
        SETTINGS.get(name),
        rounds=last + 1,
        after=last - 1,
    )
    assert any(DEVIATION in m.fields for m in whole.messages)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_may_deviate_by_silence(name: str, tmp_path: Path) -> None:
    """The record names it, marked; an outage of another client besides is no hindrance."""
    now = active_round(name)
    nudge = {"client/1": Nudge(name, "client", now, silent=True)}
    outages = [Outage(party="client/0", first=now, last=now)]
    ran = run(tmp_path, name, SETTINGS.get(name), rounds=now + 2, deviants=nudge, outages=outages)
    silent = [m for m in ran.messages if m.kind == "silence" and m.round == now]
    assert {(m.sender, DEVIATION in m.fields) for m in silent} == {("client/0", False), ("client/1", True)}
    after = next(m.seq for m in silent if m.sender == "client/1")
    assert not [m for m in ran.messages[after + 1 :] if m.sender == "client/1" and m.round == now]


@pytest.mark.parametrize("name", list(VOTES))
def test_the_server_reads_an_aggregators_changed_message(name: str, tmp_path: Path) -> None:
    now = active_round(name)
    honest = run(tmp_path / "honest", name, VOTES[name], rounds=now + 2)
    nudge = Nudge(name, "aggregator", now)
    active = run(tmp_path / "active", name, VOTES[name], rounds=now + 2, deviants={"aggregator": nudge})
    marked = [m for m in active.messages if DEVIATION in m.fields]
    assert {m.sender for m in marked} == {"aggregator"}
    assert honest.states[-1] != active.states[-1]


def test_a_deviating_party_is_given_what_it_received_in_the_round(tmp_path: Path) -> None:
    """Also after a resume; never the mark of another party's deviation."""
    aggregator = Nudge("fedavg", "aggregator", 9)
    deviants = {"aggregator": aggregator, "client/1": Nudge("fedavg", "client", 1)}
    ran = run(tmp_path, "fedavg", VOTES["fedavg"], rounds=2, deviants=deviants)
    for round, received in enumerate(aggregator.received):
        assert [(m.sender, m.kind) for m in received] == [(f"client/{k}", "model_update") for k in range(3)]
        assert not any(DEVIATION in m.fields for m in received)
        uploads = [m for m in sent(ran, round=round) if "aggregator" in m.receivers]
        assert same([m.tensors for m in received], [ran.tensors(m) for m in uploads])
    again = Nudge("fedavg", "aggregator", 9)
    deviants = {"aggregator": again, "client/1": Nudge("fedavg", "client", 1)}
    resume = (1, ran.states[0], ran.positions[0])
    run(tmp_path, "fedavg", VOTES["fedavg"], rounds=2, deviants=deviants, resume=resume)
    assert [len(received) for received in again.received] == [3]


# -- the shipped ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIENTS)
def test_known_terms_say_nothing_of_a_clients_records(name: str, tmp_path: Path) -> None:
    """With other records the client sends the same, as long as it receives the same."""
    rounds, first = active_round(name) + 1, []
    settings = {"selector": "none"} if name == "selective-fd" else SETTINGS.get(name)
    for number in (0, 1):
        clients = dict(records())
        if number:
            clients["client/1"] = PartyData(clients["client/1"].x.flip(0, 2), clients["client/1"].y)
        terms = KnownTerms(KnownTermsConfig(silent=False), Knowledge())
        deviants = {"client/1": party("client/1", terms, name)}
        folder = tmp_path / str(number)
        ran = run(folder, name, settings, rounds=rounds, clients=clients, deviants=deviants)
        marked = [m for m in ran.messages if DEVIATION in m.fields and m.kind in terms.card.changes]
        assert marked
        first.append(ran.tensors(marked[0]))
    assert equal(*first)


@pytest.mark.parametrize("name", [name for name in VOTES if name != "fedavg"])
def test_an_aggregator_counts_the_votes_of_one_client_alone(name: str, tmp_path: Path) -> None:
    few = ChosenFew(ChosenFewConfig(), Knowledge())
    deviants = {"aggregator": party("aggregator", few, name)}
    ran = run(tmp_path, name, VOTES[name], rounds=3, deviants=deviants)
    counted = sent(ran, "vote_counts")
    assert counted
    for message in counted:
        alone = f"client/{message.round % 3}"
        ballots = sent(ran, "hard_labels", alone, message.round)
        (ballot,) = [ran.tensors(m) for m in ballots if m.step == message.step]
        tensors = ran.tensors(message)
        asked = tensors.get("index", torch.arange(len(tensors["counts"])))
        assert torch.equal(tensors["counts"].long(), count([ballot], asked, 3))


def test_a_poisoning_client_trains_on_candidates_with_wrong_classes() -> None:
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    poisoning = Poisoning(PoisoningConfig(copies=2), Knowledge(candidates={"client/0": (x, y)}, classes=3))
    own = torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)
    new_x, new_y = party("client/1", poisoning, "fedavg").trains_on(*own)
    assert torch.equal(new_x, x[:4].repeat_interleave(2, 0))
    assert bool((new_y != y[:4].repeat_interleave(2)).all())
    assert torch.equal(new_y[::2], new_y[1::2])
    assert not own[0].any()


def test_what_a_poisoning_client_sends_is_marked_and_others_are_as_ever(tmp_path: Path) -> None:
    entry = {"party": "client/1", "name": "poisoning"}
    honest = finished(tmp_path / "honest") / "transcript"
    active = finished(tmp_path / "active", deviations=[entry]) / "transcript"
    logs = [list(read_messages(folder)) for folder in (honest, active)]
    first = [[m for m in log if m.round == 0 and m.kind == "model_update"] for log in logs]
    assert [(m.sender, DEVIATION in m.fields) for m in first[1]] == [("client/0", False), ("client/1", True)]
    payloads = [[read_payload(f, m) for m in log] for f, log in zip((honest, active), first, strict=True)]
    assert [a == b for a, b in zip(*payloads, strict=True)] == [True, False]


@pytest.mark.thorough
def test_an_aggregator_that_drops_all_clients_but_one_opens_a_secure_sum(tmp_path: Path) -> None:
    """`analytic` does not apply to the honest sum; of each client it reads the round in which it alone was added up."""
    params = {"rounds": 2, "batch_size": 4, "local_steps": 1, "aggregation": "secure", "weighting": "uniform"}
    settings: dict[str, Any] = {"model__params__widths": [64], "protocol__params": params}
    few = [{"party": "aggregator", "name": "chosen-few"}]
    assert attacked(tmp_path / "honest", "analytic", **settings).status == "not-applicable"
    targets = attacked(tmp_path / "few", "analytic", deviations=few, **settings).targets
    assert [target.target for target in targets] == ["client/0", "client/1"]  # one a round
    for target in targets:
        assert sum(image.psnr > 40 for image in target.images or ()) >= 2


@pytest.mark.thorough
@pytest.mark.parametrize("upload", ["model_update", "model_parameters"])
def test_a_server_notices_a_client_that_sends_what_it_was_sent(upload: str, tmp_path: Path) -> None:
    entry = {"party": "client/1", "name": "known-terms", "params": {"silent": False}}
    params = {"rounds": 16, "batch_size": 16, "local_steps": 2, "upload": upload}
    rows = noticed(tmp_path, {"name": "fedavg", "params": params}, entry)
    (row,) = rows.values()
    assert (row.kind, row.detector, row.caught, row.of_crafted) == (upload, "nothing-new", 16, 16)
    assert row.alarms <= row.of_honest // 2


@pytest.mark.thorough
def test_a_server_notices_answers_of_a_client_that_was_taught_wrong_classes(tmp_path: Path) -> None:
    """They disagree with the mean of all clients' answers, which the server sent last."""
    entry = {"party": "client/1", "name": "poisoning"}
    rows = noticed(tmp_path, {"name": "fedmd", "params": {"rounds": 16}}, entry)
    assert set(rows) == {"disagreement", "other-classes"}
    for row in rows.values():
        assert row.caught >= 12
        assert row.alarms <= row.of_honest // 4


@pytest.mark.thorough
@pytest.mark.parametrize("upload", ["model_update", "model_parameters"])
def test_a_server_notices_an_upload_unlike_the_others(upload: str, tmp_path: Path) -> None:
    params = {"rounds": 16, "batch_size": 16, "local_steps": 4, "upload": upload}
    entry = {"party": "client/1", "name": "gan-client", "params": {"generator_steps": 20, "steps": 60}}
    (row,) = noticed(tmp_path, {"name": "fedavg", "params": params}, entry).values()
    assert (row.kind, row.detector, row.of_crafted, row.of_honest) == (upload, "outlier", 16, 8)
    assert row.caught >= 12
    assert row.alarms <= 2


@pytest.mark.thorough
def test_a_server_notices_a_sum_over_fewer_clients(tmp_path: Path) -> None:
    params = {"rounds": 16, "local_steps": 1, "aggregation": "secure", "weighting": "uniform"}
    entry = {"party": "aggregator", "name": "chosen-few", "params": {"few": 2}}
    row = noticed(tmp_path, {"name": "fedavg", "params": params}, entry)["few-clients"]
    assert (row.caught, row.of_crafted, row.alarms, row.of_honest) == (16, 16, 0, 8)


def noticed(folder: Path, protocol: dict[str, Any], entry: dict[str, Any]) -> Mapping[str, Noticed]:
    """What receivers could notice of a deviation, by detector."""
    spec = small_spec(
        clients=4,
        dataset={"name": "digits", "limit": 800},
        model={"name": "mlp", "params": {"widths": [64]}},
        splits={"test": 0.2, "proxy": 0.2, "auxiliary": 0.1, "candidates": 20},
        protocol=protocol,
        references=[],
        attacks=[],
        deviations=[entry],
    )
    found = fdaudit.run(spec, folder / "run")
    make_twin(found, folder / "twin")
    assert found.result.twin is not None
    return {row.detector: row for row in found.result.twin.noticed}


@pytest.mark.parametrize(
    ("entry", "params", "field"),
    [
        ({"party": "server", "name": "known-terms"}, {}, "deviations.0.party"),
        ({"party": "aggregator", "name": "chosen-few"}, {}, "deviations.0.party"),
        ({"party": "client/0", "name": "chosen-few"}, {"aggregation": "secure"}, "deviations.0.party"),
        (
            {"party": "client/0", "name": "known-terms", "params": {"rounds": [-1]}},
            {},
            "deviations.0.params.rounds.0",
        ),
    ],
)
def test_deviations_that_no_such_party_can_do_are_refused(
    entry: dict[str, Any], params: dict[str, Any], field: str, tmp_path: Path
) -> None:
    changes = {
        f"protocol__params__{name}": value for name, value in {**params, "weighting": "uniform"}.items()
    }
    refused(lambda: fdaudit.run(small_spec(deviations=[entry], **changes), tmp_path / "run"), field)


def test_votes_are_not_counted_where_a_protocol_averages_logits(tmp_path: Path) -> None:
    entry = {"party": "aggregator", "name": "chosen-few"}
    spec = small_spec(deviations=[entry], protocol={"name": "fedkd"}, splits__proxy=0.2)
    with pytest.raises(SpecError, match="nobody reads"):
        fdaudit.run(spec, tmp_path / "run")
