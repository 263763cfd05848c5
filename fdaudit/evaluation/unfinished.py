"""The cells that an attack stage has done, while it is not at its end: it can go on, and reports count them.

The list is `vault/attack-stage.json`. It is removed when the last cell is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import IntegrityError
from fdaudit.result import Unfinished
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, save_json
from fdaudit.storage.vault import Vault

__all__ = ["AttackStage", "unfinished", "waiting"]

_FILE = "attack-stage.json"


@dataclass
class AttackStage:
    """The cells of one attack stage.

    Attributes:
        path: the list on disk.
        cells: the digest of each cell's settings, by the cell's id.
        done: the ids of the cells that are done.
    """

    path: Path
    cells: Mapping[str, str]
    done: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, vault: Vault, attacks: Sequence[AttackPlan]) -> AttackStage:
        """Return a stage of attacks, each against its adversaries; one of the same cells goes on where it ended."""
        adversaries = dict.fromkeys(chain.from_iterable(attack.adversaries for attack in attacks))
        cells = {}
        for adversary in adversaries:
            for attack in attacks:
                if adversary in attack.adversaries:
                    settings = canonical(dict(attack.params or {}))
                    cells[f"{adversary}/{attack.name}"] = hashlib.sha256(settings).hexdigest()
        stage = cls(vault.directory / _FILE, cells)
        earlier = _on_disk(stage.path)
        if earlier is not None and earlier.cells == cells:
            stage.done = earlier.done
        stage._save()
        return stage

    def note(self, cell: str) -> None:
        """Add a cell that is done."""
        self.done.add(cell)
        self._save()

    def end(self) -> None:
        """Remove the list: the stage is at its end."""
        self.path.unlink(missing_ok=True)

    def _save(self) -> None:
        save_json(self.path, {"wanted": dict(self.cells), "done": sorted(self.done)}, sync=False)


def unfinished(vault: Vault) -> Unfinished | None:
    """Return how many cells of an interrupted attack stage are done; None if no stage was interrupted."""
    stage = _on_disk(vault.directory / _FILE)
    return None if stage is None else Unfinished(done=len(stage.done), of=len(stage.cells))


def waiting(vault: Vault) -> tuple[str, ...]:
    """Return the ids of the cells that an interrupted attack stage has not done."""
    stage = _on_disk(vault.directory / _FILE)
    if stage is None:
        return ()
    cells = list[str]()
    for cell in stage.cells:
        if cell not in stage.done:
            cells.append(cell)
    return tuple(cells)


def _on_disk(path: Path) -> AttackStage | None:
    """Return the stage whose list is on disk; None if there is none, or it is damaged."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        value = load_json(path)
        cells, finished = value["wanted"], value["done"]
        if not all(type(text) is str for text in (*cells, *cells.values(), *finished)):
            return None
        return AttackStage(path, cells, {*finished} & cells.keys())
    except (IntegrityError, KeyError, TypeError, AttributeError):
        return None
