"""One conformance suite that every registered protocol passes, with its defaults and in other settings."""

# ruff: noqa: NPY002  # the legacy global state is what is tested here

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY

from fdaudit import defenses
from fdaudit.errors import ProtocolError
from fdaudit.federation.protocol import PartyData
from fdaudit.kinds import KINDS
from fdaudit.storage.files import decode, encode
from fdaudit.transcript.encoding import shapes_of
from fdaudit.transcript.messages import ALL, DATA, role
from fdaudit.transcript.transcript import verify_transcript
from fdaudit.transcript.wire import Outage

from ..helpers.protocol_cases import (
    CLASSES,
    SIZES,
    configured,
    every_case,
    initial,
    public,
    records,
    run,
    thorough_beyond_defaults,
)

every_protocol = pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
by_name = pytest.mark.parametrize("name", REGISTRY.names())


def noise(cls):
    """Gaussian noise on everything that anybody sends: what a resumed run draws shows in every message."""
    made = defenses.REGISTRY.load("gaussian-noise")
    defence = made(made.Config(sigma=0.01, clip=1.0))
    return {(m["kind"], m["from"]): [defence] for m in cls.card.messages if m["kind"] != "sample_count"}


# -- the declaration ----------------------------------------------------------------------------------------------


@by_name
def test_the_declaration_is_complete_and_literal(name):
    cls, card = REGISTRY.load(name), REGISTRY.describe(name)
    assert cls.card == card
    assert card.name == name
    assert REGISTRY.doc(name).strip()
    assert card.trust
    assert card.source.strip()
    roles = {*card.roles, "world"}
    for message in card.messages:
        assert set(message) - {"when", "reveals", "made_of", "index"} == {"kind", "from", "to", "what"}
        assert message["kind"] in KINDS
        assert message["from"] in card.roles
        assert {r.strip() for r in message["to"].split(",")} <= roles
        for setting in message.get("when", {}):
            assert hasattr(cls.Config(), setting)
    assert set(card.roles_when) <= set(card.roles)
    assert set(card.withholdable) <= {m["kind"] for m in card.messages}
    for oracle in card.oracles:
        assert set(oracle["available_to"]) <= {*roles, "client"}
        assert set(oracle["answers"]) <= {"soft", "hard"}
    assert set(cls.card.trains) <= {"model", "discriminator"}
    assert all(getattr(cls.Config(), size) >= 1 for size in cls.card.trains.values())
    assert cls.Config.model_config["frozen"]
    assert cls.Config().rounds >= 1


# -- the wire -----------------------------------------------------------------------------------------------------


@every_protocol
def test_only_declared_messages_cross_the_wire_and_the_record_is_sound(case, undisturbed):
    ran = undisturbed(case)
    declared = {
        (m["kind"], m["from"], to.strip())
        for m in REGISTRY.load(case[0]).card.messages
        for to in m["to"].split(",")
    }
    for message in ran.messages:
        assert message.receivers
        assert set(message.parties()) <= set(ran.parties)
        assert {(message.kind, role(message.sender), role(r)) for r in message.receivers} <= declared
    head, count = ran.positions[-1].head, ran.positions[-1].seq
    assert verify_transcript(ran.folder, head=head, count=count) == []


@every_protocol
def test_messages_hold_the_tensors_of_their_kinds(case, undisturbed):
    """Names, shapes and number types, with the number of classes and the size of images of the federation."""
    images = dict(zip("nchw", public().shape, strict=True))
    known = {"C": CLASSES, **{letter: images[letter] for letter in "chw"}}
    for message in undisturbed(case).messages:
        kind = KINDS[message.kind]
        assert kind.misfit(shapes_of(message.tensors), known) == ""
        for tensor in kind.tensors:
            if tensor.whole and tensor.name in message.tensors:
                assert message.tensors[tensor.name].dtype[0] in "IU", (message.kind, tensor.name)


@every_protocol
def test_declared_inputs_are_messages_that_the_sender_held(case, undisturbed):
    messages = undisturbed(case).messages
    for message in messages:
        if message.inputs != ALL:
            for i in message.inputs:
                assert i == DATA or message.sender in messages[i].parties(), (message.seq, i)
            assert DATA not in message.inputs or role(message.sender) == "client"


@every_protocol
def test_what_was_delivered_or_given_is_never_changed(case, undisturbed):
    ran = undisturbed(case)
    for delivery, copy in ran.delivered:
        assert delivery.keys() == copy.keys()
        assert all(torch.equal(delivery[n], copy[n]) for n in copy)
    for k, given in records().items():
        assert torch.equal(ran.clients[k].x, given.x)
        assert torch.equal(ran.clients[k].y, given.y)
    assert torch.equal(ran.setting.public, public())
    for party, start in ran.setting.initial.items():
        assert all(torch.equal(t, start[n]) for n, t in initial(party).items())


# -- rounds and state ---------------------------------------------------------------------------------------------


@every_protocol
def test_every_round_yields_models_losses_and_the_truth_behind_its_messages(case, undisturbed):
    ran = undisturbed(case)
    assert [r.index for r in ran.rounds] == list(range(configured(*case).rounds))
    messages = ran.messages
    sizes = (
        {"client/0": sum(SIZES)}
        if REGISTRY.load(case[0]).card.pools_data
        else dict(zip(records(), SIZES, strict=True))
    )
    for done in ran.rounds:
        assert done.models
        assert set(done.models) <= set(ran.parties)
        for party, model in done.models.items():
            assert {n: t.shape for n, t in model.items()} == {n: t.shape for n, t in initial(party).items()}
            assert all(torch.isfinite(t).all() for t in model.values())
        assert all(np.isfinite(v) for v in done.losses.values())
        for seq, batch in done.batches.items():
            assert messages[seq].round == done.index  # of this round, not an earlier one
            assert role(messages[seq].sender) == "client"
            assert batch.dtype == torch.int64
            assert int(batch.min()) >= 0
            assert int(batch.max()) < sizes[messages[seq].sender]


@every_protocol
def test_state_is_kept_by_party_and_survives_safetensors(case, undisturbed):
    ran = undisturbed(case)
    state = ran.protocol.state
    back = decode(encode(state))
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        assert name.startswith(tuple(f"{p}/" for p in ran.parties)), name
        assert torch.equal(back[name], tensor)
        assert back[name].dtype == tensor.dtype


@every_protocol
@pytest.mark.parametrize(
    "defended", [pytest.param(False, id="bare", marks=pytest.mark.thorough), pytest.param(True, id="noised")]
)
def test_a_run_resumed_after_any_round_ends_bit_for_bit_the_same(case, defended, undisturbed, tmp_path):
    attached = noise(REGISTRY.load(case[0])) if defended else {}
    whole = run(tmp_path / "whole", *case, defenses=attached) if defended else undisturbed(case)
    for last in range(configured(*case).rounds - 1):
        part = run(tmp_path / f"part{last}", *case, defenses=attached, stop_after=last)
        assert part.states[-1] == whole.states[last]
        shutil.copytree(part.folder, tmp_path / f"again{last}")
        rest = run(
            tmp_path / f"again{last}",
            *case,
            defenses=attached,
            resume=(last + 1, part.states[-1], part.positions[-1]),
        )
        assert rest.log == whole.log
        assert rest.states[-1] == whole.states[-1]
        assert [encode(m) for r in rest.rounds for m in r.models.values()] == [
            encode(m) for r in whole.rounds[last + 1 :] for m in r.models.values()
        ]


@every_protocol
def test_what_is_released_is_what_was_published_and_can_be_had_from_the_state(case, undisturbed, tmp_path):
    ran = undisturbed(case)
    public = [m for m in ran.messages if "world" in m.receivers]
    released = ran.protocol.released()
    assert (released is None) == (not public)
    answering = [o for o in REGISTRY.load(case[0]).card.oracles if o["name"] == "released-model"]
    # With a head alone nobody has a whole model, and the oracle nothing to answer from.
    assert bool(answering) == (released is not None or case[1].get("share") == "head")
    if released is not None:
        assert len(public) == 1
        assert public[0] == ran.messages[-1]
        rounds = configured(*case).rounds
        assert public[0].round == rounds - 1
        assert encode(released) == ran.payload(public[0])
        shutil.copytree(ran.folder, tmp_path / "again")
        restored = run(tmp_path / "again", *case, resume=(rounds, ran.states[-1], ran.positions[-1]))
        assert encode(restored.protocol.released()) == encode(released)


@by_name
def test_a_kind_can_be_withheld_where_declared_and_is_missed_where_not(name, undisturbed, tmp_path):
    cls = REGISTRY.load(name)
    sent = {m.kind for m in undisturbed((name, {})).messages}
    for kind in sent:
        if kind in cls.card.withholdable:
            ran = run(tmp_path / kind, name, withheld=(kind,))
            assert kind not in {m.kind for m in ran.messages}
            assert len(ran.rounds) == configured(name, {}).rounds
        else:
            with pytest.raises(ProtocolError, match=kind):
                run(tmp_path / kind, name, withheld=(kind,))


@every_protocol
@pytest.mark.parametrize("after", [0, 1])
def test_a_round_is_completed_without_a_client_that_goes_silent(case, after, undisturbed, tmp_path):
    """Silent in every round after its first message, or from the start: on record, and nothing else is missing."""
    whole = undisturbed(case)
    rounds = configured(*case).rounds
    gone = Outage(party="client/1", first=0, last=rounds - 1, after=after)
    ran = run(tmp_path / "a", *case, outages=[gone])
    assert [r.index for r in ran.rounds] == list(range(rounds))
    owed = [m.round for m in whole.messages if m.sender == "client/1"]
    expected = [r for r in sorted(set(owed)) if owed.count(r) > after]
    silences = [m for m in ran.messages if m.kind == "silence"]
    if not after:
        assert {m.round for m in silences} == set(expected)
    assert len({m.round for m in silences}) == len(silences)
    assert all(m.sender == "client/1" and not m.tensors and m.inputs == () for m in silences)
    for r in range(rounds):
        assert (
            sum(m.sender == "client/1" and m.kind != "silence" for m in ran.messages if m.round == r) <= after
        )
    head, count = ran.positions[-1].head, ran.positions[-1].seq
    assert verify_transcript(ran.folder, head=head, count=count) == []


@every_protocol
def test_a_round_is_completed_when_every_client_is_silent(case, tmp_path):
    rounds = configured(*case).rounds
    everybody = [Outage(party=k, first=0, last=rounds - 1) for k in records()]
    ran = run(tmp_path / "a", *case, outages=everybody)
    assert [r.index for r in ran.rounds] == list(range(rounds))
    for done in ran.rounds:
        for model in done.models.values():
            assert all(torch.isfinite(t).all() for t in model.values())


@every_protocol
def test_a_class_that_no_client_holds_does_no_harm(case, tmp_path):
    clients = {k: PartyData(d.x, d.y % (CLASSES - 1)) for k, d in records().items()}
    ran = run(tmp_path / "a", *case, clients=clients)
    assert [r.index for r in ran.rounds] == list(range(configured(*case).rounds))
    for message in ran.messages:
        for name, tensor in ran.tensors(message).items():
            assert torch.isfinite(tensor.double()).all(), (message.kind, name)
    for done in ran.rounds:
        for model in done.models.values():
            assert all(torch.isfinite(t).all() for t in model.values())


@by_name
def test_clients_may_train_unlike_networks_where_the_protocol_says_so(name, tmp_path):
    cls = REGISTRY.load(name)
    if not cls.card.heterogeneous:
        return  # what refuses it is the case; see test_bad_input
    ran = run(tmp_path / "a", name, unlike=True)
    for done in ran.rounds:
        for party, model in done.models.items():
            wanted = initial(party, unlike=True)
            assert {n: t.shape for n, t in model.items()} == {n: t.shape for n, t in wanted.items()}
    assert any(p.startswith("client/") for p in ran.rounds[-1].models)


# -- randomness ---------------------------------------------------------------------------------------------------


@every_protocol
def test_the_seed_decides_everything_and_global_randomness_is_neither_used_nor_moved(
    case, undisturbed, tmp_path
):
    whole = undisturbed(case)
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        same = run(tmp_path / "same", *case)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (np.random.get_state()[1] == before[1]).all()
        assert random.getstate() == before[2]
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])
        random.setstate(saved[2])
    assert (same.log, same.states) == (whole.log, whole.states)
    assert run(tmp_path / "other", *case, seed=6).states[-1] != whole.states[-1]
