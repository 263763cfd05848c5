"""Acceptance: the record alone, by `json` and `safetensors`, gives back every count of votes.

Nothing of fdaudit takes part in the reading. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fdaudit
from fdaudit.testing.specs import small_spec

from ..helpers.record_reader import Arrays, BrokenRecordError, Record, read, samples

# -- the reader: json and safetensors -------------------------------------------------------------------------------


def replay(record: Record, clients: int, rounds: list[int]) -> list[Arrays]:
    """Checks each round's votes against their count; returns the counts, or the labels made of them.

    Raises:
        BrokenRecordError: a ballot or a result is missing, or the counts are not those of the ballots.
    """
    found = []
    for t in rounds:
        here = [p for p in record if p[0]["round"] == t]
        ballots = [p for p in here if p[0]["kind"] == "hard_labels" and p[0]["sender"].startswith("client/")]
        results = [
            p
            for p in here
            if p[0]["sender"] in ("server", "aggregator") and p[0]["kind"] in ("vote_counts", "hard_labels")
        ]
        asked = [tensors["index"] for m, tensors in here if m["kind"] == "proxy_indices"]
        if len(ballots) != clients or len(results) != 1:
            raise BrokenRecordError(f"round {t}: {len(ballots)} ballots, {len(results)} results")
        message, result = results[0]
        index = asked[0] if asked else np.arange(len(ballots[0][1]["values"]))
        if not set(message["inputs"]) >= {m["seq"] for m, _ in ballots}:
            raise BrokenRecordError(f"round {t}: the result does not name its ballots")
        if any(not np.array_equal(samples(tensors), index) for _, tensors in ballots):
            raise BrokenRecordError(f"round {t}: a ballot says by its index what was declined")
        found.append(result)
        if message["kind"] == "vote_counts":
            compare(t, result, index, [tensors["values"] for _, tensors in ballots])
    return found


def compare(t: int, result: Arrays, index: NDArray[Any], votes: list[NDArray[Any]]) -> None:
    """Raises unless the counts of a round are those of the votes, row by row."""
    if not np.array_equal(samples(result), index):
        raise BrokenRecordError(f"round {t}: other samples")
    for row, cast in zip(result["counts"], np.stack(votes, 1), strict=True):
        if row.tolist() != [int((cast == c).sum()) for c in range(len(row))]:
            raise BrokenRecordError(f"round {t}: {row.tolist()} is not the count of {cast.tolist()}")


# -- the runs -------------------------------------------------------------------------------------------------------

CLIENTS = 4
FEDKD = {"ensemble": "votes", "local_epochs": 5, "distill_rounds": 1, "distill_steps": 2}
SELECTIVE = {
    "ensemble": "votes",
    "rounds": 3,
    "warm_up_steps": 40,
    "public_batch": 20,
    "batch_size": 8,
    "uniform": 50,
}
CASES = {
    "fedkd": (FEDKD, [1]),
    "selective-fd": (SELECTIVE, [0, 1, 2]),
    "selective-fd secure": ({**SELECTIVE, "aggregator": "secure"}, [0, 1, 2]),
}


def recorded(directory: Path, case: str, **changes: Any) -> fdaudit.Run:
    spec = small_spec(
        clients=CLIENTS,
        dataset__limit=400,
        partition={"name": "by-class", "classes_per_client": 4},  # clients disagree, and selectors decline
        splits={"test": 0.2, "proxy": 0.3, "auxiliary": 0.1, "candidates": 1},
        protocol={"name": case.split()[0], "params": CASES[case][0]},
        references=[],
        attacks=[],
        **changes,
    )
    return fdaudit.run(spec, directory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Recorded runs without noise, made once."""
    folder = tmp_path_factory.mktemp("votes")
    return {
        case: read(recorded(folder / str(number), case).directory / "transcript")
        for number, case in enumerate(CASES)
    }


@pytest.mark.parametrize("case", CASES)
def test_every_count_follows_from_the_recorded_ballots(case: str, runs: dict[str, Record]) -> None:
    counts = [found["counts"] for found in replay(runs[case], CLIENTS, CASES[case][1])]
    cast = np.concatenate([c.sum(1) for c in counts])
    assert cast.max() <= CLIENTS
    assert any((c.max(1) < c.sum(1)).any() for c in counts), (
        "nobody disagreed: a count has not been seen to act"
    )
    if case != "fedkd":
        assert cast.min() < CLIENTS, "nobody declined"


@pytest.mark.parametrize("case", CASES)
def test_taking_any_ballot_or_count_away_breaks_it(case: str, runs: dict[str, Record]) -> None:
    record = runs[case]
    kinds = ("hard_labels", "vote_counts")
    for k, (message, _) in enumerate(record):
        if message["kind"] in kinds:
            with pytest.raises(BrokenRecordError):
                replay(record[:k] + record[k + 1 :], CLIENTS, CASES[case][1])


def test_the_reader_tells_a_wrong_count_from_the_right_one(runs: dict[str, Record]) -> None:
    """Without the check that every ballot is there: the numbers alone show that a client's votes are gone."""
    for case, (_, rounds) in CASES.items():
        here = [p for p in runs[case] if p[0]["round"] == rounds[0]]
        votes = [t["values"] for m, t in here if m["sender"].startswith("client/")]
        (result,) = (t for m, t in here if m["kind"] == "vote_counts")
        compare(0, result, samples(result), votes)
        for k in range(CLIENTS):
            if (votes[k] >= 0).any():
                less = [*votes[:k], np.full(len(votes[k]), -1), *votes[k + 1 :]]
                with pytest.raises(BrokenRecordError):
                    compare(0, result, samples(result), less)


@pytest.mark.parametrize("case", ["fedkd", "selective-fd secure"])
def test_with_pate_labels_take_the_counts_place_and_the_run_s_ledger_says_what_they_cost(
    case: str, tmp_path: Path
) -> None:
    params = {"sigma": 100.0, "public_index": True}
    made = {"kind": "vote_counts", "sender": "aggregator", "name": "gnmax", "params": params}
    run = recorded(tmp_path / "run", case, defenses=[made], adversaries=["server", "aggregator"])
    results = replay(read(run.directory / "transcript"), CLIENTS, CASES[case][1])
    assert all("counts" not in found for found in results)
    queries = sum(len(found["values"]) for found in results)
    server = run.ledger("server")
    assert server.finite
    assert [(c.kind, c.sender, c.charges) for c in server.contributions] == [
        ("hard_labels", "aggregator", queries)
    ]
    assert not run.ledger("aggregator").finite
    if case == "fedkd":
        assert run.ledger("world").epsilon == server.epsilon
