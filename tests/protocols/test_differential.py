"""What a message declares to depend on is all that it depends on: nothing else, altered, changes a bit of it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from fdaudit.protocols import REGISTRY
from torch import Tensor

from fdaudit.federation.protocol import PartyData
from fdaudit.testing.federation import CLASSES, records
from fdaudit.testing.running import ProtocolRun, ancestry
from fdaudit.transcript.messages import ALL, DATA
from fdaudit.transcript.wire import Delivery

from ..helpers.protocol_cases import CASES, case_id, every_case, run, thorough_beyond_defaults

FEDAVG = REGISTRY.load("fedavg")
Case = tuple[str, dict[str, Any]]
every_protocol = pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))


def altered(client: str) -> dict[str, PartyData]:
    """Everybody's records, those of one client inverted and labelled otherwise: even its predicted classes change."""
    found = records()
    return {**found, client: PartyData(1 - found[client].x, (found[client].y + 1) % CLASSES)}


def disturbed(name: str, tensor: Tensor) -> Tensor:
    """A tensor of a message, every value another one that may stand there."""
    if tensor.is_floating_point():  # a scalar may be one of which only the largest counts
        return tensor * 1.5 + 0.01 if tensor.ndim else tensor * 10 + 1
    if name == "index":  # the same samples in another order: each is paired with another's values
        return tensor.flip(0)
    if name == "values":
        return (tensor + 1) % CLASSES
    return tensor + 1 + torch.arange(tensor.numel()).reshape(tensor.shape)


def with_a_client() -> list[Any]:
    """Return every protocol's defaults with each client, and each other setting with one client, in turn."""
    clients = sorted(records())
    plain = [(case, client) for case in every_case() if not case[1] for client in clients]
    other = [(case, clients[i % len(clients)]) for i, case in enumerate(CASES)]
    return [
        pytest.param(
            *both, id=f"{both[1]}-{case_id(both[0])}", marks=[pytest.mark.thorough] if both[0][1] else []
        )
        for both in [*plain, *other]
    ]


def changed(one: ProtocolRun, two: ProtocolRun) -> set[int]:
    """The messages that differ in anything but what chains them to lines before."""
    assert len(one.messages) == len(two.messages)
    found = set()
    for a, b in zip(one.messages, two.messages, strict=True):
        assert (a.seq, a.salt, a.sender, a.receivers, a.kind) == (
            b.seq,
            b.salt,
            b.sender,
            b.receivers,
            b.kind,
        )
        if one.payload(a) != two.payload(b):
            found.add(a.seq)
    return found


def undeclared_data(
    base: ProtocolRun, tmp_path, name: str, params: dict[str, Any], client: str, cls: Any = None
) -> tuple[set, set]:
    """Messages that a client's data changed although they do not declare it; and all that it changed."""
    moved = changed(
        base, run(tmp_path / f"moved-{client[-1]}", name, params, cls=cls, clients=altered(client))
    )
    pools = REGISTRY.load(name).card.pools_data
    reached = ancestry(base.messages)
    return {seq for seq in moved if not pools and client not in reached[seq][0]}, moved


def undeclared_messages(
    base: ProtocolRun, tmp_path, name: str, params: dict[str, Any], cls: Any = None, rounds: int = 2
):
    """(message, altered message it does not declare), and (message, altered message it does), where it changed."""
    reached = ancestry(base.messages)
    wrong, right = set(), set()
    for target in range(len(base.messages)):

        def alter(delivery: Delivery, target: int = target) -> Delivery:
            if delivery.seq != target:
                return delivery
            return Delivery({n: disturbed(n, t) for n, t in delivery.items()}, delivery.seq)

        folder, first, resume = tmp_path / f"altered-{target}", base.messages[target].round, None
        if first:  # until then it is the same run
            shutil.copytree(base.folder, folder)
            resume = (first, base.states[first - 1], base.positions[first - 1])
        again = run(folder, name, params, cls=cls, alter=alter, rounds=rounds, resume=resume)
        for seq in changed(base, again):
            (right if target in reached[seq][1] else wrong).add((seq, target))
    return wrong, right


# -- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "client"), with_a_client())
def test_a_message_that_does_not_declare_a_clients_data_does_not_change_with_it(
    case, client, undisturbed, tmp_path
):
    base = undisturbed(case)
    wrong, moved = undeclared_data(base, tmp_path, *case, client)
    assert wrong == set()
    takes_part = any(m.sender == client and m.kind != "sample_count" for m in base.messages)
    if takes_part or REGISTRY.load(case[0]).card.pools_data:
        assert moved
    else:
        assert not moved


def test_a_client_that_joins_late_changes_nothing_before(tmp_path):
    params = {"fraction": 0.34, "local_steps": 1}
    base = run(tmp_path / "a", "fedavg", params, rounds=5)
    joined = {m.sender: m.round for m in reversed(base.messages) if m.kind == "model_update"}
    late, round = max(joined.items(), key=lambda item: item[1])
    assert round > 0
    moved = changed(base, run(tmp_path / "b", "fedavg", params, rounds=5, clients=altered(late)))
    assert moved
    assert min(base.messages[seq].round for seq in moved) == round
    for message, (data, _) in zip(base.messages, ancestry(base.messages), strict=True):
        if message.round < round and message.kind != "sample_count":
            assert late not in data


def test_the_first_broadcast_depends_on_nobody(tmp_path):
    messages = run(tmp_path / "a", "fedavg", {"weighting": "uniform"}).messages
    assert messages[0].kind == "model_parameters"
    assert messages[0].inputs == ()


# -- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@every_protocol
def test_a_message_altered_on_delivery_changes_only_messages_that_declare_it(case, undisturbed, tmp_path):
    rounds = 3 if case[1].get("server_momentum") else 2  # a velocity goes back further than one round
    base = undisturbed(case, rounds)
    wrong, right = undeclared_messages(base, tmp_path, *case, rounds=rounds)
    assert wrong == set()
    # And what is declared is used as it was delivered: whoever took it from the sender directly would not notice.
    used = {i for m in base.messages if m.inputs != ALL for i in m.inputs if i != DATA}
    if "fraction" in case[1]:  # alone in its round, a client weighs 1 whatever its count
        used -= {m.seq for m in base.messages if m.kind == "sample_count"}
    assert used <= {target for _, target in right}


# -- what an untrue declaration looks like ------------------------------------------------------------------------


class _Lying(FEDAVG):
    """FedAvg whose wire is told less than the truth."""

    def __init__(self, config: Any, setting: Any) -> None:
        super().__init__(config, setting)
        honest = self._wire
        outer = self

        class Told:
            begin = honest.begin

            def send(self, sender, receivers, kind, tensors, *, inputs, **more):
                told = outer.tell(sender, kind, inputs)
                return honest.send(sender, receivers, kind, tensors, inputs=told, **more)

        self._wire = Told()  # type: ignore[assignment]

    def tell(self, sender: str, kind: str, inputs: Any) -> Any:
        raise NotImplementedError


class _HidesData(_Lying):
    def tell(self, sender, kind, inputs):
        return [i for i in inputs if i != DATA] if sender.startswith("client/") else inputs


class _HidesTheModel(_Lying):
    def tell(self, sender, kind, inputs):
        return [DATA] if sender.startswith("client/") else inputs


class _ForgetsUploads(_Lying):
    def tell(self, sender, kind, inputs):
        return inputs[:-1] if sender == "server" and inputs != ALL else inputs


class _Peeks(FEDAVG):
    """A federation in which one client reads another's records without any message."""

    def _job(self, t, k, data, w_t):
        if k == "client/1":
            other = self._clients["client/0"]
            data = PartyData(torch.cat([data.x, other.x]), torch.cat([data.y, other.y]))
        return super()._job(t, k, data, w_t)


class _Overhears(FEDAVG):
    """A client whose upload takes in what another sent to the server in the same round."""

    def _client_updates(self, t, w_t, selected):
        wire, heard = self._wire, {}

        class Shared:
            def send(self, sender, receivers, kind, tensors, *, inputs, **more):
                if sender == "client/1":
                    tensors = {n: v + heard["client/0"][n] for n, v in tensors.items()}
                heard[sender] = wire.send(sender, receivers, kind, tensors, inputs=inputs, **more)
                return heard[sender]

        self._wire = Shared()
        try:
            return super()._client_updates(t, w_t, selected)
        finally:
            self._wire = wire


@pytest.mark.parametrize(("cls", "client"), [(_HidesData, "client/1"), (_Peeks, "client/0")])
def test_hidden_data_are_found(cls, client, tmp_path):
    params = {"weighting": "uniform"}
    base = run(tmp_path / "base", "fedavg", params, cls=cls)
    wrong, _ = undeclared_data(base, tmp_path, "fedavg", params, client, cls)
    assert wrong


@pytest.mark.parametrize("cls", [_HidesTheModel, _ForgetsUploads, _Overhears])
def test_hidden_messages_are_found(cls, tmp_path):
    params = {"weighting": "uniform", "local_steps": 1}
    base = run(tmp_path / "base", "fedavg", params, cls=cls, rounds=2)
    wrong, _ = undeclared_messages(base, tmp_path, "fedavg", params, cls)
    assert wrong
