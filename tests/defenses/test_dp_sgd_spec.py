"""DP-SGD as a spec asks for it: what is refused before anything is written, and a whole run, killed and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fdaudit
from fdaudit.audit import simulation
from fdaudit.errors import SpecError
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.run_cases import known

PARAMS = {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2}
DP = {"at": "training", "name": "dp-sgd", "params": PARAMS}
NOISE = {"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 1.0}}
BATCHNORM = {"name": "resnet8", "params": {"norm": "batch", "width": 8}}


class Normed(torch.nn.Sequential):
    """A network of somebody's own, with a layer that mixes records."""

    def __init__(self, classes: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, classes))


# -- refusals -------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "a kind at training",
        {"defenses": [{**DP, "kind": "gradient"}]},
        "defenses.kind",
        "gradient",
        "Remove kind",
    ),
    (
        "a server that trains",
        {"defenses": [{**DP, "sender": "server"}]},
        "defenses.sender",
        "server",
        "client",
    ),
    ("of on messages", {"defenses": [{**NOISE, "of": "model"}]}, "defenses.of", "model", "'training'"),
    ("no kind", {"defenses": [{"name": "gaussian-noise"}]}, "defenses.kind", "None", "'training'"),
    (
        "an unknown point",
        {"defenses": [{**DP, "at": "rest"}]},
        "defenses.0.at",
        "rest",
        "Valid names: message, receipt, training",
    ),
    (
        "at a message",
        {"defenses": [{"kind": "model_update", "name": "dp-sgd", "params": PARAMS}]},
        "defenses.0.name",
        "dp-sgd",
        "Set at to 'training'",
    ),
    (
        "a message's defence at training",
        {"defenses": [{"at": "training", "name": "gaussian-noise", "params": {"sigma": 1.0}}]},
        "defenses.0.name",
        "gaussian-noise",
        "Set at to 'message'",
    ),
    ("twice", {"defenses": [DP, DP]}, "defenses.1.name", "dp-sgd", "Keep one"),
    (
        "no discriminator",
        {"defenses": [NOISE, {**DP, "of": "discriminator"}]},
        "defenses.1.of",
        "discriminator",
        "They train: model",
    ),
    (
        "no clip",
        {"defenses": [{**DP, "params": {**PARAMS, "clip": 0.0}}]},
        "defenses.0.params.clip",
        "0.0",
        "0",
    ),
    (
        "a rate above 1",
        {"defenses": [{**DP, "params": {**PARAMS, "sample_rate": 1.5}}]},
        "defenses.0.params.sample_rate",
        "1.5",
        "1",
    ),
    (
        "BatchNorm",
        {"defenses": [DP], "model": BATCHNORM, "dataset__image_size": 16},
        "model.name",
        "extractor.1 is a BatchNorm2d",
        "Set model.params.norm to 'group'",
    ),
    (
        "BatchNorm of one client",
        {
            "defenses": [DP],
            "protocol": {"name": "standalone"},
            "adversaries": [],
            "client_models": [{"name": "mlp"}, BATCHNORM],
            "dataset__image_size": 16,
        },
        "client_models.1.name",
        "BatchNorm2d",
        "Set client_models.1.params.norm to 'group'",
    ),
    (
        "BatchNorm of an imported network",
        {"defenses": [DP], "model": {"name": f"import:{__name__}:Normed"}},
        "model.name",
        "BatchNorm1d",
        "Choose a network without it",
    ),
]


@pytest.mark.parametrize(
    ("changes", "field", "value", "remedy"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_is_one_line_with_field_value_and_remedy(
    changes: dict[str, Any], field: str, value: str, remedy: str, tmp_path: Path
) -> None:
    error = refused(lambda: fdaudit.run(small_spec(**changes), tmp_path / "run"), field)
    assert value in str(error)
    assert remedy in str(error)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("trusting")
def test_a_protocol_that_trains_nothing_by_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trains_nothing.py").write_text(
        "from fdaudit.federation.kit import SimpleProtocol, SimpleProtocolCard\n"
        "class Still(SimpleProtocol):\n"
        "    card = SimpleProtocolCard(name='still', messages=(), trains={})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    still = {"name": "import:trains_nothing:Still"}
    with pytest.raises(SpecError, match="clients of still"):
        simulated_case(load_spec(small_spec(protocol=still, defenses=[DP])), known(7))


def test_the_server_s_network_may_have_batchnorm_where_clients_have_none() -> None:
    spec = small_spec(
        defenses=[DP],
        protocol={"name": "fedkd", "params": {"local_steps": 1}},
        model=BATCHNORM,
        client_models=[{"name": "mlp"}] * 2,
        dataset__image_size=16,
        splits__proxy=0.2,
    )
    assert "model" in simulated_case(load_spec(spec), known(7)).training


def test_the_divisor_is_the_protocol_s_batch_size_unless_given() -> None:
    case = simulated_case(load_spec(small_spec(defenses=[DP])), known(7))
    assert case.training["model"].expected_batch == 16
    given = {**DP, "params": {**PARAMS, "expected_batch": 9}}
    assert (
        simulated_case(load_spec(small_spec(defenses=[given])), known(7)).training["model"].expected_batch
        == 9
    )


def test_fediods_two_trainings_have_batch_sizes_of_their_own() -> None:
    spec = small_spec(
        protocol={"name": "fediod", "params": {"rounds": 2, "batch_size": 7, "samples": 5}},
        defenses=[DP, {**DP, "of": "discriminator"}],
    )
    training = simulated_case(load_spec(spec), known(7)).training
    assert {of: rule.expected_batch for of, rule in training.items()} == {"model": 7, "discriminator": 5}


# -- a whole run ----------------------------------------------------------------------------------------------------


def whole(directory: Path, **changes: Any) -> Any:
    return fdaudit.run(
        small_spec(defenses=[DP], references=["standalone", "centralized"], **changes), directory
    )


def files(directory: Path) -> dict[str, bytes]:
    found = [directory / "transcript" / "messages.jsonl", directory / "utility.csv"]
    return {p.name: p.read_bytes() for p in found}


@pytest.mark.thorough
def test_a_run_is_defended_its_references_are_not_and_its_spec_is_a_spec(tmp_path: Path) -> None:
    attacked = {"attacks": [{"name": "loss-threshold"}], "adversaries": ["world", "client/0"]}
    run = whole(tmp_path / "run", seed=8, **attacked)
    log = (run.directory / "transcript" / "messages.jsonl").read_text()
    assert log.count('"kind":"release"') == 4
    assert log.count('"event":"SampledGaussian"') == 4
    plain = fdaudit.run(small_spec(seed=8, references=["standalone", "centralized"]), tmp_path / "plain")
    lines = [(r.directory / "utility.csv").read_text().splitlines() for r in (run, plain)]
    references = [[x for x in rows if not x.startswith("fedavg")] for rows in lines]
    assert references[0] == references[1]
    assert lines[0] != lines[1]
    stated = yaml.safe_load((run.directory / "spec.yaml").read_text())
    assert load_spec({**stated, "seed": 7}).defenses[0].at == "training"


def test_killed_after_a_round_and_resumed_it_ends_bit_for_bit_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):  # noqa: N818
        pass

    def die(*_: Any, **__: Any) -> None:
        real(*_, **__)
        raise Killed

    real = simulation.Checkpoints.save
    with monkeypatch.context() as patch:
        patch.setattr(simulation.Checkpoints, "save", die)
        with pytest.raises(Killed):
            whole(tmp_path / "run")
    # The vault's secret is drawn anew for each run: the uninterrupted one starts from the same vault.
    shutil.copytree(tmp_path / "run", tmp_path / "twin")
    spec = small_spec(defenses=[DP], references=["standalone", "centralized"])
    one = fdaudit.run(spec, tmp_path / "run", resume=True)
    (tmp_path / "twin" / "vault" / "round.json").unlink()
    two = fdaudit.run(spec, tmp_path / "twin", resume=True)
    assert files(one.directory) == files(two.directory)


def test_a_victim_whose_steps_drew_nobody_fails_its_cell_with_the_reason(tmp_path: Path) -> None:
    rare = {**DP, "params": {**PARAMS, "sample_rate": 1e-9}}
    run = fdaudit.run(
        small_spec(
            defenses=[rare],
            protocol__params={"rounds": 1, "upload": "gradient", "batch_size": 1},
            attacks=[{"name": "analytic"}],
        ),
        tmp_path / "run",
    )
    (cell,) = [c for c in run.result.plain()["cells"] if c["status"] != "not-requested"]
    assert cell["status"] == "failed"
    assert "drew nobody" in str(cell)
