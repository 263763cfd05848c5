"""DP-SGD inside every protocol: what is released, what messages then declare, and that it is all they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from fdaudit.protocols import REGISTRY

from fdaudit.events import SampledGaussian
from fdaudit.federation.protocol import PartyData
from fdaudit.testing.federation import CLASSES, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.training.private_step import Guard, Step
from fdaudit.transcript.messages import ALL, DATA, Message, role
from fdaudit.transcript.transcript import verify_transcript

from ..helpers.protocol_cases import case_id, configured, every_case, run, thorough_beyond_defaults
from .dp_sgd_run_cases import SETTINGS, declares_release, defended, releases, training

pytestmark = pytest.mark.thorough

# FedAvg's own clipping of a step does not go with a defence of training.
DEFENDED = [
    case
    for case in every_case()
    if REGISTRY.load(case[0]).card.trains and not isinstance(case[1].get("clip"), dict)
]
every_defended = pytest.mark.parametrize("case", thorough_beyond_defaults(DEFENDED))
by_name = pytest.mark.parametrize("name", sorted({name for name, _ in DEFENDED}))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[..., ProtocolRun]:
    """Defended runs that several tests only read, each made once."""
    found: dict[str, ProtocolRun] = {}

    def run_of(name: str, params: Mapping[str, Any] | None = None) -> ProtocolRun:
        key = case_id((name, dict(params or {})))
        if key not in found:
            found[key] = defended(tmp_path_factory.mktemp("made"), name, params)
        return found[key]

    return run_of


# -- what is on record ----------------------------------------------------------------------------------------------


@every_defended
def test_every_training_is_on_record_as_a_release_with_its_event(case, made):
    ran = made(*case)
    assert releases(ran) or case[1].get("local_steps") == 0
    for message in releases(ran):
        assert role(message.sender) == "client"
        assert (message.receivers, dict(message.tensors)) == ((), {})
        assert DATA in message.inputs
        assert message.inputs != ALL
        event = message.event
        assert isinstance(event, SampledGaussian)
        assert (event.sensitivity, event.scale, event.sample_rate) == (0.5, 0.25, 0.5)
        assert (event.unit, event.relation, event.covers) == ("record", "add-or-remove", ("data",))
        assert event.count >= 1
        (stated,) = message.defenses
        assert {n: stated[n] for n in SETTINGS} == SETTINGS
        assert stated["name"] == "dp-sgd"
        assert stated["of"] in REGISTRY.load(case[0]).card.trains
    head, count = ran.positions[-1].head, ran.positions[-1].seq
    assert verify_transcript(ran.folder, head=head, count=count) == []


@every_defended
def test_a_clients_trainings_follow_from_each_other_or_from_what_it_was_sent(case, made):
    """No training of a model that persists is left out: each later release leads back to the client's last."""
    ran = made(*case)
    kept = any(n.startswith("client/0/w/") for n in ran.protocol.state) or case[0] in ("dafkd", "fediod")
    last: dict[tuple[str, Any], int] = {}
    for message in releases(ran):
        key = (message.sender, message.defenses[0]["of"])
        if kept and key in last:
            assert last[key] in message.inputs
        last[key] = message.seq


@every_defended
def test_declared_inputs_are_messages_that_the_sender_held(case, made):
    messages = made(*case).messages
    for message in messages:
        for i in () if message.inputs == ALL else message.inputs:
            assert i == DATA or message.sender in messages[i].parties(), (message.seq, i)


NARROW = {
    "centralized": {"model_parameters"},
    "cronus": {"soft_labels"},
    "dafkd": {"model_parameters", "generator_parameters", "discriminator_parameters"},
    "ds-fl": {"soft_labels"},
    "fedavg": {"model_update"},
    "feddf": {"model_parameters"},
    "feded": {"soft_labels"},
    "fedftg": {"model_parameters"},
    "fedgems": {"logits"},
    "fedgen": {"model_parameters"},
    "fediod": {"logits", "sample_gradients"},
    "fedkd": {"logits", "logit_range"},
    "fedmd": {"logits"},
    "fkd": set(),
    "pls": set(),
    "selective-fd": set(),
    "standalone": set(),
}
"""What clients send that is computed from their models alone, with default settings."""


@by_name
def test_what_is_computed_from_a_model_alone_declares_its_release_in_place_of_the_records(name, made):
    ran = made(name)
    sent = [m for m in ran.messages if role(m.sender) == "client" and m.kind not in ("release", "silence")]
    assert {m.kind for m in sent if declares_release(ran, m)} == NARROW[name]
    first = 1 if name in ("fedmd",) and not configured(name, {}).warm_up_steps else 0
    for message in sent:
        if message.kind in NARROW[name] and message.round >= first:
            assert declares_release(ran, message), message.seq
        elif message.kind not in NARROW[name]:
            assert message.inputs == ALL or DATA in message.inputs, message.kind


def test_without_a_defence_nothing_is_released(tmp_path):
    for name in REGISTRY.names():
        assert not releases(run(tmp_path / name, name))


# -- nothing else touches the records -------------------------------------------------------------------------------


def altered(client: str) -> dict[str, PartyData]:
    """One client with one record more, and its records inverted and labelled otherwise."""
    found = records()
    x, y = found[client].x, found[client].y
    return {**found, client: PartyData(torch.cat([1 - x, x[:1]]), torch.cat([(y + 1) % CLASSES, y[:1]]))}


class Held:
    """Steps under a guard, remembered from one run and given again in another: training learns nothing new."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._steps: dict[tuple[bytes, int], Step] = {}
        self._patch, self._plain = monkeypatch, Guard.step

    def remember(self) -> None:
        self._replace(lambda guard, key, *args: self._steps.setdefault(key, self._plain(guard, *args)))

    def replay(self) -> None:
        self._replace(lambda guard, key, *args: self._steps[key])

    def _replace(self, do: Any) -> None:
        taken: dict[bytes, int] = {}

        def step(guard: Guard, *args: Any) -> Step:
            stream = guard.noise._key
            taken[stream] = taken.get(stream, -1) + 1
            return do(guard, (stream, taken[stream]), *args)

        self._patch.setattr(Guard, "step", step)


def reaches(messages: list[Message], client: str) -> set[int]:
    """Messages to which the client's records lead by a way without a release."""
    found: set[int] = set()
    for message in messages:
        inputs: Any = message.inputs
        if inputs == ALL:
            held = [m.seq for m in messages[: message.seq] if message.sender in m.parties()]
            inputs = (DATA, *held)
        own = DATA in inputs and message.sender == client and message.kind != "release"
        if own or found & {i for i in inputs if i != DATA}:
            found.add(message.seq)
    return found


@every_defended
def test_a_message_that_declares_releases_alone_is_the_same_when_what_was_learnt_is(
    case, tmp_path, monkeypatch
):
    """Other records, more of them, but the same noisy gradients: nothing behind a release changes by a bit."""
    held, bare = Held(monkeypatch), REGISTRY.load(case[0]).card.pools_data
    held.remember()
    one = defended(tmp_path / "a", *case)
    for client in ("client/0", "client/2"):
        held.replay()
        two = defended(tmp_path / client, *case, clients=altered(client))
        assert [(m.sender, m.kind, m.inputs) for m in one.messages] == [
            (m.sender, m.kind, m.inputs) for m in two.messages
        ]
        reached = reaches(one.messages, "client/0" if bare else client)
        differ = {
            a.seq
            for a, b in zip(one.messages, two.messages, strict=True)
            if a.kind != "release" and one.payload(a) != two.payload(b)
        }
        assert differ <= reached
        assert [m.event for m in releases(one)] == [m.event for m in releases(two)]


@by_name
def test_what_was_learnt_does_depend_on_the_records(name, made, tmp_path):
    """The control of the test above: without held gradients the same messages change."""
    one = made(name)
    two = defended(tmp_path / "b", name, clients=altered("client/2"))
    moved = [
        a.seq
        for a, b in zip(one.messages, two.messages, strict=True)
        if declares_release(one, a) and one.payload(a) != two.payload(b)
    ]
    assert moved or not NARROW[name]


# -- randomness -----------------------------------------------------------------------------------------------------


@by_name
def test_a_resumed_run_draws_the_same_coins_and_noise(name, made, tmp_path):
    whole = made(name)
    begun = defended(tmp_path / "again", name, stop_after=0)
    rest = defended(tmp_path / "again", name, resume=(1, begun.states[-1], begun.positions[-1]))
    assert rest.log == whole.log
    assert rest.states[-1] == whole.states[-1]


@by_name
def test_threads_change_nothing(name, made, tmp_path):
    one, two = made(name), defended(tmp_path / "a", name, threads=3)
    assert (one.log, one.states) == (two.log, two.states)


@by_name
def test_noise_does_not_come_from_the_runs_seed(name, made, tmp_path, monkeypatch):
    """Another secret, the same seed: other models."""
    one = made(name)
    monkeypatch.setattr("fdaudit.testing.running.SECRET", b"another secret of the auditor's own")
    two = defended(tmp_path / "b", name)
    assert one.states[-1] != two.states[-1]


@by_name
def test_a_vast_noise_drowns_what_was_learnt(name, tmp_path):
    """Noise reaches every trained tensor of every client's model."""
    if name == "selective-fd":
        return  # its models go on to learn from the ensemble, and lr is large; see the rounds before
    loud = training(name, noise_multiplier=1e4)
    ran = run(tmp_path / "a", name, training=loud, stop_after=0)
    for party, model in ran.rounds[0].models.items():
        if role(party) == "client" or name == "centralized":
            start = ran.setting.initial[party]
            for n, t in model.items():
                assert float((t - start[n]).abs().min()) > 0
                assert float((t - start[n]).abs().mean()) > 1
