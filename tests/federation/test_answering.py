"""Clients that answer a server which chooses the samples: whose model, in which kind of message, how defended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit.errors import FdauditError
from fdaudit.handout.oracle_server import Answering
from fdaudit.rng import SecretStream
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.vault import Vault

from ..helpers.run_cases import three_clients

SHARE = {"soft": "soft_labels", "hard": "hard_labels"}


def spec(**changes: Any) -> dict[str, Any]:
    params = {"rounds": 2, "local_steps": 2, "batch_size": 16, "distill_steps": 1}
    own = {
        "seed": 11,
        "dataset": {"name": "digits", "limit": 300},
        "model": {"name": "mlp", "params": {"widths": [8]}},
        "protocol": {"name": "ds-fl", "params": params},
        "splits": {"candidates": 6},
        "adversaries": ["server", "world", "server+client/0"],
    }
    return three_clients(**own | changes)


def answering(folder: Path, **changes: Any) -> tuple[Answering, Any, Vault]:
    run = fdaudit.run(spec(**changes), folder / "run")
    vault = Vault(run.directory / "vault")
    case = RunDirectory.reopen(run.directory).case
    return Answering(case, vault), case, vault


def with_share(share: str) -> dict[str, Any]:
    made = spec()["protocol"]
    return {**made, "params": {**made["params"], "share": SHARE[share]}}


NOISE = SecretStream(bytes(32), "test")
X = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def soft(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answering, Any, Vault]:
    return answering(tmp_path_factory.mktemp("soft"))


def test_the_server_asks_each_clients_own_last_model(soft: tuple[Answering, Any, Vault]) -> None:
    found, case, vault = soft
    handle = found.oracle(["server"], "soft")
    assert handle is not None
    assert handle.models == ("client/0", "client/1", "client/2")
    for k in handle.models:
        model = vault.load(f"models/{k.replace('/', '-')}")
        expected = case.trainer().predict(model, X).softmax(1)
        assert torch.equal(found.reply("soft", X, k, NOISE), expected)
        assert torch.equal(found.reply("hard", X, k, NOISE), expected.argmax(1))
    assert not torch.equal(
        found.reply("soft", X, "client/0", NOISE), found.reply("soft", X, "client/1", NOISE)
    )


def test_a_coalition_does_not_ask_its_own_member(soft: tuple[Answering, Any, Vault]) -> None:
    handle = soft[0].oracle(["server", "client/0"], "soft")
    assert handle is not None
    assert handle.models == ("client/1", "client/2")


def test_the_world_asks_the_released_model_and_no_client_asks_anybody(
    soft: tuple[Answering, Any, Vault],
) -> None:
    handle = soft[0].oracle(["world"], "soft")
    assert handle is not None
    assert handle.models == ()
    assert soft[0].oracle(["client/1"], "soft") is None
    assert soft[0].oracle(["server"], None) is None


def test_nobody_else_has_a_model_to_ask(soft: tuple[Answering, Any, Vault]) -> None:
    handle = soft[0].oracle(["server"], "soft")
    assert handle is not None
    for of in ("client/7", None):
        with pytest.raises(FdauditError, match=f"{of} has no model"):
            handle.query(X, of)
    assert handle.spent == 0


def test_clients_that_send_hard_labels_answer_with_hard_labels_alone(tmp_path: Path) -> None:
    found, _, _ = answering(tmp_path, protocol=with_share("hard"))
    assert found.oracle(["server"], "soft") is None
    assert found.oracle(["server"], "hard") is not None
    assert found.reply("hard", X, "client/0", NOISE).shape == (7,)


def test_a_defence_on_their_messages_stands_on_their_answers(tmp_path: Path) -> None:
    noise = {"kind": "soft_labels", "name": "gaussian-noise", "params": {"sigma": 5.0}}
    found, case, vault = answering(tmp_path, defenses=[noise])
    plain = case.trainer().predict(vault.load("models/client-0"), X).softmax(1)
    one, two = (found.reply("soft", X, "client/0", SecretStream(bytes(32), "test", n)) for n in (1, 2))
    assert float((one - plain).std()) == pytest.approx(5.0, rel=0.4)
    assert not torch.equal(one, two), "noise is drawn afresh for each question"


@pytest.mark.thorough
def test_what_a_client_answered_is_charged_to_whoever_asked(tmp_path: Path) -> None:
    private = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
    }
    attack = [{"name": "loss-threshold", "adversaries": ["server"]}]
    run = fdaudit.run(spec(attacks=attack, victims=2), tmp_path / "raw")
    (cell,) = [c for c in run.result.plain()["cells"] if c["status"] in ("run", "inconclusive")]
    assert cell["queries"]["asked"] == ["client/0", "client/1"]
    guarded = fdaudit.run(spec(attacks=attack, victims=2, defenses=[private]), tmp_path / "guarded")
    assert guarded.ledger("server").finite
    assert not run.ledger("server").finite
