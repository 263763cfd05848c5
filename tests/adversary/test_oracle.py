"""Oracles: a budget that holds, threads, errors on either side, and a log that can be checked."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fdaudit.adversary.oracle import Oracle, answer, serve
from fdaudit.audit.pipeline import perform
from fdaudit.errors import BudgetExceededError, FdauditError
from fdaudit.storage.files import decode
from fdaudit.transcript.manifest import read_manifest
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages, verify_transcript

from ..helpers.doubles import HOOKS, registered, spec

X = torch.arange(24.0).reshape(6, 1, 2, 2)


def first_pixel(x, of=None):
    return x[:, 0, 0, 0].clone()


def bounded(action, seconds=20):
    """Runs `action` in a thread, so that a deadlock fails the test instead of hanging it."""
    done = []

    def work():
        try:
            done.append((action(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, "deadlock"
    value, error = done[0]
    if error is not None:
        raise error
    return value


def served(oracle, attack, answering=first_pixel):
    return bounded(lambda: serve(lambda: attack(oracle), oracle, answering))


# -- asking -------------------------------------------------------------------------------------------------------


def test_an_attack_gets_the_answers_to_its_own_questions_in_order():
    oracle = Oracle("soft", 20)
    found = served(oracle, lambda o: [o.query(X[i : i + 2]).tolist() for i in range(5)])
    assert found == [first_pixel(X[i : i + 2]).tolist() for i in range(5)]
    assert (oracle.spent, oracle.remaining, oracle.budget, oracle.answers) == (10, 10, 20, "soft")


def test_the_serving_side_gets_a_copy_that_later_changes_do_not_touch():
    kept = []

    def attack(oracle):
        x = X.clone().requires_grad_()
        oracle.query(x)
        with torch.no_grad():
            x.zero_()

    served(Oracle("soft", 20), attack, lambda x, _: kept.append(x) or first_pixel(x))
    assert torch.equal(kept[0], X)
    assert not kept[0].requires_grad


def test_threads_of_one_attack_never_get_each_others_answers_nor_more_than_the_budget():
    oracle = Oracle("soft", 100)

    def one(k):
        try:
            return float(oracle.query(torch.full((1, 1, 1, 1), float(k)))) == k
        except BudgetExceededError:
            return None

    def attack(_):
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, range(150)))

    found = served(oracle, attack)
    assert found.count(True) == 100
    assert found.count(None) == 50
    assert oracle.remaining == 0


@pytest.mark.parametrize(("kind", "shape"), [("soft", (5, 10)), ("hard", (5,))])
def test_soft_answers_are_probabilities_and_hard_ones_are_classes(kind, shape):
    logits = torch.randn(5, 10, generator=torch.Generator().manual_seed(1))
    found = answer(kind, logits)
    assert found.shape == shape
    if kind == "soft":
        assert torch.allclose(found.sum(1), torch.ones(5))
        assert torch.equal(found.argmax(1), logits.argmax(1))
    else:
        assert torch.equal(found, logits.argmax(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_answers_beyond_all_numbers_are_still_probabilities(value):
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    whole = answer("soft", logits)
    logits[0, 1], logits[1] = value, value
    found = answer("soft", logits)
    assert torch.equal(found[2], whole[2])
    assert torch.allclose(found.sum(1), torch.ones(3))
    assert torch.allclose(found[1], torch.full((4,), 0.25))


# -- the budget ---------------------------------------------------------------------------------------------------


def test_a_query_beyond_the_budget_is_refused_before_anything_is_asked():
    oracle, asked = Oracle("soft", 5), []

    def attack(o):
        o.query(X[:4])
        with pytest.raises(BudgetExceededError, match="1 of 5"):
            o.query(X[:2])
        return o.query(X[:1])

    served(oracle, attack, lambda x, _: asked.append(len(x)) or first_pixel(x))
    assert asked == [4, 1]
    assert oracle.spent == 5


@pytest.mark.parametrize(
    "tamper",
    [
        lambda o: setattr(o, "_spent", -(10**9)),
        lambda o: setattr(o, "_budget", 10**9),
        lambda o: o._questions.put((X, None)),
    ],
    ids=["its count", "its budget", "its queue"],
)
def test_tampering_with_the_handle_buys_no_answer(tamper):
    oracle, asked = Oracle("soft", 6), []

    def attack(o):
        o.query(X)
        tamper(o)
        return o.query(X)

    with pytest.raises(FdauditError):
        served(oracle, attack, lambda x, _: asked.append(len(x)) or first_pixel(x))
    assert sum(asked) == 6


def test_replacing_the_handles_queues_does_not_hang_the_run():
    oracle = Oracle("soft", 6)

    def attack(o):
        o._questions = type(o._questions)()
        return "done"

    assert served(oracle, attack) == "done"


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, AttributeError, KeyboardInterrupt, SystemExit, MemoryError])
def test_what_the_attack_raises_is_raised_to_the_caller(error):
    def attack(oracle):
        oracle.query(X)
        raise error("so")

    with pytest.raises(error, match="so"):
        served(Oracle("soft", 6), attack)


def test_what_answering_raises_is_raised_to_the_caller_and_ends_the_attack():
    def broken(x, of):
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        served(Oracle("soft", 6), lambda o: o.query(X), broken)


def test_an_attack_that_catches_an_unanswered_question_and_asks_again_does_not_hang():
    heard = []

    def stubborn(oracle):
        for _ in range(3):
            try:
                oracle.query(X[:1])
            except FdauditError as error:
                heard.append(str(error))
        return "guess"

    def broken(x, of):
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        served(Oracle("soft", 6), stubborn, broken)
    assert len(heard) == 3
    assert len(set(heard)) == 1
    assert "no model" not in heard[0]


def test_no_answer_follows_one_that_failed():
    asked = []

    def once_broken(x, of):
        asked.append(len(x))
        if len(asked) == 2:
            raise RuntimeError("shape")
        return first_pixel(x)

    def attack(oracle):
        found = []
        for _ in range(4):
            try:
                found.append(oracle.query(X[:1]))
            except FdauditError:
                found.append(None)
        return found

    with pytest.raises(RuntimeError, match="shape"):
        served(Oracle("soft", 6), attack, once_broken)
    assert len(asked) == 2


# -- the log ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A run whose spy asks three times, and what it asked and heard."""
    run = tmp_path_factory.mktemp("oracle") / "run"
    heard = []

    def ask(view, knowledge, task, generator):
        if task.oracle is not None and view.hyperparameters:
            x = knowledge.auxiliary[0]
            heard.extend((x[a:b], task.oracle.query(x[a:b])) for a, b in ((0, 4), (4, 5), (5, 12)))
            task.oracle._spent = 0  # what the cell reports is counted where it is answered

    HOOKS["spy"] = ask
    try:
        with registered("spy"):
            perform(spec(adversaries=["world", "client/0+world"], attacks=[{"name": "spy"}], queries=50), run)
    finally:
        del HOOKS["spy"]
    return run, heard


def _log(run, cell):
    folder = run / "attacks" / cell
    return folder, list(read_messages(folder, "queries.jsonl"))


def test_every_question_and_answer_is_on_record(asked):
    run, heard = asked
    folder, messages = _log(run, "world-spy")
    assert [m.kind for m in messages] == ["oracle_query", "oracle_answer"] * 3
    assert {(m.sender, m.receivers) for m in messages} == {("world", ("oracle",)), ("oracle", ("world",))}
    values = [next(iter(decode(read_payload(folder, m)).values())) for m in messages]
    for (x, y), question, reply in zip(heard[:3], values[::2], values[1::2], strict=True):
        assert torch.equal(x, question)
        assert torch.equal(y, reply)


def test_the_log_names_the_whole_adversary(asked):
    _, messages = _log(asked[0], "client-0_world-spy")
    assert {m.sender for m in messages} == {"client/0+world", "oracle"}


def test_the_log_is_chained_from_the_runs_head_and_verifies(asked):
    run, _ = asked
    folder, messages = _log(run, "world-spy")
    head = str(read_manifest(run)["head"])
    assert messages[0].previous == head
    last = _digest(folder)
    assert verify_transcript(folder, head=last, count=6, start=head, log="queries.jsonl") == []
    assert verify_transcript(folder, head=last, count=6, log="queries.jsonl")  # not from nowhere
    assert verify_transcript(folder, head=last, count=5, start=head, log="queries.jsonl")


def test_an_edited_answer_is_found(asked, tmp_path):
    import shutil

    run, _ = asked
    folder = tmp_path / "copy"
    shutil.copytree(run / "attacks" / "world-spy", folder)
    head, last = str(read_manifest(run)["head"]), _digest(folder)
    (payload,) = (folder / "payloads").iterdir()
    content = bytearray(payload.read_bytes())
    answer = list(read_messages(folder, log="queries.jsonl"))[1]
    content[answer.offset + answer.payload["length"] - 1] ^= 1
    payload.write_bytes(content)
    (found,) = verify_transcript(folder, head=last, count=6, start=head, log="queries.jsonl")
    assert "message 1" in found


def test_two_cells_never_share_a_salt_with_each_other_or_the_transcript(asked):
    run, _ = asked
    salts = [m.salt for m in read_messages(run / "transcript")]
    salts += [m.salt for cell in ("world-spy", "client-0_world-spy") for m in _log(run, cell)[1]]
    assert len(set(salts)) == len(salts)


def test_the_cell_reports_what_was_answered_whatever_the_handle_says(asked):
    cell = json.loads((asked[0] / "attacks" / "world-spy.json").read_text())
    assert cell["status"] != "failed", cell["reason"]
    asked_of_it = cell["queries"]
    assert (asked_of_it["budget"], asked_of_it["spent"]) == (50, 12)
    folder = asked[0] / "attacks" / "world-spy"
    start = json.loads((asked[0] / "manifest.json").read_text())["head"]
    expected = {"head": asked_of_it["head"], "count": asked_of_it["messages"]}
    assert verify_transcript(folder, **expected, start=start, log="queries.jsonl") == []


def _digest(folder):
    import hashlib

    return hashlib.sha256((folder / "queries.jsonl").read_bytes().split(b"\n")[-2]).hexdigest()
