"""What a node does with attack cells of a run that it does not share: the same bytes, nothing left; without Ray."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.cluster import attack_worker
from fdaudit.cluster.attack_worker import Parcel, serve_piece
from fdaudit.cluster.transfer import Arrival, pack
from fdaudit.cluster.worker import Errand, surroundings, versions
from fdaudit.evaluation.runner import Piece
from fdaudit.parallel.pool import Pool, _standing

from ..evaluation.test_attack_stage import SPEC
from ..helpers.run_cases import tree
from .ray_cases import until

pytestmark = [pytest.mark.usefixtures("forked_processes"), pytest.mark.thorough]

ADVERSARIES = ("server", "world")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    attacks = [{"name": "gap"}, {"name": "loss-threshold"}, {"name": "ideal-hard"}]
    return fdaudit.run({**SPEC, "attacks": attacks}, tmp_path_factory.mktemp("node") / "run")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this node keeps temporary files; its process ends with the test."""
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(attack_worker, "_copy", None)
    pool = Pool("fdaudit.evaluation.attack_worker", 1)
    monkeypatch.setitem(_standing, ("fdaudit.evaluation.attack_worker", 1), pool)
    yield tmp_path / "node"
    pool.close()


def bare(run: fdaudit.Run, to: Path) -> Path:
    """The run as it was before its attacks."""
    shutil.copytree(run.directory, to)
    shutil.rmtree(to / "attacks")
    shutil.rmtree(to / "vault" / "scores")
    (to / "attacks").mkdir()
    return to


def errand(run: fdaudit.Run, at: Path, name: str, mark: Path, **changes: Any) -> Errand:
    attack = next(a for a in run.plan.attacks if a.name == name)
    piece = Piece(at, attack, ADVERSARIES).to_json()
    return Errand(
        piece=piece, mark=mark, given={}, versions=versions(), surroundings=surroundings(), **changes
    )


@pytest.mark.parametrize("name", ["gap", "ideal-hard"])
def test_what_a_cell_wrote_is_sent_before_its_outcome_and_nothing_stays(
    name: str, run: fdaudit.Run, node: Path, tmp_path: Path
) -> None:
    at = bare(run, tmp_path / "run")
    parcel = Parcel(digest="1", parts=[list(pack(at))])
    wanted = errand(run, at, name, tmp_path / "unseen")
    assert list(serve_piece(wanted, None, list)) == [{"wanted": "run"}]
    arrival, cells = Arrival(tmp_path / "arrival", at, below=("attacks", "vault/scores")), []
    for line in serve_piece(wanted, parcel, list):
        if "cell" in line:
            cells.append(line["adversary"])
            arrival.merge()
            arrival = Arrival(tmp_path / "arrival", at, below=("attacks", "vault/scores"))
        elif "status" not in line:
            arrival.take(line)
    assert line == {"status": "done"}
    assert cells == list(ADVERSARIES)
    (home,) = node.iterdir()
    assert home.name.startswith("fdaudit-run-")
    mine = {n: b for n, b in tree(run.directory / "attacks").items() if n.startswith(tuple(_own(name)))}
    assert mine
    assert tree(at / "attacks") == mine
    scores = {n: b for n, b in tree(run.directory / "vault" / "scores").items() if f"-{name}/" in n}
    assert tree(at / "vault" / "scores") == scores
    _standing["fdaudit.evaluation.attack_worker", 1].close()
    until(lambda: not list(node.iterdir()), 20)


def _own(name: str) -> Iterator[str]:
    yield f"controls/{name}.json"
    yield from (f"{adversary}-{name}/" for adversary in ADVERSARIES)


@pytest.mark.thorough
def test_a_run_is_laid_down_once(run: fdaudit.Run, node: Path, tmp_path: Path) -> None:
    at, fetched = bare(run, tmp_path / "run"), []
    lines = list(pack(at))

    def fetch(part: Any) -> list[dict[str, Any]]:
        fetched.append(part)
        return lines

    for digest, homes in (("1", 1), ("1", 1), ("2", 2)):
        parcel = Parcel(digest=digest, parts=["all"])
        said = list(serve_piece(errand(run, at, "gap", tmp_path / "unseen"), parcel, fetch))
        assert said[-1] == {"status": "done"}
        assert len(fetched) == homes
        assert len(list(node.iterdir())) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("at_work", [True, False], ids=["at work", "standing by"])
def test_only_what_a_process_had_in_hand_is_lost_with_it(
    at_work: bool, run: fdaudit.Run, node: Path, tmp_path: Path
) -> None:
    at = bare(run, tmp_path / "run")
    parcel = Parcel(digest="1", parts=[list(pack(at))])
    lines = serve_piece(errand(run, at, "gap", tmp_path / "unseen"), parcel, list)
    next(lines)
    pool = _standing["fdaudit.evaluation.attack_worker", 1]
    until(lambda: pool._idle, 20)
    (process,) = pool._idle
    with ThreadPoolExecutor(1) as beside:
        if at_work:
            process.send_signal(signal.SIGSTOP)  # handed the next piece, it does nothing with it
            rest = beside.submit(list, lines)
            until(lambda: pool._at_work, 20)
            process.kill()
        else:
            process.kill()
            process.wait()
            rest = beside.submit(list, lines)
        said = rest.result()
    assert ({"lost": True} in said) == at_work
    assert sum("cell" in line for line in said) == len(ADVERSARIES) - at_work
    assert bool(list(node.iterdir())) != at_work


@pytest.mark.thorough
def test_a_node_that_shares_the_directory_works_in_it(run: fdaudit.Run, node: Path, tmp_path: Path) -> None:
    at = bare(run, tmp_path / "run")
    (tmp_path / "mark").touch()
    said = list(serve_piece(errand(run, at, "gap", tmp_path / "mark"), None, list))
    assert [line.get("adversary", line.get("status")) for line in said] == [*ADVERSARIES, "done"]
    assert (at / "attacks" / "controls" / "gap.json").is_file()
    assert not list(node.glob("fdaudit-run-*"))


@pytest.mark.thorough
def test_a_run_that_cannot_be_had_fails_the_piece_with_the_reason(
    run: fdaudit.Run, node: Path, tmp_path: Path
) -> None:
    at = bare(run, tmp_path / "run")
    (tmp_path / "mark").touch()
    os.truncate(at / "transcript" / "messages.jsonl", 100)
    (line,) = serve_piece(errand(run, at, "gap", tmp_path / "mark"), None, list)
    assert line["status"] == "failed"
    assert line["reason"].startswith("IntegrityError: ")
