"""The vault: data that only the auditor holds. Metrics and oracles read it; attacks never do.

Guarantees:
  * the directory has mode 0700 and carries a `.gitignore` that excludes all of it;
  * the run's seed and secret are kept nowhere else in a run directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.errors import IntegrityError, RunError
from fdaudit.rng import SecretStream
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import (
    commitment,
    encode,
    load_json,
    load_tensors,
    save_json,
    sync_path,
    write_aside,
    write_atomically,
)
from fdaudit.storage.tree import make_folder, put_in_place

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Secrets", "Vault"]

_ROUND = "round.json"
_HANDED_OUT = "handed-out"


@dataclass(frozen=True)
class Secrets:
    """The user's seed, and the secret that determines everything unguessable. They are independent.

    Several runs may share both. Noise, training coins and salts therefore come from `for_run`. The truth comes from
    `truth`: runs that share both have the same members.
    """

    seed: int
    secret: bytes

    @classmethod
    def draw(cls, seed: int | None = None) -> Secrets:
        """Draw fresh secrets; the seed too, unless the spec gives one."""
        fresh = int.from_bytes(os.urandom(8), "big") >> 1
        return cls(fresh if seed is None else seed, os.urandom(32))

    def truth(self, *path: str | int) -> SecretStream:
        """Return the stream of one draw that decides the truth: records kept, splits, coins, canaries, orders."""
        return SecretStream(self.secret, "truth", self.seed, *path)

    @property
    def working_seed(self) -> int:
        """Return the seed (63 bits) of everything else: initial weights, batches, dropout, attacks, intervals.

        Guessing the user's seed does not give this seed. Guessing this seed reveals nothing about the truth.
        """
        return int.from_bytes(SecretStream(self.secret, "working-seed", self.seed).bytes(8), "big") >> 1

    def for_run(self, identity: str) -> bytes:
        """Return the key (32 bytes) of one run's noise, training coins and salts.

        Runs that share this secret have different keys, so one run's noise reveals nothing about another's.

        Args:
            identity: digest of everything that determines the run's results (`Case.identity`).
        """
        return SecretStream(self.secret, "run", identity).bytes(32)

    def commit(self, name: str, *parts: bytes) -> str:
        """Return a salted commitment; the salt is drawn from the secret under `name`."""
        return commitment(SecretStream(self.secret, "commitment", name).bytes(32), *parts)


class Vault:
    """The vault of one run.

    Args:
        directory: `vault/` of the run directory; `create` makes it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, secrets: Secrets) -> None:
        """Make the directory and store the secrets in it."""
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_folder(self.directory, 0o700)
        self.directory.chmod(0o700)
        for folder in ("state", "truth", "models"):
            make_folder(self.directory / folder)
        write_atomically(self.directory / ".gitignore", b"*\n")
        value = {"seed": secrets.seed, "secret": secrets.secret.hex()}
        save_json(self.directory / "secrets.json", value)

    @property
    def secrets(self) -> Secrets:
        """Return the run's seed and secret.

        Raises:
            RunError: there is no vault here (a view or a bundle has none).
        """
        path = self.directory / "secrets.json"
        if not path.is_file():
            raise RunError("vault", str(self.directory), "holds no secrets", "Give the run directory itself.")
        value = load_json(path)
        try:
            return Secrets(int(value["seed"]), bytes.fromhex(value["secret"]))
        except (TypeError, KeyError, ValueError) as error:
            raise IntegrityError([f"vault/secrets.json is malformed: {error}"]) from None

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> str:
        """Store tensors under a name such as `models/server`; return the file's SHA-256."""
        return self.save_encoded(name, encode(tensors))

    def save_encoded(self, name: str, payload: bytes, *, sync: bool = True) -> str:
        """Store encoded tensors, otherwise as `save`; without `sync` the file is not durable yet."""
        path = self.path(name)
        for folder in reversed(path.relative_to(self.directory).parents):
            make_folder(self.directory / folder)
        write_atomically(path, payload, sync=sync)
        return hashlib.sha256(payload).hexdigest()

    def path(self, name: str) -> Path:
        """Return the file of the tensors stored under a name."""
        return self.directory / f"{name}.safetensors"

    def load(self, name: str, sha256: str | None = None) -> dict[str, Tensor]:
        """Return the tensors stored under a name.

        Raises:
            IntegrityError: the file is damaged, or is not the one whose digest `save` returned.
        """
        return load_tensors(self.path(name), sha256, limit=None)

    def has(self, name: str) -> bool:
        """Return whether tensors are stored under a name."""
        return self.path(name).is_file()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(f"{folder}/{p.stem}" for p in (self.directory / folder).glob("*.safetensors"))

    def forget(self, name: str) -> None:
        """Remove what is stored under a name, if anything is."""
        self.path(name).unlink(missing_ok=True)

    def note_handed_out(self, clients: Iterable[str]) -> None:
        """Record permanently that these clients' candidates were handed out; each client has a file of its own.

        Raises:
            RunError: it cannot be recorded.
        """
        folder = self.directory / _HANDED_OUT
        try:
            make_folder(folder)
            for client in clients:
                save_json(folder / f"{client.replace('/', '-')}.json", {"client": client})
            sync_path(self.directory)
        except OSError as error:
            problem = f"cannot note whose candidates are handed out ({error.strerror})"
            raise RunError("run", str(self.directory.parent), problem, "Make its vault writable.") from None

    @property
    def handed_out(self) -> frozenset[str]:
        """Return the clients whose candidates were handed out."""
        paths = (self.directory / _HANDED_OUT).glob("client-*.json")
        return frozenset(path.stem.replace("client-", "client/") for path in paths)

    def stage_round(self, checkpoint: Mapping[str, Any]) -> Path:
        """Write a resume point next to `round.json`, for `replace_round`; it is not durable yet."""
        return write_aside(self.directory / _ROUND, canonical(dict(checkpoint)) + b"\n", sync=False)

    def replace_round(self, staged: Path) -> None:
        """Make a durable file from `stage_round` the run's resume point."""
        put_in_place(staged, self.directory / _ROUND)
        sync_path(self.directory)

    def load_round(self) -> dict[str, Any] | None:
        """Return the last checkpoint, or None before the first."""
        path = self.directory / _ROUND
        if not path.is_file():
            return None
        value = load_json(path)
        try:
            transcript = value["transcript"]
            numbers = [value["round"], value["utility"], transcript["seq"], transcript["offset"]]
            texts = [value["state_sha256"], transcript["head"]]
            is_whole = all(type(number) is int and number >= 0 for number in numbers)
            is_whole &= all(type(text) is str for text in texts)
            if not is_whole or value["state"] != f"state/round-{value['round']:06d}":
                raise ValueError("no checkpoint of a run looks like this")
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError([f"vault/round.json is malformed: {error}"]) from None
        return dict(value)
