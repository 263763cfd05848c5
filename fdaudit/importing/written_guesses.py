"""Write an attack's guesses to files, for a site that holds the truth and scores them.

Beside the guesses stand the record's lines and its card, and no payload: a site does not get what others sent.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.adversary.view import view_digest
from fdaudit.audit.guesses import SCHEMA
from fdaudit.errors import RunError
from fdaudit.evaluation.stage import Stage
from fdaudit.goals import GOALS, Guess, goal_of
from fdaudit.importing.records import CARD
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.case import Case
from fdaudit.recording.record import Record, write_lines_only
from fdaudit.scoring.goals import SCORERS
from fdaudit.spec.trust import name_code
from fdaudit.storage.files import encode, save_json, write_atomically, written_whole
from fdaudit.transcript.manifest import refuse_changed

if TYPE_CHECKING:
    from fdaudit.audit.run import Run

__all__ = ["GUESSES", "LINES", "write_guesses"]

GUESSES = "guesses.json"
LINES = "record"


def write_guesses(run: Run, attack: str, adversary: str, out: Path, **params: Any) -> Path:
    """Run an attack on a run's view, and write its guesses without a score.

    Args:
        run: the run, which needs no truth.
        attack: an attack on images behind messages, or on class shares.
        adversary: the adversary whose view is attacked.
        out: a directory that does not exist yet.
        **params: settings of the attack.

    Returns:
        The file of guesses. It names the view and the record by their digests.

    Raises:
        UsageError: the attack does not apply, is of another kind, or the directory exists; nothing was written.
        AttackFailedError: the attack failed; nothing was written.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another directory.")
    refuse_changed(run.directory)
    name_code(attack)
    planned = plan_attack(attack, params, run.case.spec, "attack", (adversary,))
    by_class = planned.card.control["on"] == "classes"
    if not GOALS[planned.card.goal].at_sites or by_class:
        problem = "makes no guess that a site could score by itself"
        remedy = "Choose an attack on images behind messages or on class shares. The design's key scores membership."
        raise RunError("ATTACK", attack, problem, remedy)
    stage = Stage(run.opened)
    with stage.adversary(adversary) as who:
        answers = stage.guesses(who, planned)
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "name": attack,
        "adversary": adversary,
        "view": view_digest(run.opened.view(adversary)),
        "head": run.opened.manifest["head"],
        "source": planned.card.source[:400],
        "assumes": list(planned.card.assumes),
    }
    with written_whole(out) as folder:
        save_json(folder / GUESSES, {**value, **_entries(folder, answers)}, indent=1)
        if run.case.imported is not None:
            write_lines_only(_record_of(run, run.case), folder / LINES)
            shutil.copyfile(run.directory / CARD, folder / LINES / CARD)
    return out / GUESSES


def _record_of(run: Run, case: Case) -> Record:
    """Return the record that a run was imported from; its transcript is the run's."""
    manifest = run.opened.manifest
    return Record(
        directory=run.directory,
        parties=tuple(case.parties),
        head=manifest["head"],
        messages=manifest["messages"],
        rounds=manifest["recording"]["rounds"],
        closed=manifest["recording"]["closed"],
    )


def _entries(folder: Path, guesses: Sequence[Guess]) -> dict[str, Any]:
    """Write the tensors of guesses; return the guesses as a file of guesses holds them."""
    goal = goal_of(guesses[0])
    submission = SCORERS[goal.name].submission
    if submission is None:
        raise TypeError(f"{goal.name}: guesses that can be handed in were expected")
    entries = []
    for guess in guesses:
        entry, tensors = submission.entry(guess)
        if tensors:
            name = f"{guess.target.replace('/', '-')}.safetensors"
            write_atomically(folder / name, encode(tensors))
            entry[submission.file] = name
        entries.append(entry)
    return {goal.key: entries}
