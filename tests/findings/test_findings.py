"""Findings of a red team, one to eight: what an outsider learns from what it is handed, and what an attack can do.

Each test states its finding, and works through files and commands that a user has. The others are in
`test_findings_files.py` and `test_findings_evidence.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fdaudit
from fdaudit.testing.specs import small_spec

from ..helpers import warm
from ..helpers.public_attacker import by_curve, drawn, listed
from ..helpers.results import values_of
from ..helpers.seed_attacker import guessed_seeds, members, near_seeds, rows_of, seed_of_sets
from .findings_cases import (
    SEED,
    SPEC,
    Commanded,
    attacked,
    candidates,
    commanded,
    digits,
    guesses,
    memberships,
    of_members,
    reconstruction,
)

__all__ = ["commanded"]

Attacked = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and what its server is handed with candidates (`with`) and before (`without`)."""
    home = tmp_path_factory.mktemp("findings")
    run = fdaudit.run(SPEC, home / "run")
    fdaudit.export_view(run, "server", home / "without")
    shutil.copytree(home / "run", home / "fresh")
    fdaudit.export_view(run, "server", home / "with", challenges=True)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "home"))


@pytest.fixture(scope="module")
def by_finder(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    folder = tmp_path_factory.mktemp("finder")
    return cache(lambda mode: attacked(folder, mode))


# -- 1: the handout and its answer key ----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", ["small seeds", "the last twelve bits"])
def test_no_seed_explains_the_numbers_of_pairs(made: Path, seeds: str) -> None:
    """1. The order of a handout's candidates must not be a function of a 32-bit seed."""
    run, issued = fdaudit.load(made / "run"), candidates(made / "with")
    tried = guessed_seeds() if seeds == "small seeds" else near_seeds(SEED, 12)
    found = members(issued["pair"], [0] * len(issued["pair"]), tried)
    right = 0 if found is None else int((found == of_members(run, issued["x"])).sum())
    assert found is None, f"a sweep of {seeds} says of {right} of {len(found)} candidates who is a member"


def test_no_seed_explains_who_holds_which_record(made: Path) -> None:
    """1. The splits of a run must not follow from a guessable seed and the auxiliary records in a handout."""
    data = fdaudit.load(made / "run").case.dataset
    handed_out = load_file(made / "with" / "knowledge" / "auxiliary.safetensors")["x"]
    tried = near_seeds(SEED, 8, ("splits",))
    seed = seed_of_sets(data.y, SPEC["splits"], set(rows_of(handed_out, data.x)), tried)
    assert seed is None, f"the seed {seed} gives every split"


# -- 2: public reports --------------------------------------------------------------------------------------------


def test_a_public_report_gives_no_coin_to_the_author_of_the_scores(home: Path) -> None:
    """2. The author of an attack's scores must not read from a public report which candidates are members."""
    issued = candidates(home / "with")
    half = len(issued["y"]) // 2
    order = torch.randperm(2 * half, generator=torch.Generator().manual_seed(0)).double()
    scores = {"client/0": order, "client/1": torch.zeros(len(candidates(home / "with", "client/1")["y"]))}
    given = {k: s.tolist() for k, s in scores.items()}
    run = fdaudit.load(home / "run")
    fdaudit.score(run, guesses(home, home / "with", membership=memberships(home / "with", given)))
    page = fdaudit.report(run, home / "public.html", public=True)
    curves = [*listed(json.loads(page.with_suffix(".json").read_text("utf-8")), half)]
    curves += drawn(page.read_text("utf-8"), half)
    truth = of_members(run, issued["x"]).numpy()
    read = (m for c in curves if (m := by_curve(c, order.numpy())) is not None)
    recovered = max((int((m == truth).sum()) for m in read), default=half)
    assert recovered < 2 * half, f"the public report tells of {recovered} of {2 * half} candidates"


# -- 3: an attack's own classes -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_question_takes_no_weight_of_the_model_that_answers(by_finder: Attacked) -> None:
    """3. A question of a class of the attack's own must not run where the private model is."""
    run, cell = by_finder("steal")
    kept = json.loads(cell["reason"].partition("FoundError: ")[2] or "[]")
    private = {
        hashlib.sha256(t.numpy().tobytes()).hexdigest(): name
        for name, t in load_file(run / "vault" / "models" / "client-0.safetensors").items()
    }
    stolen = sorted({private[digest] for digest in kept if digest in private})
    assert not stolen, f"one question took {stolen} of client/0, bit by bit"
    assert cell["queries"]["spent"] == 1


def test_questions_are_counted_whatever_they_say_of_their_length(by_finder: Attacked) -> None:
    """3. A question that says it is empty must not buy answers beyond the budget."""
    _, cell = by_finder("overdraw")
    assert "bought" not in cell["reason"], cell["reason"]
    assert cell["reason"].startswith("BudgetExceededError")


@pytest.mark.thorough
def test_scores_do_not_look_at_the_truth_when_they_are_judged(by_finder: Attacked) -> None:
    """3. Scores of a class of the attack's own must not be computed where the truth is."""
    _, cell = by_finder("vandalise")
    auc = next(f["value"] for f in cell["figures"] if f["name"] == "auc")
    assert auc == 0.5, f"scores that copied the truth have an AUC of {auc}"


# -- 4: two writers -----------------------------------------------------------------------------------------------


class _Stopped(BaseException):
    """The run need not go on."""


@pytest.mark.thorough
def test_a_run_that_is_being_written_is_not_resumed_by_another_process(tmp_path: Path) -> None:
    """4. Of two processes that would write one run, the second must be refused in one line."""
    out, said = tmp_path / "run", list[subprocess.CompletedProcess[str]]()

    def second(what: str, done: int, total: int) -> None:
        if done == 3:
            said.append(warm.run(["-m", "fdaudit", "run", "--resume", "--no-report", "--out", str(out)]))
            raise _Stopped

    with pytest.raises(_Stopped):
        fdaudit.run(small_spec(protocol__params__rounds=6), out, tick=second)
    (second_writer,) = said
    assert second_writer.returncode == 2, f"the second writer ended with {second_writer.returncode}"
    assert len(second_writer.stderr.splitlines()) == 1, second_writer.stderr
    assert "another process" in second_writer.stderr


# -- 5: the record in an attack's hands ---------------------------------------------------------------------------


def test_an_attack_that_writes_to_its_view_changes_no_record(by_finder: Attacked) -> None:
    """5. What an attack is handed must not be the files of the record."""
    run, _ = by_finder("vandalise")
    findings = fdaudit.load(run).verify()
    assert findings == [], "an attack changed the record"


def test_a_report_is_not_made_from_a_changed_record(home: Path, commanded: Commanded) -> None:
    """5. No page may be made from a record that was changed."""
    (payload, *_) = sorted((home / "fresh" / "transcript" / "payloads").iterdir())
    content = bytearray(payload.read_bytes())
    content[-1] ^= 1
    payload.write_bytes(content)
    code, _, _ = commanded("report", home / "fresh")
    assert code == 3, f"a report was made from a changed record, which ended with {code}"


# -- 6: who may read ----------------------------------------------------------------------------------------------


@pytest.fixture
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_mask")
def test_other_users_reach_nothing_of_a_run(tmp_path: Path) -> None:
    """6. A run holds private records: from its first file on its directory is its owner's alone."""
    modes = set[int]()

    def look(what: str, done: int, total: int) -> None:
        if (tmp_path / "run").exists():
            modes.add((tmp_path / "run").stat().st_mode & 0o777)

    fdaudit.run(small_spec(), tmp_path / "run", tick=look)
    look("end", 1, 1)
    assert modes == {0o700}, f"the run directory had the modes {sorted(map(oct, modes))}"


# -- 7: candidates and class shares -------------------------------------------------------------------------------


def test_the_classes_of_candidates_are_no_guess_of_class_shares(home: Path, commanded: Commanded) -> None:
    """7. Class shares that were counted from handed-out candidates must not be scored."""
    handed = candidates(home / "with"), candidates(home / "with", "client/1")
    shares = [torch.bincount(c["y"], minlength=10).double() / len(c["y"]) for c in handed]
    named = [{"target": f"client/{k}", "distribution": s.tolist()} for k, s in enumerate(shares)]
    path = guesses(home, home / "with", label_distribution=named)
    code, said, errors = commanded("score", home / "run", path, "--json")
    figures = {} if code else values_of(json.loads(said))
    assert code == 2, f"a histogram of candidates was scored: {figures['label_tv_mean']:.3f} from the truth"
    assert "handed out" in errors


# -- 8: more images than records ----------------------------------------------------------------------------------


def test_a_whole_public_dataset_is_no_reconstruction(home: Path, commanded: Commanded) -> None:
    """8. A guess must not hold more images than there are records behind the message."""
    run = fdaudit.load(home / "fresh")
    path = guesses(home, home / "without", reconstruction=reconstruction(home, run, digits()))
    code, said, errors = commanded("score", home / "fresh", path, "--json")
    figures = {} if code else values_of(json.loads(said))
    assert code == 2, f"all 1,797 digits were scored as a reconstruction of {figures['psnr']:.0f} dB"
    assert "more than the" in errors


@pytest.mark.thorough
def test_as_many_public_images_as_records_gain_nothing(home: Path) -> None:
    """8. Public images as a reconstruction must be judged beside images as good as they are."""
    run = fdaudit.load(home / "fresh")
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(1))
    images = digits()[order[: len(run.case.records("client/0")[1])]]
    path = guesses(home, home / "without", reconstruction=reconstruction(home, run, images))
    gain = next(f.value for f in fdaudit.score(run, path).figures if f.name == "psnr_gain")
    assert gain < 2, f"public images gain {gain:.1f} dB"
