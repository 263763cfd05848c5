"""Presets: what each protocol leaves to claim as published, and what its private combination costs when it is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fdaudit.protocols import REGISTRY

import fdaudit
from fdaudit.cli.explain import sections
from fdaudit.errors import SpecError
from fdaudit.federation.networks import Networks
from fdaudit.models import Architecture, architecture
from fdaudit.planning import simulated
from fdaudit.planning.simulated import execution_of
from fdaudit.spec.schema import ModelSpec, Spec, load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.run_cases import known, three_clients

SMALL: dict[str, dict[str, Any]] = {
    "centralized": {"rounds": 2, "local_steps": 2},
    "asyndgan": {"rounds": 2, "steps_per_round": 2, "samples": 4, "generator_width": 4, "discriminator_width": 4,
                 "task_steps": 2},
    "cronus": {"rounds": 2, "local_steps": 2, "warm_up_steps": 1},
    "dafkd": {"rounds": 2, "local_steps": 2, "distill_steps": 1, "pseudo_samples": 8, "generator_width": 4},
    "ds-fl": {"rounds": 2, "local_steps": 2, "warm_up_steps": 1, "distill_steps": 1},
    "fedavg": {"rounds": 2, "local_epochs": 1},
    "feddf": {"rounds": 2, "local_steps": 2, "distill_steps": 1},
    "feded": {"rounds": 2, "local_steps": 2, "distill_steps": 1},
    "fedftg": {"rounds": 2, "local_steps": 2, "iterations": 1},
    "fedgems": {"rounds": 2, "local_steps": 2, "warm_up_steps": 1, "distill_steps": 1, "server_epochs": 1},
    "fedgen": {"rounds": 2, "local_steps": 2, "generator_steps": 1},
    "fediod": {"rounds": 2, "local_steps": 3, "steps_per_round": 2, "samples": 4, "generator_width": 4,
               "discriminator_width": 4},
    "fedkd": {"local_epochs": 2, "distill_rounds": 1, "distill_steps": 2},
    "fedmd": {"rounds": 2, "local_steps": 2, "warm_up_steps": 1, "distill_steps": 1},
    "fkd": {"rounds": 2, "local_steps": 2},
    "pls": {"rounds": 2, "local_steps": 2},
    "selective-fd": {"rounds": 2, "local_steps": 1, "warm_up_steps": 2, "distill_steps": 1},
    "standalone": {"rounds": 2, "local_steps": 2},
}  # fmt: skip
PROTOCOLS = sorted(SMALL)
WITHOUT = ("asyndgan",)
"""Protocols whose messages no defence here covers."""
NEEDS = {name: ["server", "client"] for name in ("fkd", "pls")}
"""Who must be honest for a preset's ε; nobody under DP-SGD.

These two add noise to a table of a client that trains on its records without noise, towards a table that it was sent.
That table can make the training fail for records of some class, and the noise does not hide that no answer comes.
"""
QUICKSTART = ("dafkd", "fedavg", "fediod", "fedkd", "selective-fd")


def spec(protocol: str, **changes: Any) -> dict[str, Any]:
    batch = {} if protocol in WITHOUT else {"batch_size": 8}
    own = {
        "seed": 5,
        "dataset": {"name": "digits", "limit": 200},
        "model": {"name": "mlp", "params": {"widths": [8]}},
        "protocol": {"name": protocol, "params": {**SMALL[protocol], **batch}},
    }
    if protocol in ("standalone", "centralized"):
        own["adversaries"] = ["world"]
    return three_clients(**own | changes)


def test_every_protocol_is_here_or_has_no_such_preset() -> None:
    assert REGISTRY.names() == PROTOCOLS
    asked = load_spec(spec("cronus", preset={"name": "authors-code"}))
    refused(
        lambda: simulated.simulated_case(asked, known(5)), "preset.name", "authors-code", said="by cronus"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_ledger_finds_what_the_card_says(protocol: str, tmp_path: Path) -> None:
    run = fdaudit.run(spec(protocol, preset={"name": "as-published"}), tmp_path / "run")
    finds = REGISTRY.describe(protocol).privacy["finds"]
    for view in (p for p in run.case.parties if not p.startswith("client/")):
        found = run.ledger(view)
        assert found.kind == finds.get(view, "")
        assert math.isinf(found.epsilon) == (view in finds)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "protocol",
    [
        p if p in QUICKSTART else pytest.param(p, marks=pytest.mark.slow)  # five seconds each
        for p in PROTOCOLS
        if p not in ("standalone", *WITHOUT)
    ],
)
def test_the_private_combination_keeps_to_its_epsilon(protocol: str, tmp_path: Path) -> None:
    """At most the ε asked for, by the run's own ledger; less only by what the last training does not send on."""
    asked = spec(protocol, preset={"name": "private", "epsilon": 6.0})
    run = fdaudit.run(asked, tmp_path / "run")
    view = "world" if protocol == "centralized" else "server"
    found = run.ledger(view, relation="add-or-remove")
    assert found.epsilon <= 6.0
    assert found.epsilon >= 2.5
    assert [case.departs for case in found.against if not case.holds] == NEEDS.get(protocol, [])
    roles = {party.partition("/")[0] for party in run.case.parties}
    assert {case.departs for case in found.against} == roles - {"world"}
    said = {section.title: section.items for section in sections(REGISTRY.describe(protocol))}
    (private, *_) = said["What holds if a party departs from it"]
    assert private.startswith("Preset private: ")
    assert ("no ε" in private) == (protocol in NEEDS)
    again = fdaudit.run(asked, run.directory, resume=True)
    assert again.result.plain()["ledger"] == run.result.plain()["ledger"]
    kept = yaml.safe_load((run.directory / "spec.yaml").read_text(encoding="utf-8"))
    assert kept["preset"]["written_out"] is True
    assert kept["defenses"]


def test_a_preset_reads_the_records_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, load = list[str](), simulated.load_dataset
    monkeypatch.setattr(
        simulated, "load_dataset", lambda spec, stream: read.append(spec.name) or load(spec, stream)
    )
    asked = load_spec(spec("fedavg", preset={"name": "private", "epsilon": 6.0}))
    case = simulated.simulated_case(asked, known(5))
    assert case.spec.preset is not None
    assert case.spec.preset.written_out
    assert read == ["digits"]


def settings(protocol: str, params: dict[str, Any], **preset: Any) -> dict[str, Any]:
    """The protocol's settings under the private preset, on 3 clients of some 46 records each."""
    asked = spec(protocol, preset={"name": "private", "epsilon": 6.0, **preset})
    asked["protocol"]["params"] = params
    return dict(simulated.simulated_case(load_spec(asked), known(5)).settings)


@pytest.mark.parametrize("protocol", ["centralized", "dafkd", "fedavg", "fedkd", "fedmd", "selective-fd"])
def test_a_preset_sets_what_the_spec_leaves_open(protocol: str) -> None:
    tuned = REGISTRY.describe(protocol).privacy["private"]["tuned"]
    found = settings(protocol, {})
    assert {name: found[name] for name in tuned} == tuned
    own = {"batch_size": 7, "lr": 0.25}
    assert own.items() <= settings(protocol, own).items()


def test_records_are_drawn_at_rate_one_or_as_those_of_one_client() -> None:
    asked = spec("fedavg", preset={"name": "private", "epsilon": 6.0})
    asked["protocol"]["params"] = {}
    case = simulated.simulated_case(load_spec(asked), known(5))
    mean = sum(len(client.train) for client in case.splits.clients) / 3
    (defence,) = case.spec.defenses
    assert defence.params["sample_rate"] == 1.0
    assert mean <= case.settings["batch_size"] < mean + 1
    asked = spec("centralized", preset={"name": "private", "epsilon": 6.0})
    case = simulated.simulated_case(load_spec(asked), known(5))
    records = sum(len(client.train) for client in case.splits.clients)
    (defence,) = case.spec.defenses
    assert 8 / records <= defence.params["sample_rate"] < 8 / records + 0.01


@pytest.mark.parametrize(
    ("params", "length"),
    [
        ({"local_epochs": 3}, (3, None)),
        ({"upload": "gradient"}, (None, 1)),
        ({"rounds": 4}, (None, 15)),
    ],
)
def test_a_length_that_the_spec_fixes_stays(params: dict[str, Any], length: tuple[int, int]) -> None:
    found = settings("fedavg", params)
    assert (found["local_epochs"], found["local_steps"]) == length


def test_distillation_follows_a_stated_rate_and_leaves_the_batch_size() -> None:
    assert settings("fedmd", {})["distill_lr"] == 0.5
    assert settings("fedmd", {"lr": 0.25})["distill_lr"] is None
    assert settings("fedavg", {}, sample_rate=0.5)["batch_size"] == 64


@pytest.mark.thorough
def test_the_steps_that_are_announced_are_the_steps_that_are_taken(tmp_path: Path) -> None:
    run = fdaudit.run(spec("fediod", preset={"name": "private", "epsilon": 6.0}), tmp_path / "run")
    config = run.case.protocol_config
    announced = sum(
        run.case.training[of].steps(length)
        for of in ("model", "discriminator")
        for length in config.trainings(of)  # type: ignore[attr-defined]
    )
    (taken,) = run.ledger("server").contributions
    assert announced == 5
    assert taken.charges == 4, "what the discriminator learns in the last step reaches nobody"


PRIVATE = {"name": "private", "epsilon": 2.0}


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"preset": {"name": "private"}}, "preset.epsilon", "is missing"),
        ({"preset": {"name": "as-published", "epsilon": 2.0}}, "preset.epsilon", "has no meaning"),
        ({"preset": {"name": "private", "epsilon": 0}}, "preset.epsilon", "0"),
        ({"preset": PRIVATE, "withhold": ["sample_count"]}, "withhold", "beside preset"),
        ({"preset": {**PRIVATE, "epsilon": 1e-9}, "privacy": {"delta": 1e-200}}, "preset.epsilon", "be met"),
    ],
)
def test_a_preset_that_cannot_be(change: dict[str, Any], field: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        fdaudit.run(spec("fedavg", **change), tmp_path / "run")
    assert caught.value.field == field
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("protocol", WITHOUT)
def test_a_protocol_without_a_private_preset_is_refused_under_one(protocol: str, tmp_path: Path) -> None:
    asked = spec(protocol, preset={"name": "private", "epsilon": 8.0})
    refused(lambda: fdaudit.run(asked, tmp_path / "run"), "preset.name", "private", said=f"by {protocol}")


@pytest.mark.thorough
def test_a_run_of_another_preset_is_not_gone_on_with(tmp_path: Path) -> None:
    fdaudit.run(spec("fedavg", preset={"name": "private", "epsilon": 6.0}), tmp_path / "run")
    with pytest.raises(SpecError, match="preset"):
        fdaudit.run(spec("fedavg", preset={"name": "private", "epsilon": 5.0}), tmp_path / "run", resume=True)


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_the_epsilon_of_classwise_presets_holds_for_whole_clients_and_says_so(
    protocol: str, tmp_path: Path
) -> None:
    asked = small_spec(
        protocol={"name": protocol, "params": {"rounds": 2, "local_steps": 1, "batch_size": 16}},
        preset={"name": "private", "epsilon": 8.0},
    )
    made = fdaudit.run(asked, tmp_path / "run")
    record, client = (made.ledger("server", unit=unit) for unit in ("record", "client"))
    assert record.finite
    assert client.epsilon == record.epsilon <= 8.0
    assert any("a whole client" in line for line in REGISTRY.describe(protocol).trust)


@pytest.mark.parametrize("name", ["paper", "authors-code"])
def test_a_preset_states_settings_and_the_specs_own_come_first(name: str) -> None:
    stated = REGISTRY.describe("dafkd").settings[name]
    asked = load_spec(spec("dafkd", preset={"name": name}))
    case = simulated.simulated_case(asked, known(5))
    own = asked.protocol.params
    assert set(stated) & set(own)
    for setting, value in {**stated, "local_epochs": None, **own}.items():
        assert case.settings[setting] == value
    assert not case.defenses


def test_references_are_trained_without_what_was_tuned_for_noise() -> None:
    """Without noise and clipping, steps of that length leave a model that names one class."""
    changed = small_spec(
        protocol={"name": "fedavg", "params": {"rounds": 2}},
        preset={"name": "private", "epsilon": 8.0},
        references=["standalone"],
    )
    case = simulated.simulated_case(load_spec(changed), known(7))
    assert case.spec.preset is not None
    assert set(case.spec.preset.tuned) == {"lr", "local_steps", "batch_size"}
    ((_, reference),) = simulated.references_of(
        ("standalone",), 2, case.protocol, case.protocol_config, case.spec.preset
    )
    published = case.protocol.Config.model_validate({"rounds": 2}).alone()
    assert {name: getattr(reference, name) for name in published} == published
    assert case.protocol_config.model_dump()["lr"] != published["lr"]


# -- the device that a spec without one trains on ------------------------------------------------------------------


def networks(*names: str) -> Networks:
    shared, *own = (architecture(ModelSpec(name=name), (1, 28, 28), 10) for name in names)
    return Networks(shared, tuple(own))


@pytest.mark.parametrize(
    ("names", "gpu", "device"),
    [
        (("mlp",), True, "cpu"),
        (("mlp-1024-1024",), True, "cuda"),
        (("mlp", "mlp", "mlp-1024-1024"), True, "cuda"),
        (("mlp-1024-1024",), False, "cpu"),
    ],
    ids=["small", "large", "one of them is large", "no GPU"],
)
def test_a_gpu_trains_networks_that_are_large_enough(
    names: tuple[str, ...], gpu: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))
    assert execution_of(Spec(), networks(*names)).device == device


def test_a_gpu_trains_a_small_network_where_the_spec_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert execution_of(Spec(device="cuda"), networks("mlp")).device == "cuda"


def test_no_network_is_tried_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(network: Architecture) -> int:
        raise AssertionError("a pass was made")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Architecture, "work", property(refuse))
    assert execution_of(Spec(threads=1), networks("mlp")).device == "cpu"
