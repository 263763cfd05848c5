"""Processes that stand by: what they answer, what becomes of one that dies, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.parallel.pool import Pool
from fdaudit.parallel.task_queue import Queue

WORKER = """
import json, os, signal, sys, time
for line in sys.stdin:
    piece = json.loads(line)
    for n in range(piece.get("lines", 1)):
        print(json.dumps({"pid": os.getpid(), "said": piece["say"], "n": n, "at": time.time()}), flush=True)
    if piece.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if piece.get("babble"):
        print("no JSON", flush=True)
    time.sleep(piece.get("sleep", 0))
    print(json.dumps({"done": True}), flush=True)
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    (tmp_path / "a_worker_for_tests.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    made = Pool("a_worker_for_tests", 2)
    yield made
    made.close()


def test_a_worker_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a stranger's run, with files that are named as modules are."""
    stranger, site = tmp_path / "stranger", tmp_path / "site"
    stranger.mkdir()
    site.mkdir()
    (site / "a_worker_for_tests.py").write_text(WORKER)
    for name in ("json", "os", "signal", "time", "typing", "torch", "a_worker_for_tests"):
        (stranger / f"{name}.py").write_text(f"open({str(stranger / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(stranger)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.syspath_prepend(site)
    pool = Pool("a_worker_for_tests", 1)
    assert [line["said"] for _, line in pool.work([{"say": "here"}]) if line] == ["here"]
    pool.close()
    assert not (stranger / "ran").exists()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_line_about_every_piece_arrives(pool: Pool) -> None:
    found = list(pool.work([{"say": n, "lines": n} for n in range(5)]))
    assert sorted((n, line["said"], line["n"]) for n, line in found if line) == [
        (n, n, k) for n in range(5) for k in range(n)
    ]
    assert len({line["pid"] for _, line in found if line}) <= 2


def test_processes_begin_with_different_kinds_and_end_one_before_they_begin_another(pool: Pool) -> None:
    pieces = [{"say": n, "like": like, "sleep": 0.05} for n, like in enumerate("aaabbb")]
    met: dict[int, str] = {}
    for n, line in pool.work(pieces):
        assert line is not None
        met[line["pid"]] = met.get(line["pid"], "") + "aaabbb"[n]
    assert sorted(kinds[0] for kinds in met.values()) == ["a", "b"]
    assert all("".join(sorted(kinds)) in (kinds, kinds[::-1]) for kinds in met.values())


def test_processes_serve_again_and_those_that_stood_by_first(pool: Pool) -> None:
    first = {line["pid"] for _, line in pool.work([{"say": 1, "sleep": 0.3}] * 2) if line}
    second = {line["pid"] for _, line in pool.work([{"say": 1, "sleep": 0.3}] * 2) if line}
    assert len(first) == 2
    assert first == second
    pool.stand_by()
    pool.stand_by()
    ready = {process.pid for process in pool._idle}
    assert len(ready) == 2
    assert {line["pid"] for _, line in pool.work([{"say": 1, "sleep": 0.3}] * 2) if line} == ready


def test_a_process_that_ended_while_it_stood_by_is_handed_nothing(pool: Pool) -> None:
    pool.stand_by()
    ended = pool._idle[-1]
    ended.kill()
    ended.wait()
    found = list(pool.work([{"say": n} for n in range(4)]))
    assert sorted(n for n, line in found if line) == [0, 1, 2, 3]
    assert all(line and line["pid"] != ended.pid for _, line in found)


def test_what_no_process_can_be_had_for_is_lost_and_nobody_waits(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Pool) -> None:
        raise OSError(12, "cannot allocate memory")

    monkeypatch.setattr(Pool, "_start", fails)
    told = list[Any]()
    thread = Thread(target=lambda: told.extend(pool.work([{"say": 1}] * 3)), daemon=True)
    thread.start()
    thread.join(30)
    assert sorted(told) == [(0, None), (1, None), (2, None)]


def test_of_those_who_ask_at_once_the_first_is_served_first_and_by_no_more_processes(pool: Pool) -> None:
    told: dict[str, list[Any]] = {"first": [], "second": []}

    def ask(who: str) -> None:
        told[who] = [line for _, line in pool.work([{"say": who, "sleep": 0.2}] * 5) if line]

    first, second = (Thread(target=ask, args=(who,)) for who in told)
    first.start()
    while not pool._at_work:
        time.sleep(0.01)
    second.start()
    first.join()
    second.join()
    assert [len(lines) for lines in told.values()] == [5, 5]
    assert len({line["pid"] for lines in told.values() for line in lines}) == 2
    began = sorted((line["at"], who) for who, lines in told.items() for line in lines)
    # The last of the first and the first of the second are begun at once, by two processes.
    assert [who for _, who in began][:4] == ["first"] * 4
    assert [who for _, who in began][6:] == ["second"] * 4


def test_whoever_stops_listening_leaves_the_others_their_turn(pool: Pool) -> None:
    leaves = pool.work([{"say": "leaves", "sleep": 0.2}] * 20)
    next(leaves)
    stays = list[Any]()
    thread = Thread(target=lambda: stays.extend(pool.work([{"say": "stays"}] * 3)))
    thread.start()
    leaves.close()
    thread.join(30)
    assert [line["said"] for _, line in stays] == ["stays"] * 3


@pytest.mark.parametrize("how", ["die", "babble"])
def test_what_a_lost_process_had_in_hand_is_told_and_the_rest_is_done(pool: Pool, how: str) -> None:
    found = list(pool.work([{"say": 0, how: True}, {"say": 1}, {"say": 2}, {"say": 3}]))
    assert [n for n, line in found if line is None] == [0]
    assert {line["said"] for _, line in found if line} == {0, 1, 2, 3}


def test_whoever_stops_listening_leaves_no_process_at_work(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.parallel.pool._PATIENCE", 0.2)
    answers = pool.work([{"say": n, "sleep": 60} for n in range(4)])
    _, line = next(answers)
    assert line is not None
    answers.close()
    assert not alive(line["pid"])


def test_work_that_is_not_done_in_time_is_ended(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdaudit.parallel.pool._PATIENCE", 0.2)
    pieces = [{"say": "a", "lines": 0, "sleep": 100_000}, {"say": "b", "lines": 0, "sleep": 100_000}]
    assert list(pool.work([*pieces, {"say": "never begun"}], until=time.time())) == []
    assert [
        line["said"] for _, line in pool.work([{"say": "next"}], until=time.time() + 100_000) if line
    ] == ["next"]


def test_a_process_ends_with_its_input(pool: Pool) -> None:
    ((_, line),) = pool.work([{"say": 1}])
    assert line is not None
    pool.close()
    assert not alive(line["pid"])


@pytest.mark.thorough
def test_the_attack_worker_ends_and_tidies_up_when_whoever_started_it_is_killed(tmp_path: Path) -> None:
    """As when a run is killed: no process of it stays, at work or idle."""
    import subprocess
    import sys

    script = (
        "import json, sys, time\n"
        "from fdaudit.parallel.pool import Pool\n"
        "pool = Pool('fdaudit.evaluation.attack_worker', 1)\n"
        "process = pool._start()\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        if not alive(pid):
            break
        time.sleep(0.1)
    assert not alive(pid)


# -- the order in which pieces are handed out ----------------------------------------------------------------------


KINDS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12)


@given(kinds=KINDS, data=st.data())
def test_every_piece_is_handed_out_once_and_once_more_each_time_it_is_given_back(
    kinds: list[str | None], data: st.DataObject
) -> None:
    queue, taken, given_back = Queue(kinds), list[int](), list[int]()
    while queue:
        taken.append(queue.take(data.draw(st.sampled_from([None, *taken]))))
        if data.draw(st.integers(0, 4)) == 0:
            given_back.append(data.draw(st.sampled_from(taken)))
            queue.put_back(given_back[-1])
        if len(taken) > 40:
            break
    left = [queue.take() for _ in range(len(queue))]
    assert sorted(taken + left) == sorted([*range(len(kinds)), *given_back])
    with pytest.raises(IndexError):
        queue.take()


@given(kinds=KINDS)
def test_one_alone_ends_a_kind_before_it_begins_the_next(kinds: list[str | None]) -> None:
    queue, order, last = Queue(kinds), list[int](), None
    while queue:
        last = queue.take(last)
        order.append(last)
    met = [kinds[n] for n in order if kinds[n] is not None]
    assert len([k for k, before in zip(met, [None, *met], strict=False) if k != before]) == len(set(met))
    assert order == sorted(order, key=lambda n: n if kinds[n] is None else kinds.index(kinds[n]))


def test_two_begin_with_two_kinds_and_help_each_other_where_no_kind_is_left() -> None:
    queue = Queue(["a", "a", "a", "b", "b"])
    one, other = queue.take(), queue.take()
    assert (one, other) == (0, 3)
    other = queue.take(other)
    assert other == 4
    assert queue.take(other) == 1
    assert queue.take(one) == 2


def test_what_is_like_nothing_comes_in_order_and_what_is_given_back_first() -> None:
    queue = Queue([None] * 4)
    assert [queue.take(), queue.take(0), queue.take(1), queue.take()] == [0, 1, 2, 3]
    queue = Queue(["a", "a", "b", "b"])
    lost = queue.take()
    queue.take()
    queue.put_back(lost)
    assert queue.take(lost) == lost
    queue = Queue(["a", None])
    queue.clear()
    assert not queue


# -- the loop of a worker process ----------------------------------------------------------------------------------


CODE = """
import os, sys, time
from pathlib import Path
from fdaudit.parallel.worker_loop import serve

def work(task, say):
    while True:
        say({"step": 1})

def end():
    time.sleep(0.5)
    Path(sys.argv[1]).touch()
    os._exit(0)

serve(work, end)
"""


def test_a_worker_that_speaks_while_its_parent_ends_is_still_cleaned_up(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(ended)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("{}\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    assert process.wait() == 0
    assert ended.exists()
