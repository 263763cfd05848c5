"""DP-SGD inside every protocol: what is released, what messages then declare, and that it is all they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY
from torch.nn import functional as F

from fdaudit.config import validate
from fdaudit.events import NoGuarantee, SampledGaussian
from fdaudit.federation import PartyData
from fdaudit.guard import Guard, Step
from fdaudit.messages import ALL, DATA, Message, role
from fdaudit.rng import SecretStream, child
from fdaudit.storage import decode
from fdaudit.transcript import verify_transcript

from .protocol_cases import (
    CLASSES,
    SECRET,
    SMALL,
    Ran,
    case_id,
    configured,
    every_case,
    initial,
    network,
    records,
    run,
)

SETTINGS = {"clip": 0.5, "noise_multiplier": 0.5, "sample_rate": 0.5}
DEFENDED = [case for case in every_case() if getattr(REGISTRY.load(case[0]), "trains", {})]
every_defended = pytest.mark.parametrize("case", DEFENDED, ids=case_id)
by_name = pytest.mark.parametrize("name", sorted({name for name, _ in DEFENDED}))


def training(name: str, params: Mapping[str, Any] | None = None, *, only: str | None = None, **changes: Any):
    """DP-SGD on all that a protocol's clients train, or on one thing of it."""
    cls, trains = DEFENSES.load("dp-sgd"), REGISTRY.load(name).trains
    config = validate(cls.Config, {**SETTINGS, **changes})
    own = configured(name, params or {})
    return {of: cls(config, getattr(own, field)) for of, field in trains.items() if only in (None, of)}


def defended(folder, name, params=None, **kwargs) -> Ran:
    return run(folder, name, params or {}, training=training(name, params), **kwargs)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[..., Ran]:
    """Defended runs that several tests only read, each made once."""
    found: dict[str, Ran] = {}

    def run_of(name: str, params: Mapping[str, Any] | None = None) -> Ran:
        key = case_id((name, dict(params or {})))
        if key not in found:
            found[key] = defended(tmp_path_factory.mktemp("made"), name, params)
        return found[key]

    return run_of


def releases(ran: Ran) -> list[Message]:
    return [m for m in ran.messages if m.kind == "release"]


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
        assert stated["of"] in REGISTRY.load(case[0]).trains
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


def declares_release(ran: Ran, message: Message) -> bool:
    """Whether a message stands on releases, and neither on records nor on all that its sender held."""
    if message.inputs == ALL or DATA in message.inputs or message.kind == "release":
        return False
    return any(ran.messages[i].kind == "release" for i in message.inputs if i != DATA)


NARROW = {
    "centralized": {"model_parameters"},
    "dafkd": {"model_parameters", "generator_parameters", "discriminator_parameters"},
    "ds-fl": {"soft_labels"},
    "fedavg": {"model_update"},
    "feddf": {"model_parameters"},
    "feded": {"soft_labels"},
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
    held, bare = Held(monkeypatch), REGISTRY.load(case[0]).pools_data
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
    monkeypatch.setattr("tests.protocol_cases.SECRET", b"another secret of the auditor's own")
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


# -- limits ---------------------------------------------------------------------------------------------------------


class Same:
    """A rule without clip or noise that draws what the plain training draws."""

    def __init__(self, expected: int, draw: Any) -> None:
        cls = DEFENSES.load("dp-sgd")
        config = validate(cls.Config, {"clip": 1e9, "noise_multiplier": 1.0, "sample_rate": 1.0})
        self._rule = cls(config.model_copy(update={"noise_multiplier": 0.0}), expected)
        self._draw = draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def draw(self, records: int, noise: Any) -> torch.Tensor:
        drawn: torch.Tensor = self._draw(records)
        return drawn

    def event(self, steps: int) -> NoGuarantee:
        return NoGuarantee(reason="a test: nothing is clipped and no noise is added")


def close(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor], rtol: float = 1e-3) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=1e-5)


def test_without_noise_clip_and_sampling_dafkd_trains_classifier_and_discriminator_as_plainly(tmp_path):
    one = {"client/0": records()["client/2"]}
    n = len(one["client/0"])
    params = {"batch_size": n, "local_steps": 3, "lr": 0.3, "momentum": 0.5, "adversarial": 0.7}
    plain = run(tmp_path / "a", "dafkd", params, clients=one, rounds=1)
    guarded = {"model": Same(n, lambda records: torch.arange(records))}
    other = run(tmp_path / "b", "dafkd", params, clients=one, rounds=1, training=guarded)
    for kind in ("model_parameters", "discriminator_parameters"):
        two = [
            next(r.tensors(m) for m in r.messages if (m.kind, m.sender) == (kind, "client/0"))
            for r in (plain, other)
        ]
        close(*two)
    assert other.rounds[0].losses["client/0"] == pytest.approx(plain.rounds[0].losses["client/0"], rel=1e-4)


def test_under_dp_sgd_dafkds_generator_asks_for_all_classes_alike_and_plainly_for_its_own(tmp_path):
    """A client of one class: plainly its generator's step depends on that, under DP-SGD it does not."""
    asked = {}
    for name, rules in (("plain", None), ("guarded", training("dafkd"))):
        one = {"client/0": PartyData(records()["client/2"].x, torch.zeros(12, dtype=torch.int64))}
        ran = run(tmp_path / name, "dafkd", {"local_steps": 1}, clients=one, rounds=1, training=rules)
        client, seen = ran.protocol._clients["client/0"], []
        client._asked = lambda y, noise, seen=seen, f=client._asked: (seen.append(y), f(y, noise))[1]
        client._generator_loss(64, torch.Generator().manual_seed(0), own_classes=rules is None)
        asked[name] = set(torch.cat(seen).tolist())
    assert asked == {"plain": {0}, "guarded": {0, 1, 2}}


def test_without_noise_clip_and_secret_draws_fediods_discriminators_learn_as_plainly(tmp_path):
    """The rule draws what the run's seed draws for the plain step; seven steps, one after another."""
    one, params = {"client/0": records()["client/2"]}, {"weights": "uniform", "steps_per_round": 7}
    plain = run(tmp_path / "a", "fediod", params, clients=one, rounds=2)
    steps = iter(range(7))

    def draw(records: int) -> torch.Tensor:
        return torch.randint(records, (4,), generator=child(5, "fediod", "real", next(steps), "client/0"))

    other = run(
        tmp_path / "b", "fediod", params, clients=one, rounds=2, training={"discriminator": Same(4, draw)}
    )
    a, b = (
        {n: t for n, t in r.protocol.state.items() if n.startswith("client/0/D/w/")} for r in (plain, other)
    )
    assert a
    close(a, b)
    assert other.rounds[1].losses["client/0"] == pytest.approx(plain.rounds[1].losses["client/0"], rel=1e-3)


def test_of_fediod_one_training_may_be_defended_without_the_other(tmp_path):
    uniform = {"weights": "uniform", "shares": "uniform"}
    for only, gan, narrow in (
        ("model", 1.0, {"logits"}),
        ("model", 0.0, {"logits", "sample_gradients"}),
        ("discriminator", 1.0, set()),
    ):
        params = {**uniform, "gan": gan}
        rules = training("fediod", params, only=only)
        ran = run(tmp_path / f"{only}-{gan}", "fediod", params, training=rules)
        assert {m.defenses[0]["of"] for m in releases(ran)} == {only}
        assert {
            m.kind for m in ran.messages if role(m.sender) == "client" and declares_release(ran, m)
        } == narrow


def test_selective_fd_without_a_selector_declares_the_release(tmp_path):
    ran = defended(tmp_path / "a", "selective-fd", {"selector": "none"})
    answers = [m for m in ran.messages if m.kind == "hard_labels"]
    assert answers
    assert all(declares_release(ran, m) for m in answers)


# -- FedAvg ---------------------------------------------------------------------------------------------------------


def test_an_upload_is_what_a_reader_who_knows_the_secret_works_out_by_hand(tmp_path):
    """Poisson draw, gradients one by one, clip, sum, noise and division, from Abadi et al. 2016, Algorithm 1."""
    params = {"upload": "gradient", "weighting": "uniform"}
    ran = defended(tmp_path / "a", "fedavg", params, rounds=1)
    (made,) = [m for m in releases(ran) if m.sender == "client/2"]
    (sent,) = [m for m in ran.messages if m.sender == "client/2" and m.kind == "gradient"]
    assert (made.inputs, sent.inputs) == ((DATA, 0), (made.seq,))
    coins, data = SecretStream(SECRET, "training", "model", 1, "client/2"), records()["client/2"]
    drawn = [i for i, u in enumerate(coins.uniform(len(data))) if u < SETTINGS["sample_rate"]]
    module = network().build(torch.Generator().manual_seed(0))
    module.load_state_dict(initial())
    total = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in module.named_parameters()}
    for i in drawn:
        module.zero_grad()
        F.cross_entropy(module(data.x[i : i + 1]), data.y[i : i + 1]).backward()
        g = {n: p.grad.double() for n, p in module.named_parameters()}
        norm = float(torch.stack([t.square().sum() for t in g.values()]).sum().sqrt())
        total = {n: t + g[n] / max(1.0, norm / SETTINGS["clip"]) for n, t in total.items()}
    for n in sorted(total):
        noise = (
            torch.as_tensor(coins.normal(*total[n].shape)) * SETTINGS["noise_multiplier"] * SETTINGS["clip"]
        )
        expected = ((total[n] + noise) / SMALL["batch_size"]).float()
        torch.testing.assert_close(ran.tensors(sent)[n], expected, rtol=1e-4, atol=1e-6)
    assert ran.rounds[0].batches[sent.seq].tolist() == drawn


def test_public_numbers_of_records_weigh_as_sent_ones_do_and_are_not_sent(tmp_path):
    sent = run(tmp_path / "a", "fedavg", {"weighting": "samples"})
    public = run(tmp_path / "b", "fedavg", {"weighting": "public"})
    assert "sample_count" not in {m.kind for m in public.messages}
    assert sent.states[-1] != public.states[-1]  # the counts that were sent are kept
    for n, t in sent.protocol.released().items():
        assert torch.equal(t, public.protocol.released()[n])


def test_epochs_become_a_public_number_of_steps(tmp_path):
    ran = defended(tmp_path / "a", "fedavg", {"local_epochs": 3}, rounds=1)
    assert {m.event.count for m in releases(ran)} == {6}  # 3 epochs at q = 1/2, whatever a client's records


def test_the_basis_of_a_model_outlives_its_round(tmp_path):
    ran = defended(tmp_path / "a", "fedmd", {"warm_up_steps": 2})
    state = decode(ran.states[-1])
    last = [m.seq for m in releases(ran) if m.sender == "client/1"][-1]
    assert state["client/1/basis"].tolist() == [last]
    consensus = [m.seq for m in ran.messages if m.kind == "ensemble_labels"]
    assert ran.messages[last].inputs[0] == DATA
    assert consensus[-1] in ran.messages[last].inputs, "a revisit goes on from the digested consensus"
