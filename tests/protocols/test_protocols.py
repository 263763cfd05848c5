"""What fdaudit's own protocols keep to beyond `fdaudit.testing.check_protocol`."""

from __future__ import annotations

import pytest
import torch
from fdaudit.protocols import REGISTRY

from fdaudit.errors import ProtocolError
from fdaudit.kinds import KINDS
from fdaudit.storage.files import decode, encode
from fdaudit.transcript.wire import Outage

from ..helpers.protocol_cases import configured, every_case, run, thorough_beyond_defaults

every_protocol = pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
by_name = pytest.mark.parametrize("name", REGISTRY.names())


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


# -- rounds and state ---------------------------------------------------------------------------------------------


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
def test_only_the_last_message_publishes_a_model_and_an_oracle_answers_from_it(case, undisturbed):
    ran = undisturbed(case)
    public = [m for m in ran.messages if "world" in m.receivers]
    released = ran.protocol.released()
    assert (released is None) == (not public)
    answering = [o for o in REGISTRY.load(case[0]).card.oracles if o["name"] == "released-model"]
    # With a head alone nobody has a whole model, and the oracle nothing to answer from.
    assert bool(answering) == (released is not None or case[1].get("share") == "head")
    if released is not None:
        assert public == [ran.messages[-1]]
        assert public[0].round == configured(*case).rounds - 1
        assert encode(released) == ran.payload(public[0])


@pytest.mark.parametrize("name", ["fedftg", "fedgen"])
def test_a_round_without_uploads_or_counts_goes_on(name, tmp_path):
    silent = [Outage(party=f"client/{k}", first=0, last=0) for k in range(3)]
    ran = run(tmp_path / "a", name, {"local_steps": 1}, rounds=2, outages=silent)
    assert not any(m.kind == "class_counts" for m in ran.messages)
    assert torch.isfinite(next(iter(ran.protocol.released().values()))).all()


@by_name
def test_a_kind_that_is_not_withholdable_is_missed(name, undisturbed, tmp_path):
    sent = {m.kind for m in undisturbed((name, {})).messages}
    for kind in sent - set(REGISTRY.load(name).card.withholdable):
        with pytest.raises(ProtocolError, match=kind):
            run(tmp_path / kind, name, withheld=(kind,))


@every_protocol
def test_a_silence_is_on_record_once_in_each_round_in_which_a_message_is_due(case, undisturbed, tmp_path):
    due = {m.round for m in undisturbed(case).messages if m.sender == "client/1"}
    gone = Outage(party="client/1", first=0, last=configured(*case).rounds - 1)
    silences = [m for m in run(tmp_path / "a", *case, outages=[gone]).messages if m.kind == "silence"]
    assert [m.round for m in silences] == sorted(due)
    assert all(m.sender == "client/1" and not m.tensors and m.inputs == () for m in silences)
