"""The commitment to the vault: one digest that reveals nothing of it and later verifies a revealed vault.

The digest is the SHA-256 of a salt and of the list of all files with their sizes and digests. The salt follows from
the vault's secret of 256 bits. No digest of a single file is published: it would confirm a guessed split, label or
seed.

Guarantees:
  * only the files' names and the one digest leave the vault;
  * a vault that differs in any byte of a committed file has another digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fdaudit.errors import FdauditError, RunError
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_tensors
from fdaudit.storage.vault import Secrets, Vault

from .listing import ListedFile, digest, is_temporary, walk

__all__ = ["check_truth", "check_vault", "commit_to_vault"]

_LEFT_OUT = ".gitignore"
_SPLIT = "split "


def commit_to_vault(vault: Path) -> dict[str, Any]:
    """Return the commitment to a vault: `commitment`, and `files`, the names of the covered files.

    Raises:
        RunError: there is no vault, or it holds something that is not a regular file.
    """
    secrets = Vault(vault).secrets
    names = []
    for path, kind in walk(vault):
        if kind == "folder" or path == _LEFT_OUT or is_temporary(path.rsplit("/", 1)[-1]):
            continue
        if kind != "file":
            raise RunError("vault", path, "is no regular file", "A vault holds files alone: take it away.")
        names.append(path)
    names.sort()
    return {"commitment": _digest(secrets, [digest(vault, name) for name in names]), "files": names}


def check_vault(vault: Path, stated: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    """Check a revealed vault against its commitment, and its seed and splits against the run's manifest.

    Args:
        vault: the revealed directory.
        stated: the value that `commit_to_vault` returned; names must stay inside the vault.
        manifest: the run's.

    Returns:
        One sentence for each defect; empty when there is none.
    """
    missing = list[str]()
    for name in stated["files"]:
        path = vault / name
        above = [path, *path.parents[: len(Path(name).parts) - 1]]
        if not path.is_file() or any(p.is_symlink() for p in above):
            missing.append(f"vault: {name} is missing, or no regular file")
    if missing:
        return missing
    try:
        secrets = Vault(vault).secrets
        commitment = _digest(secrets, [digest(vault, name) for name in stated["files"]])
        if commitment != stated["commitment"]:
            return ["vault: the files are not those that the statement commits to"]
    # A short secret, or a seed that is not of 64 bits.
    except (FdauditError, OverflowError, ValueError) as error:
        return [f"vault: {error}"]
    return check_truth(vault, manifest)


def check_truth(vault: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Check the seed and the splits of a revealed vault against a manifest's `commitments`; sentences as above."""
    stated = manifest["commitments"]
    try:
        secrets = Vault(vault).secrets
        commitments = {"seed": secrets.commit("seed", secrets.seed.to_bytes(8, "big"))}
        for split, tensor in load_tensors(vault / "splits.safetensors").items():
            name = f"{_SPLIT}{split}"
            commitments[name] = secrets.commit(name, tensor.numpy().tobytes())
    except (FdauditError, OverflowError, ValueError) as error:
        return [f"vault: {error}"]
    names = set(commitments)
    for name in stated:
        if name == "seed" or name.startswith(_SPLIT):
            names.add(name)
    findings = list[str]()
    for name in sorted(names):
        if stated.get(name) != commitments.get(name):
            findings.append(f"vault: its {name} is not the one that the run's manifest commits to")
    return findings


def _digest(secrets: Secrets, entries: list[ListedFile]) -> str:
    return secrets.commit("vault", canonical(list(map(asdict, entries))))
