"""What a message declares to depend on is all that it depends on: nothing else, altered, changes a bit of it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from fdaudit.protocols import REGISTRY
from torch import Tensor

from fdaudit.testing.declared import changed_messages
from fdaudit.testing.federation import CLASSES, altered, records
from fdaudit.testing.running import ProtocolRun, ancestry
from fdaudit.transcript.messages import ALL, DATA
from fdaudit.transcript.wire import Delivery

from ..helpers.protocol_cases import every_case, run, thorough_beyond_defaults

FEDAVG = REGISTRY.load("fedavg")
every_protocol = pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))


def disturbed(name: str, tensor: Tensor) -> Tensor:
    """A tensor of a message, every value another one that may stand there."""
    if tensor.is_floating_point():  # a scalar may be one of which only the largest counts
        return tensor * 1.5 + 0.01 if tensor.ndim else tensor * 10 + 1
    if name == "index":  # the same samples in another order: each is paired with another's values
        return tensor.flip(0)
    if name == "values":
        return (tensor + 1) % CLASSES
    return tensor + 1 + torch.arange(tensor.numel()).reshape(tensor.shape)


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
        moved = changed_messages(base, again)
        assert moved is not None
        for seq in moved:
            (right if target in reached[seq][1] else wrong).add((seq, target))
    return wrong, right


# -- data ---------------------------------------------------------------------------------------------------------


@every_protocol
def test_other_records_of_a_client_change_messages_that_declare_them_and_no_others(
    case, undisturbed, tmp_path
):
    """`check_protocol` exchanges the records of client/1."""
    base, pools = undisturbed(case), REGISTRY.load(case[0]).card.pools_data
    moved = changed_messages(base, run(tmp_path / "a", *case, clients=altered(records(), "client/2")))
    reached = ancestry(base.messages)
    assert moved is not None
    assert pools or {seq for seq in moved if "client/2" not in reached[seq][0]} == set()
    takes_part = any(m.sender == "client/2" and m.kind != "sample_count" for m in base.messages)
    assert bool(moved) == (takes_part or pools)


def test_a_client_that_joins_late_changes_nothing_before(tmp_path):
    params = {"fraction": 0.34, "local_steps": 1}
    base = run(tmp_path / "a", "fedavg", params, rounds=5)
    joined = {m.sender: m.round for m in reversed(base.messages) if m.kind == "model_update"}
    late, round = max(joined.items(), key=lambda item: item[1])
    assert round > 0
    moved = changed_messages(
        base, run(tmp_path / "b", "fedavg", params, rounds=5, clients=altered(records(), late))
    )
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


class _HidesTheModel(_Lying):
    def tell(self, sender, kind, inputs):
        return [DATA] if sender.startswith("client/") else inputs


class _ForgetsUploads(_Lying):
    def tell(self, sender, kind, inputs):
        return inputs[:-1] if sender == "server" and inputs != ALL else inputs


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


@pytest.mark.parametrize("cls", [_HidesTheModel, _ForgetsUploads, _Overhears])
def test_hidden_messages_are_found(cls, tmp_path):
    params = {"weighting": "uniform", "local_steps": 1}
    base = run(tmp_path / "base", "fedavg", params, cls=cls, rounds=2)
    wrong, _ = undeclared_messages(base, tmp_path, "fedavg", params, cls)
    assert wrong
