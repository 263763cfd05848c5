"""Acceptance: the record alone, by `json` and `safetensors`, gives back Selective-FD's ensemble and what it dropped.

Nothing of fdaudit takes part in the reading. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ...helpers.protocol_cases import run
from ...helpers.record_reader import Arrays, BrokenRecordError, Record, read
from ...helpers.run_cases import finished

# -- the reader: json and safetensors ---------------------------------------------------------------------------


def ensemble(asked: NDArray[Any], answers: list[Arrays], classes: int, tau: float) -> dict[str, Any]:
    """The ensemble predictions of Algorithm 1 by sample: the mean of the answers, and the samples that are dropped."""
    votes: dict[int, list[NDArray[Any]]] = {int(i): [] for i in asked}
    for answer in answers:
        for i, value in zip(answer["index"], answer["values"], strict=True):
            votes[int(i)].append(value if np.ndim(value) else np.eye(classes)[int(value)])
    means = {i: np.mean(v, axis=0, dtype=np.float64) for i, v in votes.items() if v}
    one_hot = {i: np.eye(classes)[h.argmax()] for i, h in means.items()}
    ambiguous = {i for i, h in means.items() if np.abs(h - one_hot[i]).sum() > tau + 1e-6}
    return {
        "values": {i: h for i, h in means.items() if i not in ambiguous},
        "unanswered": set(votes) - set(means),
        "ambiguous": ambiguous,
    }


def replay(record: Record, settings: dict[str, Any], clients: int) -> list[dict[str, Any]]:
    """Checks every round, and returns what each should have sent back.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    rounds, everybody = [], {f"client/{k}" for k in range(clients)}
    for t in range(settings["rounds"]):
        of_round = [(m, tensors) for m, tensors in record if m["round"] == t]
        by_kind = {kind: [p for p in of_round if p[0]["kind"] == kind] for kind in KINDS}
        answers = by_kind["soft_labels"] + by_kind["hard_labels"]
        if len(by_kind["proxy_indices"]) != 1 or len(by_kind["ensemble_labels"]) != 1:
            raise BrokenRecordError(f"round {t}: a broadcast is missing")
        heard = [m["sender"] for m, _ in answers + by_kind["silence"]]
        if sorted(heard) != sorted(everybody):
            raise BrokenRecordError(f"round {t}: heard {heard}")
        asked, (_, stated) = by_kind["proxy_indices"][0][1]["index"], by_kind["ensemble_labels"][0]
        made = ensemble(asked, [tensors for _, tensors in answers], CLASSES, settings["tau_server"])
        compare(t, made, stated)
        rounds.append(made)
    if sum(m["kind"] in KINDS for m, _ in record) != len(record):
        raise BrokenRecordError("messages that Selective-FD does not have")
    return rounds


def compare(t: int, made: dict[str, Any], stated: Arrays) -> None:
    """Raises unless the ensemble of a round is what was stated, sample by sample."""
    if set(made["values"]) != set(stated["index"].tolist()) or len(stated["index"]) != len(made["values"]):
        raise BrokenRecordError(f"round {t}: other samples were kept")
    for i, values in zip(stated["index"].tolist(), stated["values"], strict=True):
        if not np.allclose(made["values"][i], values, rtol=1e-6, atol=1e-7):
            raise BrokenRecordError(f"round {t}: sample {i} has another label")


KINDS = ("proxy_indices", "soft_labels", "hard_labels", "ensemble_labels", "silence")

# -- the runs -------------------------------------------------------------------------------------------------

CLIENTS, CLASSES, ROUNDS = 5, 10, 4
SOFT = {"labels": "soft", "tau_server": 1.0, "tau_client": 0.1}
KEPT = {"labels": "soft", "tau_server": 2.0, "tau_client": 0.1}
HARD = {"labels": "hard", "tau_server": 0.8, "tau_client": 0.1}


def recorded(directory: Path, **settings: Any) -> tuple[Record, dict[str, Any]]:
    params = {
        "rounds": ROUNDS,
        "warm_up_steps": 100,
        "public_batch": 40,
        "batch_size": 8,
        "uniform": 50,
        **settings,
    }
    finished(
        directory,
        clients=CLIENTS,
        dataset__limit=600,
        partition={"name": "by-class", "classes_per_client": 4},  # two clients a class: answers disagree
        splits={"test": 0.2, "proxy": 0.2, "auxiliary": 0.1, "candidates": 1},
        protocol={"name": "selective-fd", "params": params},
        outages=[{"client": 2, "round": 1}],
        references=[],
        attacks=[],
    )
    return read(directory / "transcript"), params


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Record, dict[str, Any]]]:
    """Recorded runs, made once: soft and hard labels with samples dropped as ambiguous, and soft ones all kept."""
    named = {"soft": SOFT, "hard": HARD, "kept": KEPT}
    return {name: recorded(tmp_path_factory.mktemp("runs") / name, **s) for name, s in named.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_every_ensemble_and_every_drop_follows_from_the_recorded_answers(runs: Any, labels: str) -> None:
    record, params = runs[labels]
    rounds = replay(record, params, CLIENTS)
    assert len(rounds) == ROUNDS
    assert all(r["values"] for r in rounds)
    assert any(r["ambiguous"] for r in rounds), (
        "nothing was ambiguous: the threshold has not been seen to act"
    )
    assert any(r["unanswered"] for r in rounds), "everything was answered: no drop has been seen"
    assert [m["sender"] for m, _ in record if m["kind"] == "silence"] == ["client/2"]


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_taking_any_one_message_away_breaks_it(runs: Any, labels: str) -> None:
    record, params = runs[labels]
    for k in range(len(record)):
        with pytest.raises(BrokenRecordError):
            replay(record[:k] + record[k + 1 :], params, CLIENTS)


def test_every_answer_with_a_sample_in_it_counts(runs: Any) -> None:
    """Without the check that everybody was heard: the numbers alone show that an answer is gone."""
    record, params = runs["kept"]
    alone = 0
    for t in range(ROUNDS):
        of_round = [(m, tensors) for m, tensors in record if m["round"] == t]
        (asked,) = (tensors["index"] for m, tensors in of_round if m["kind"] == "proxy_indices")
        (stated,) = (tensors for m, tensors in of_round if m["kind"] == "ensemble_labels")
        answers = [tensors for m, tensors in of_round if m["kind"] == "soft_labels"]
        for k, answer in enumerate(answers):
            made = ensemble(asked, answers[:k] + answers[k + 1 :], CLASSES, params["tau_server"])
            if len(answer["index"]):
                alone += 1
                with pytest.raises(BrokenRecordError):
                    compare(t, made, stated)
    assert alone >= 2 * ROUNDS


@pytest.mark.parametrize("change", [{"tau_server": 0.1}, {"tau_server": 2.0}])
def test_the_reader_tells_a_wrong_threshold_from_the_right_one(runs: Any, change: dict[str, Any]) -> None:
    record, params = runs["soft"]
    with pytest.raises(BrokenRecordError):
        replay(record, {**params, **change}, CLIENTS)


def test_clients_use_the_ensemble_as_it_was_delivered(tmp_path: Path) -> None:
    """A client whose ensemble labels are altered on the way answers otherwise in the next round."""

    def altered(delivery: Any) -> Any:
        if "values" in delivery and delivery["values"].dim() == 2 and delivery.seq == 4:
            delivery["values"] = delivery["values"].flip(1)
        return delivery

    settings = {"labels": "soft", "selector": "none"}
    plain = run(tmp_path / "plain", "selective-fd", settings)
    other = run(tmp_path / "other", "selective-fd", settings, alter=altered)
    assert [m.kind for m in plain.messages[:5]] == ["proxy_indices", *["soft_labels"] * 3, "ensemble_labels"]
    for before, after in zip(plain.messages[:5], other.messages[:5], strict=True):
        assert plain.payload(before) == other.payload(after)
    changed = [m.seq for m in plain.messages if plain.payload(m) != other.payload(other.messages[m.seq])]
    assert {6, 7, 8} <= set(changed)
