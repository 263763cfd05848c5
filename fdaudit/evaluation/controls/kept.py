"""Stored outcomes of controls: each control runs once for all adversaries in the same setting.

Guarantees:
  * a stored outcome counts only if the run's secret seals it with everything that it depends on: files may be forged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.config import validate
from fdaudit.errors import IntegrityError
from fdaudit.evaluation.controls import controls, depends_on, setting_of
from fdaudit.limits import JSON_BYTES, read_file
from fdaudit.result import Control
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, save_json, write_atomically
from fdaudit.storage.locks import writing
from fdaudit.storage.tree import make_folder

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan

__all__ = ["controls_directory", "kept_controls", "take_controls"]


def controls_directory(run: Path) -> Path:
    """Return the directory of controls' outcomes; runs with the same auxiliary records and network can reuse them."""
    return run / "attacks" / "controls"


def kept_controls(
    attack: AttackPlan, run: RunDirectory, adversary: str, beside: Sequence[Path] = ()
) -> dict[str, Control]:
    """Return the controls of an attack, by name: stored by this or a related run, or run now and stored.

    Args:
        attack: the attack.
        run: the run.
        adversary: the adversary of the cell.
        beside: directories of runs with the same secret.
    """
    case = run.case
    setting = setting_of(attack, case, adversary)
    name = f"{'-'.join(filter(None, (attack.name, setting)))}.json"
    upon, secrets = depends_on(attack, case, setting), run.vault.secrets

    def seal(outcomes: object) -> str:
        return secrets.commit("controls", upon, canonical(outcomes))

    path = controls_directory(run.path) / name
    outcomes = _sealed(path, seal)
    if outcomes is None:
        for place in beside:
            if outcomes is None:
                outcomes = _sealed(controls_directory(place) / name, seal)
        if outcomes is None:
            outcomes = {n: c.plain() for n, c in controls(attack, case, setting).items()}
        for folder in (path.parent.parent, path.parent):
            make_folder(folder)
        with writing(path.parent, wait=True):  # a process with another adversary's cell writes the same file
            save_json(path, {"sealed": seal(outcomes), "controls": outcomes}, indent=1)
    return {n: validate(Control, value, n) for n, value in outcomes.items()}


def _sealed(path: Path, seal: Callable[[Any], str]) -> dict[str, Any] | None:
    """Return the outcomes in a file, if it exists and is sealed."""
    with suppress(IntegrityError):
        value = load_json(path) if path.is_file() else None
        if isinstance(value, dict) and value.get("sealed") == seal(value.get("controls")):
            outcomes: dict[str, Any] = value["controls"]
            return outcomes
    return None


def take_controls(source: Path, run: Path) -> None:
    """Copy outcomes of controls from one run to another; each is used only if all its dependencies are the same."""
    for path in sorted(controls_directory(source).glob("*.json")):
        target = controls_directory(run) / path.name
        if not target.is_file():
            run.mkdir(parents=True, exist_ok=True)
            for folder in (target.parent.parent, target.parent):
                make_folder(folder)
            write_atomically(target, read_file(path, JSON_BYTES))
