"""What an adversary may ask, what answers it, and what that costs whether or not anything was asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.evaluation.stage import Stage
from fdaudit.events import Gaussian
from fdaudit.handout.oracle_access import oracle_answers, published
from fdaudit.handout.oracle_server import Answering
from fdaudit.isolation.schema import Trial
from fdaudit.rng import SecretStream
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages
from fdaudit.types import AttackTask

from ..helpers.oracle_cases import PRIVATE, on_message, spec

X = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
STREAM = SecretStream(bytes(32), "test")


def answering(run: fdaudit.Run) -> Answering:
    return Answering(run.case, run.opened.vault)


# -- the released model --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("protocol", "sender", "defence"),
    [
        ("centralized", "client", {}),
        ("fedavg", "server", {}),
        ("ds-fl", "server", {}),
        ("centralized", "client", {"name": "rounding", "decimals": 1}),
        ("fedavg", "server", {"name": "uniform-quantization", "levels": 4, "z_max": 1.0}),
    ],
)
def test_the_released_model_answers_as_it_was_recorded(
    protocol: str, sender: str, defence: dict[str, Any], tmp_path: Path
) -> None:
    run = fdaudit.run(
        spec(protocol, defenses=[on_message("model_parameters", sender=sender, **defence)]), tmp_path / "run"
    )
    case = RunDirectory.reopen(run.directory).case
    messages = list(read_messages(run.directory / "transcript"))
    message = published(messages)
    assert message is not None
    sent = readable(decode(read_payload(run.directory / "transcript", message)))
    expected = case.trainer().predict(sent, X).softmax(1)
    assert torch.equal(answering(run).reply("soft", X, None, STREAM), expected)


def test_a_model_published_under_noise_is_worth_its_message(tmp_path: Path) -> None:
    run = fdaudit.run(spec("centralized", defenses=[on_message("model_parameters")]), tmp_path / "run")
    found = run.ledger("world")
    assert found.epsilon == pytest.approx(0.0125, abs=1e-3)
    assert [c.kind for c in found.contributions] == ["model_parameters"]


def test_who_pools_the_records_has_them(tmp_path: Path) -> None:
    run = fdaudit.run(spec("centralized", {"rounds": 1}, defenses=[PRIVATE]), tmp_path / "run")
    assert run.ledger("world").finite
    for view in ("client/0", "client/0+world"):
        found = run.ledger(view)
        assert (found.epsilon, found.victim) == (math.inf, "client/1")
        assert "pooled at client/0" in found.cause


@pytest.mark.parametrize("protected", [False, True])
def test_a_withheld_model_costs_all_that_it_was_fitted_on(protected: bool, tmp_path: Path) -> None:
    changes = {"defenses": [PRIVATE]} if protected else {}
    run = fdaudit.run(spec("centralized", withhold=["model_parameters"], **changes), tmp_path / "run")
    found = run.ledger("world")
    if not protected:
        assert (found.epsilon, found.kind) == (math.inf, "oracle_answer")
        return
    shown = fdaudit.run(spec("centralized", **changes), tmp_path / "shown")
    assert found.epsilon == pytest.approx(shown.ledger("world").epsilon)
    assert found.epsilon > 0


def test_a_model_whose_sender_fell_silent_costs_all_that_it_was_fitted_on(tmp_path: Path) -> None:
    run = fdaudit.run(spec("centralized", outages=[{"client": 0, "round": 1}]), tmp_path / "run")
    assert run.ledger("world").epsilon == math.inf
    assert answering(run).oracle(["world"], "soft") is not None


def test_a_model_kept_as_a_digest_answers_nobody(tmp_path: Path) -> None:
    run = fdaudit.run(spec("centralized", record="digest"), tmp_path / "run")
    assert answering(run).oracle(["world"], "soft") is None
    assert run.ledger("world").epsilon == math.inf


# -- clients' models ------------------------------------------------------------------------------------------------

FEDIOD = {
    "rounds": 3, "local_steps": 2, "steps_per_round": 1, "samples": 8, "outputs": "votes",
    "weights": "uniform", "shares": "uniform",
}  # fmt: skip
VOTES = [
    on_message("vote_counts", "gnmax", "aggregator", sigma=5000.0, public_index=True),
    {**PRIVATE, "of": "discriminator"},
]


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    made = spec("fediod", FEDIOD, defenses=VOTES, model={"name": "mlp", "params": {"widths": [8]}})
    return fdaudit.run(made, tmp_path_factory.mktemp("votes") / "run")


def test_a_server_asks_whom_it_hears(votes: fdaudit.Run) -> None:
    found = answering(votes)
    assert found.oracle(["server"], "hard") is None
    assert votes.ledger("server").finite
    handle = answering(votes).oracle(["server", "aggregator"], "hard")
    assert handle is not None
    assert handle.models == ("client/0", "client/1", "client/2")
    assert votes.ledger("server+aggregator").epsilon == math.inf
    assert answering(votes).oracle(["server", "eavesdropper"], "hard") is not None
    assert answering(votes).oracle(["aggregator"], "hard") is None, "the server asks, not the aggregator"
    told = {o["name"]: o["available_to"] for o in votes.result.plain()["oracles"]}
    assert told == {"chosen-samples": ["server+aggregator"], "released-model": ["world"]}


def test_private_training_of_another_model_protects_no_answer(tmp_path: Path) -> None:
    """DP-SGD of the discriminators says nothing of the classifiers that answer the server."""
    params = {**FEDIOD, "outputs": "logits"}
    noise = on_message("logits", sigma=4000.0, clip=1.0, public_index=True)
    noised = [noise, {**PRIVATE, "of": "discriminator"}]
    run = fdaudit.run(spec("fediod", params, defenses=noised, oracles=False), tmp_path / "passive")
    assert answering(run).oracle(["server"], "soft") is None
    case, messages = (
        RunDirectory.reopen(run.directory).case,
        list(read_messages(run.directory / "transcript")),
    )
    asked = case.spec.model_copy(update={"queries": 50, "oracles": True})
    object.__setattr__(case, "spec", asked)
    answers = [o.message for o in oracle_answers(case, messages) if o.message.sender == "client/0"]
    assert [m.inputs for m in answers] == ["all"]
    assert isinstance(answers[0].event, Gaussian)
    assert answers[0].event.count == 50


def test_answers_of_a_private_model_cost_what_its_training_does(tmp_path: Path) -> None:
    params = {"rounds": 2, "local_steps": 2, "batch_size": 16, "distill_steps": 1}
    run = fdaudit.run(spec("ds-fl", params, defenses=[PRIVATE]), tmp_path / "run")
    found = run.ledger("server")
    assert found.finite
    assert {c.kind for c in found.contributions} == {"release"}


def test_noise_on_each_answer_is_charged_as_often_as_may_be_asked(tmp_path: Path) -> None:
    params = {"rounds": 1, "local_steps": 2, "batch_size": 16, "distill_steps": 1}
    noise = on_message("soft_labels", sigma=4000.0, clip=1.0, public_index=True)
    costs = []
    for asked in ({"oracles": False}, {"queries": 100}, {"queries": 400}):
        run = fdaudit.run(spec("ds-fl", params, defenses=[noise], **asked), tmp_path / str(len(costs)))
        costs.append(run.ledger("server"))
    assert costs[0].epsilon < costs[1].epsilon < costs[2].epsilon < math.inf
    assert {c.kind for c in costs[1].contributions} == {"soft_labels", "oracle_answer"}
    (answers,) = [c for c in costs[2].contributions if c.kind == "oracle_answer"]
    assert answers.charges == 400
    assert any("400 samples" in line for line in costs[2].assumptions)
    assert not any("samples (`queries`)" in line for line in costs[0].assumptions)


# -- what was asked does not matter ---------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("protocol", "changes"),
    [
        ("centralized", {"withhold": ["model_parameters"], "defenses": [PRIVATE], "adversaries": ["world"]}),
        ("centralized", {"defenses": [on_message("model_parameters")], "adversaries": ["world"]}),
        ("ds-fl", {"defenses": [PRIVATE], "adversaries": ["server"]}),
    ],
)
def test_attacks_do_not_change_what_a_view_costs(
    protocol: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    params = {"rounds": 2, "local_steps": 2}
    run = fdaudit.run(spec(protocol, params, **changes), tmp_path / "run")
    adversary = changes["adversaries"][0]
    before = run.ledger(adversary)
    cell = fdaudit.attack("loss-threshold", run, adversary=adversary)
    assert cell.queries is not None
    assert cell.queries.spent > 0
    assert fdaudit.load(run.directory).ledger(adversary) == before


def test_an_attack_that_is_run_again_gets_new_noise_on_new_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two answers under one draw of noise would be free of noise."""
    noise = on_message("logits", sigma=2.0, clip=0.05, public_index=True)
    asked = spec("fedmd", {"rounds": 1, "local_steps": 1}, defenses=[noise], queries=100)
    stage, found = Stage(run_at(asked, tmp_path)), []
    for x in (torch.zeros(50, 1, 8, 8), torch.ones(50, 1, 8, 8)):
        handle = stage.run.answering.oracle(["server"], "soft")
        assert handle is not None
        task = AttackTask(targets=("client/0",), challenges={}, oracle=handle)

        def attack(asked: object, view: object, trial: object, reply: Any, x: torch.Tensor = x) -> tuple[()]:
            found.append(reply(x, "client/0").double().log())
            return ()

        monkeypatch.setattr("fdaudit.evaluation.stage.attack", attack)
        with stage.adversary("server") as adversary:
            trial = Trial(knowledge=stage.knowledge(adversary), task=task, seed=0)
            stage._ask("server/one-attack", stage.case.attacks[0], adversary.view, [trial])
    first, second = (z - z.mean(1, keepdim=True) for z in found)
    assert float((first - second).std()) > float(first.std())


def run_at(asked: dict[str, Any], folder: Path) -> RunDirectory:
    return fdaudit.run(asked, folder / "run").opened


# -- a budget -------------------------------------------------------------------------------------------------------


def budgeted(**changes: Any) -> dict[str, Any]:
    params = {"rounds": 2, "local_steps": 2, "batch_size": 16, "distill_steps": 1}
    made = {"privacy": {"budget": {"epsilon": 30.0, "adversary": "server"}}, "adversaries": ["server"]}
    return spec("ds-fl", params, **{**made, **changes})


def test_a_budget_counts_what_the_adversary_may_ask(tmp_path: Path) -> None:
    quiet = on_message("soft_labels", sigma=100.0, clip=1.0, public_index=True)
    for name, asked in {"silent": {"oracles": False}, "asking": {"queries": 100}}.items():
        run = fdaudit.run(budgeted(defenses=[quiet], **asked), tmp_path / name)
        assert run.ledger("server").epsilon <= 30.0
    with pytest.raises(SpecError, match=r"^privacy\.budget\.epsilon: .* answers"):
        fdaudit.run(budgeted(defenses=[quiet], queries=1_000_000), tmp_path / "too many")


def test_a_budget_is_refused_where_answers_have_no_guarantee(tmp_path: Path) -> None:
    withheld = spec(
        "centralized",
        withhold=["model_parameters"],
        privacy={"budget": {"epsilon": 3.0, "adversary": "world"}},
    )
    with pytest.raises(SpecError, match="model of client/0"):
        fdaudit.run(withheld, tmp_path / "withheld")
    kept = fdaudit.run({**withheld, "defenses": [PRIVATE]}, tmp_path / "kept")
    assert kept.ledger("world").epsilon <= 3.0


def test_nobody_asks_a_model_that_the_budget_kept_from_being_published(tmp_path: Path) -> None:
    made = spec(
        "centralized",
        {"rounds": 30, "local_steps": 2},
        defenses=[PRIVATE],
        privacy={"budget": {"epsilon": 1.5, "adversary": "world"}},
    )
    run = fdaudit.run(made, tmp_path / "run")
    assert run.result.plain()["run"]["rounds"] < 30
    assert run.ledger("world").epsilon == 0.0
    assert answering(run).oracle(["world"], "soft") is None
