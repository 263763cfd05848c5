"""What the tests of evidence share: keys, a statement taken apart and put together again without fdaudit's own code."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import fdaudit
from fdaudit.api import load
from fdaudit.attestation.check import Outcome, verify_bundle
from fdaudit.attestation.keys import public_key

from .run_cases import finished

TYPE = "application/vnd.in-toto+json"
STATEMENT = "statement.dsse.json"


def keypair(folder: Path, name: str = "key", passphrase: bytes | None = None) -> tuple[Path, Path]:
    """A fresh Ed25519 key as two PEM files, private and public."""
    key = Ed25519PrivateKey.generate()
    return write_private(folder / f"{name}.pem", key, passphrase), write_public(folder / f"{name}.pub", key)


def write_private(path: Path, key: Any, passphrase: bytes | None = None) -> Path:
    how = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    return path


def write_public(path: Path, key: Any) -> Path:
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def dumps(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def envelope_of(bundle: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((bundle / STATEMENT).read_bytes())
    return value


def payload_of(bundle: Path) -> bytes:
    return base64.b64decode(envelope_of(bundle)["payload"])


def statement_of(bundle: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(payload_of(bundle))
    return value


def put(bundle: Path, value: object) -> None:
    """Writes an envelope, whatever it is."""
    (bundle / STATEMENT).write_bytes(value if isinstance(value, bytes) else dumps(value) + b"\n")


def restate(bundle: Path, change: Callable[[dict[str, Any]], object], *, unsigned: bool = False) -> None:
    """Changes the statement and encodes it again; the signatures stay, and fit no more, unless they are taken off."""
    envelope, statement = envelope_of(bundle), statement_of(bundle)
    change(statement)
    envelope["payload"] = base64.b64encode(dumps(statement)).decode()
    put(bundle, {**envelope, "signatures": []} if unsigned else envelope)


def made_to_fit(bundle: Path) -> None:
    """Lists the files as they lie there in files.json and in an unsigned statement: all that needs no key."""
    paths = sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
    listed = [p for p in paths if p not in (STATEMENT, "files.json")]
    files = [{"path": p, "size": (bundle / p).stat().st_size, "sha256": sha(bundle / p)} for p in listed]
    (bundle / "files.json").write_bytes(dumps({"schema": "fdaudit-files/1", "files": files}) + b"\n")
    subject = [{"name": p, "digest": {"sha256": sha(bundle / p)}} for p in paths if p != STATEMENT]
    restate(bundle, lambda s: s.update(subject=subject), unsigned=True)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip(path: Path, at: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


# -- a run, evidence of it, and copies to be changed ----------------------------------------

SPEC: dict[str, Any] = {
    "adversaries": ["server", "world"],
    "attacks": [{"name": "loss-threshold"}],
    "model__params": {"widths": [1]},
    "seed": None,
}


class Made:
    """A run, signed evidence of it, and the keys."""

    def __init__(self, folder: Path) -> None:
        self.run = finished(folder / "run", **SPEC)
        self.private, self.public = keypair(folder)
        self.bundle = fdaudit.evidence(load(self.run), folder / "bundle", sign=self.private)


_KEPT: dict[str, Made] = {}
"""Runs that the tests of one process share: each changes copies only."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return _kept("made", tmp_path_factory)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same spec, another run."""
    return _kept("other", tmp_path_factory)


def _kept(name: str, factory: pytest.TempPathFactory) -> Made:
    if name not in _KEPT:
        _KEPT[name] = Made(factory.mktemp(name))
    return _KEPT[name]


@pytest.fixture
def bundle(made: Made, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(made.bundle, tmp_path / "bundle"))


def check(bundle: Path, made: Made | None = None, vault: Path | None = None) -> Outcome:
    return verify_bundle(bundle, key=None if made is None else public_key(made.public), vault=vault)


def names(findings: list[str], what: str) -> bool:
    return any(what in finding for finding in findings)


def files(bundle: Path) -> list[str]:
    return sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
