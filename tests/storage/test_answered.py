"""The ledger of a site's answers: counts by record that no renaming, copying or killing lowers."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
import torch

from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.storage import answered as module
from fdaudit.storage.answered import LEDGER, Answered, answered_at, note_handed_out, record_names

GOAL, OTHER, GUESSES = "reconstruction", "label-distribution", "0" * 64
NAMES = record_names(torch.arange(12.0).view(3, 1, 2, 2), torch.tensor([0, 1, 1]))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fdaudit" / "answered"


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    (tmp_path / "truth").mkdir()
    return tmp_path / "truth"


def charge(truth: Path, *records: str, goal: str = GOAL) -> None:
    with answered_at(truth, NAMES) as answered:
        answered.charge(goal, records, GUESSES)


def asked(truth: Path, *records: str, goal: str = GOAL) -> int:
    with answered_at(truth, NAMES) as answered:
        return answered.asked(goal, records)


def test_counts_are_by_record_and_goal_whoever_names_it(truth: Path) -> None:
    charge(truth, NAMES[0], NAMES[1])
    charge(truth, NAMES[1], NAMES[2])
    assert [asked(truth, name) for name in NAMES] == [1, 2, 1]
    assert asked(truth, *NAMES) == 2
    assert asked(truth, *NAMES, goal=OTHER) == 0
    requests = json.loads((truth / LEDGER).read_bytes())["requests"]
    assert requests == [{"goal": GOAL, "guesses": GUESSES}] * 2
    x, y = torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    names, order = record_names(x, y), torch.tensor([2, 0, 3, 1])
    assert record_names(x[order], y[order]) == tuple(names[i] for i in order)
    assert len(set(record_names(None, torch.tensor([1, 1, 1])))) == 3
    assert record_names(x.double().float(), y) == names


def test_a_removed_ledger_lowers_no_count_and_is_noticed(truth: Path) -> None:
    charge(truth, *NAMES)
    (truth / LEDGER).unlink()
    with answered_at(truth, NAMES) as answered:
        assert (answered.asked(GOAL, NAMES), answered.elsewhere(GOAL, NAMES)) == (1, 1)
        answered.charge(GOAL, NAMES, GUESSES)
        assert (answered.asked(GOAL, NAMES), answered.elsewhere(GOAL, NAMES)) == (2, 0)


def test_a_copy_with_an_old_ledger_lowers_no_count(truth: Path, tmp_path: Path) -> None:
    charge(truth, *NAMES)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / LEDGER).write_bytes((truth / LEDGER).read_bytes())
    charge(truth, *NAMES)
    assert asked(copy, *NAMES) == 2
    charge(copy, *NAMES)
    assert asked(truth, *NAMES) == 3


def test_the_ledger_moves_with_the_truth_to_another_user(
    truth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(truth, *NAMES)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert asked(truth, *NAMES) == 1
    with answered_at(truth, NAMES) as answered:
        assert answered.elsewhere(GOAL, NAMES) == 0


def test_a_kill_between_the_two_files_is_charged(truth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[Path]()
    real = module.write_atomically

    def once(path: Path, data: bytes, **settings: int) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        real(path, data, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", once)
        with pytest.raises(KeyboardInterrupt):
            charge(truth, *NAMES)
    assert asked(truth, *NAMES) == 1


def test_nothing_is_answered_without_a_ledger(truth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)
    with pytest.raises(RunError, match=r"^ledger: .*answered\.json' "):
        charge(truth, *NAMES)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"schema":"fdaudit-answered/2"}',
        b'{"schema":"fdaudit-answered/1","truth":null,"counts":{},"handed_out":[],"requests":[]}',
    ],
)
def test_a_damaged_or_foreign_ledger_stops_every_answer(content: bytes, truth: Path) -> None:
    (truth / LEDGER).write_bytes(content)
    with pytest.raises(IntegrityError, match=LEDGER):
        charge(truth, *NAMES)


@pytest.mark.parametrize("count", [0, -1, 1.5, "1", True])
def test_a_count_is_a_whole_number(count: object, truth: Path) -> None:
    charge(truth, *NAMES)
    value = json.loads((truth / LEDGER).read_bytes())
    value["counts"][GOAL][NAMES[0]] = count
    (truth / LEDGER).write_text(json.dumps(value))
    with pytest.raises(IntegrityError, match="damaged"):
        asked(truth, *NAMES)


def test_a_link_is_no_ledger(truth: Path, tmp_path: Path) -> None:
    charge(truth, *NAMES)
    (truth / LEDGER).rename(tmp_path / "elsewhere")
    (truth / LEDGER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError):
        asked(truth, *NAMES)
    (truth / LEDGER).unlink()
    (truth / LEDGER).symlink_to(tmp_path / "nowhere")
    with pytest.raises(IntegrityError):
        asked(truth, *NAMES)


def test_the_ledgers_are_for_their_user_alone(truth: Path, state: Path) -> None:
    charge(truth, *NAMES)
    for path in (truth / LEDGER, state / LEDGER):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    state.chmod(0o755)
    with pytest.raises(UsageError, match=r"^XDG_STATE_HOME: .* 0755"):
        charge(truth, *NAMES)
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700  # or no attack could keep its key there


def test_askers_at_once_are_counted_one_after_the_other(truth: Path) -> None:
    inside, most = list[int](), list[int]()

    def ask() -> None:
        with answered_at(truth, NAMES) as answered:
            inside.append(1)
            most.append(len(inside))
            answered.charge(GOAL, NAMES, GUESSES)
            inside.pop()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), asked(truth, *NAMES)) == (1, 8)


def test_handed_out_records_are_known_to_every_truth_of_the_user(truth: Path) -> None:
    note_handed_out(NAMES[:1])

    def out(answered: Answered, record: str) -> bool:
        return answered.handed_out((record,))

    with answered_at(truth, NAMES) as answered:
        assert [out(answered, name) for name in NAMES] == [True, False, False]
        answered.charge(GOAL, NAMES, GUESSES)
    assert json.loads((truth / LEDGER).read_bytes())["handed_out"] == [NAMES[0]]
