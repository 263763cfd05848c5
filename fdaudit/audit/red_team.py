"""The interface to an external red team: it receives a view, never the truth, and returns guesses to be scored.

Guarantees:
  * the hand-out is the view, the adversary's assumed knowledge, and candidates without an answer; none of its files
    is linked to the run's;
  * the vault records the victims of handed-out candidates before the hand-out appears. From then on no guess about
    their classes or images is scored: candidates show both;
  * guesses name their view and their candidates by digest. The code that scores the run's own attacks scores them.
    Nothing is written before that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.adversary.view import export_view as write_view
from fdaudit.adversary.view import members_of, view_digest
from fdaudit.audit.guesses import (
    GuessFile,
    guesses_and_digest,
    schema,
    to_guesses,
)
from fdaudit.audit.summary import conclude
from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError, nearest
from fdaudit.evaluation.stage import Stage
from fdaudit.goals import GOALS
from fdaudit.goals.model_extraction import RELEASED
from fdaudit.handout.auxiliary import others
from fdaudit.planning.case import Case
from fdaudit.result import Cell, Target, read_cell
from fdaudit.scoring.goals.membership import MembershipGuess
from fdaudit.storage.answered import note_handed_out
from fdaudit.storage.files import encode, load_json, save_json, write_atomically, written_whole
from fdaudit.storage.locks import writing
from fdaudit.storage.tree import make_folder
from fdaudit.transcript.manifest import refuse_changed
from fdaudit.types import Challenge, Figure

if TYPE_CHECKING:
    from fdaudit.audit.run import Run
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = [
    "CARD",
    "export_view",
    "keep_external",
    "refuse_other_view",
    "refuse_spoilt",
    "score",
    "submissions",
]

CARD = "card.json"
_SCHEMA = "fdaudit-handout/2"
_README = """\
# What {adversary} saw

This directory holds what one adversary saw of a federation, for an attack from outside. The truth is not in it.

- `view/`: the adversary's view. `fdaudit.adversary.view.open_view` opens it. `view/view.json` lists the digest of every
  file; each line of `view/messages.jsonl` is a message it sent or received, or the hash of another's line;
  `view/payloads/` holds the tensors (safetensors).
- `knowledge/`: what the adversary is assumed to have besides: `auxiliary.safetensors` (`x`, `y`) and, where there
  are any, `public.safetensors` (`x`, and `y` if the protocol's parties know the labels).
- `challenges/`: for membership, where it was asked for: candidates `x`, `y` of each victim and the number `pair` of the
  matched pair; one of each pair was trained on.
- `card.json`: the victims, the model, and the digests that guesses must name.
- `guesses.schema.json`: the JSON schema of what to hand back. `fdaudit score RUN GUESSES.json` scores it.
"""


def export_view(run: Run, adversary: str, out: Path | str, *, challenges: bool = False) -> Path:
    """Write an adversary's view and assumed knowledge to a directory, for an external attack.

    Args:
        run: a finished run.
        adversary: `server`, `client/3`, `eavesdropper`, `world`, or a coalition `a+b`.
        out: a directory that does not exist yet.
        challenges: whether to add membership candidates. From then on no guess about classes or images of these victims
            is scored, from any red team.

    Returns:
        The directory.

    Raises:
        UsageError: the adversary is not a party, or the directory exists or cannot be made; nothing was written.
    """
    target, case = Path(out), run.case
    members_of(adversary, case.parties)
    if target.exists() or target.is_symlink():
        raise RunError("out", str(target), "exists already", "Choose another directory.")
    refuse_changed(run.directory)
    with written_whole(target) as scratch:
        issued = _fill(scratch, Stage(run.opened), adversary, challenges)
        if issued:
            run.opened.vault.note_handed_out(issued)
            if case.imported is not None:  # a site that scores guesses about these records has no such run
                names: list[str] = []
                for client in issued:
                    names += case.imported.names_of(client)
                note_handed_out(names)
    target.chmod(0o755)  # for others to read, but only when it is complete
    return target


def score(run: Run, guesses: Path | str) -> Cell:
    """Score guesses of an external red team, and keep the outcome in the run.

    Args:
        run: the run whose exported view was attacked.
        guesses: a JSON file; `guesses.schema.json` of an exported view is its schema.

    Returns:
        The outcome, which the report shows as the attack `external-NAME`; it has no controls.

    Raises:
        UsageError: the file is malformed, names another view, other candidates or unknown messages, or is about classes
            or images of a victim whose candidates were handed out; nothing was written.
    """
    path = Path(guesses)
    with writing(run.directory):
        refuse_changed(run.directory)
        file, digest = guesses_and_digest(path)
        stage = Stage(run.opened)
        refuse_other_view(file, run.opened)
        _refuse_other_candidates(file, stage)
        refuse_spoilt(file, run.opened.vault.handed_out)
        earlier = submissions(run, file)
        read = to_guesses(file, path.parent, run.case.dataset.input_shape)
        try:
            figures, targets = stage.score(f"{file.adversary}/external-{file.name}", file.adversary, read)
        except UsageError:
            raise
        except (ValueError, FdauditError) as error:
            problem = f"cannot be scored: {error}"
            raise UsageError("guesses", str(path), problem, "Correct the file.") from None
        params = {"guesses_sha256": digest, "submission": earlier + 1}
        return keep_external(run, file, params, figures, targets)


def keep_external(
    run: Run,
    given: GuessFile,
    params: Mapping[str, Any],
    figures: tuple[Figure, ...],
    targets: tuple[Target, ...],
) -> Cell:
    """Keep the outcome of guesses from outside in the run, and return it."""
    cell = Cell(
        protocol=run.case.protocol.card.name,
        adversary=given.adversary,
        attack=f"external-{given.name}",
        goal=given.goal,
        source=given.source or "guesses from outside",
        status="run",
        assumes=given.assumes,
        params=dict(params),
        figures=figures,
        targets=targets,
    )
    path = _outcome(run, given)
    before = path.read_bytes() if path.is_file() else None
    make_folder(path.parent)
    save_json(path, cell.plain(), indent=1)
    try:
        conclude(run.opened)
    except BaseException:  # a cell that cannot be concluded would stop every later command on the run
        if before is None:
            path.unlink()
        else:
            write_atomically(path, before)
        raise
    return cell


def _outcome(run: Run, given: GuessFile) -> Path:
    return run.directory / "attacks" / f"external-{given.name}.json"


# -- what is handed out -----------------------------------------------------------------------------------------


def _fill(folder: Path, stage: Stage, adversary: str, challenges: bool) -> Mapping[str, Challenge]:
    """Write all files of the hand-out. Return its challenges."""
    case, view = stage.case, stage.run.view(adversary)
    digest = write_view(view, folder / "view")
    (folder / "knowledge").mkdir()
    auxiliary = others(case).records
    if auxiliary is not None:
        x, y = auxiliary
        write_atomically(folder / "knowledge" / "auxiliary.safetensors", encode({"x": x, "y": y}))
    if len(case.public):
        public = {"x": case.public}
        if case.public_labels is not None:
            public["y"] = case.public_labels
        write_atomically(folder / "knowledge" / "public.safetensors", encode(public))
    issued = stage.challenges(adversary) if challenges else {}
    if issued:
        (folder / "challenges").mkdir()
    for target, challenge in issued.items():
        write_atomically(folder / "challenges" / _file_of(target), _candidates(challenge))
    write_atomically(folder / "README.md", _README.format(adversary=adversary).encode("utf-8"))
    save_json(folder / "guesses.schema.json", schema(), indent=1)
    save_json(folder / CARD, _card(case, stage, adversary, issued, digest), indent=1)
    return issued


def _card(
    case: Case, stage: Stage, adversary: str, issued: Mapping[str, Challenge], digest: str
) -> dict[str, Any]:
    card = {
        "schema": _SCHEMA,
        "adversary": adversary,
        "view_sha256": digest,
        "victims": list(stage.victims(adversary)),
        "origin": case.origin,
        "protocol": case.protocol.card.name,
        "model": case.spec.model.model_dump(mode="json"),
        "input_shape": list(case.dataset.input_shape),
        "classes": case.dataset.classes,
        "task": case.dataset.task.name,
    }
    if case.dataset.words:
        card["words"] = list(case.dataset.words)
    if case.dataset.columns:
        card["columns"] = [asdict(column) for column in case.dataset.columns]
    challenges = card["challenges"] = {}
    for client, challenge in issued.items():
        challenges[client] = {
            "file": f"challenges/{_file_of(client)}",
            "sha256": hashlib.sha256(_candidates(challenge)).hexdigest(),
            "candidates": len(challenge.y),
            "design": challenge.design,
        }
    return card


def _file_of(client: str) -> str:
    return f"{client.replace('/', '-')}.safetensors"


def _candidates(challenge: Challenge) -> bytes:
    return encode({"x": challenge.x, "y": challenge.y, "pair": challenge.pair})


# -- what is handed back ----------------------------------------------------------------------------------------


def refuse_other_view(given: GuessFile, run: RunDirectory) -> None:
    """Refuse guesses whose adversary is no one in the run, or saw another view there.

    Raises:
        UsageError: it is so.
    """
    members_of(given.adversary, run.case.parties)
    if given.view != view_digest(run.view(given.adversary)):
        problem = f"is not the digest of what {given.adversary} saw in this run"
        raise UsageError(
            "guesses.view", given.view, problem, "Attack a view that `fdaudit export-view` wrote."
        )


def _refuse_other_candidates(given: GuessFile, stage: Stage) -> None:
    challenged = [entry for entry in given.entries if isinstance(entry, MembershipGuess)]
    issued = stage.challenges(given.adversary) if challenged else {}
    for number, guess in enumerate(challenged):
        field = f"guesses.membership.{number}"
        if guess.target not in issued:
            raise UsageError(
                f"{field}.target", guess.target, "was not challenged", nearest(guess.target, issued)
            )
        if guess.challenge != hashlib.sha256(_candidates(issued[guess.target])).hexdigest():
            problem = f"is not the digest of the candidates issued for {guess.target}"
            remedy = "Score the candidates that `fdaudit export-view --challenges` wrote."
            raise UsageError(f"{field}.challenge", guess.challenge, problem, remedy)


def refuse_spoilt(given: GuessFile, handed_out: Collection[str]) -> None:
    """Refuse guesses that handed-out candidates could answer.

    Candidates have roughly the client's class shares, and half of them are its images. Copies of models are refused,
    too: a copy can be trained on the candidates, half of which trained the model. The recipient and the name of the
    hand-out do not matter: candidates may have been passed on since.

    Raises:
        UsageError: a guess is about a victim whose candidates were handed out.
    """
    goal = GOALS[given.goal]
    if goal.challenged:
        return
    kind = goal.key
    for number, guess in enumerate(given.entries):
        if guess.target in handed_out or (guess.target == RELEASED and handed_out):
            problem = "had its candidates for membership handed out, which show its classes and images"
            remedy = (
                f"Score guesses of {kind} before `fdaudit export-view --challenges`, or run again under a new secret "
                "(without --seed-from) and export without --challenges."
            )
            raise UsageError(f"guesses.{kind}.{number}.target", guess.target, problem, remedy)


def submissions(run: Run, given: GuessFile, *, by_site: bool = False) -> int:
    """Return how often guesses of this name were scored before: with many attempts, some succeed by chance.

    Args:
        run: the run.
        given: the guesses.
        by_site: whether a site scored them.

    Raises:
        UsageError: the name belongs to guesses of another adversary or goal, or to guesses that were scored elsewhere.
        IntegrityError: their kept outcome is damaged.
    """
    path = _outcome(run, given)
    if not path.is_file():
        return 0
    cell = read_cell(load_json(path), path.name)
    earlier = cell.params.get("submission")
    if type(earlier) is not int or earlier < 1:
        raise IntegrityError([f"{path.name} is damaged: it counts {earlier!r} submissions"])
    remedy = "Choose another name."
    if (cell.adversary, cell.goal) != (given.adversary, given.goal):
        problem = f"is the name of guesses about {cell.goal} by {cell.adversary}"
        raise UsageError("guesses.name", given.name, problem, remedy)
    if by_site != ("scored_by" in cell.params):
        where = "here" if by_site else "at a site"
        problem = f"is the name of guesses that were scored {where}"
        raise UsageError("guesses.name", given.name, problem, remedy)
    return earlier
