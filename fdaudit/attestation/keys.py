"""Ed25519 keys in PEM files: private ones as PKCS#8, public ones as SubjectPublicKeyInfo.

A public key of small order or not in canonical form is refused: under such a key, one signature is valid for every
message or for one in eight.

An unusable key (wrong kind, wrong format, missing passphrase) raises one error that names the problem and the remedy.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from fdaudit.errors import UsageError

__all__ = [
    "PASSPHRASE",
    "key_id",
    "own_key",
    "own_key_path",
    "private_key",
    "public_key",
    "public_pem",
    "refuse_weak",
]

PASSPHRASE = "FDAUDIT_KEY_PASSPHRASE"  # noqa: S105  # the variable's name
"""The environment variable that holds the passphrase of an encrypted private key."""

_MOST_BYTES = 1 << 16
_P = 2**255 - 19
_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL = frozenset({0, 1, _P - 1, _OF_ORDER_8, _P - _OF_ORDER_8})
"""The y of every point of order 1, 2, 4 or 8 on edwards25519."""
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_PLAIN = b"-----BEGIN PRIVATE KEY-----"
_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_MAKE = "Make one with `openssl genpkey -algorithm ed25519 -out key.pem`."
_EXTRACT = "Make one with `openssl pkey -in key.pem -pubout -out key.pub`."


def private_key(
    path: Path, ask: Callable[[], str | None] = lambda: None, *, field: str = "sign"
) -> Ed25519PrivateKey:
    """Return the private key in a file.

    Args:
        path: a PEM file, PKCS#8, encrypted or not.
        ask: called for the passphrase of an encrypted key if the environment variable is not set; None means no
            passphrase.
        field: the option or argument that names the key, for messages.

    Raises:
        UsageError: the file holds no such key, or the passphrase is missing or wrong.
    """
    data = _read(path, field)
    if _ENCRYPTED in data:
        text = os.environ.get(PASSPHRASE) or ask()
        if not text:
            remedy = f"Put its passphrase into the environment variable {PASSPHRASE}."
            raise UsageError(field, str(path), "is encrypted, and no passphrase was given", remedy)
        passphrase: bytes | None = text.encode("utf-8", "surrogateescape")
    elif _PLAIN in data:
        passphrase = None
    else:
        what = "is a public key" if _PUBLIC in data else "is no private key in PEM, PKCS#8"
        raise UsageError(field, str(path), what, f"Give the private one. {_MAKE}")
    try:
        key = load_pem_private_key(data, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        wrong = "is damaged, or its passphrase is another" if passphrase else "is damaged"
        raise UsageError(field, str(path), wrong, "Give the whole key, and its own passphrase.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(field, str(path), f"is no Ed25519 key ({_kind(key)})", _MAKE)
    return key


def public_key(path: Path, *, field: str = "key") -> Ed25519PublicKey:
    """Return the public key in a file.

    Args:
        path: a PEM file, SubjectPublicKeyInfo.
        field: the option or argument that names the key, for messages.

    Raises:
        UsageError: the file holds no such key.
    """
    data = _read(path, field)
    if _PUBLIC not in data:
        what = "is a private key" if b"PRIVATE KEY-----" in data else "is no public key in PEM"
        raise UsageError(field, str(path), what, f"Give the public one. {_EXTRACT}")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(field, str(path), "is damaged", _EXTRACT) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(field, str(path), f"is no Ed25519 key ({_kind(key)})", "Give the signer's own.")
    refuse_weak(key, field=field, value=str(path))
    return key


def refuse_weak(key: Ed25519PublicKey, *, field: str = "key", value: str | None = None) -> None:
    """Refuse a public key of small order or in a form that is not canonical.

    Raises:
        UsageError: the key is weak.
    """
    encoded = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    y = int.from_bytes(encoded, "little") & ((1 << 255) - 1)  # the highest bit is the sign of x
    if y >= _P:
        problem = "is an Ed25519 key in a form that is not canonical"
        raise UsageError(field, value or encoded.hex(), problem, "Give the signer's own.")
    if y in _SMALL:
        problem = "is an Ed25519 key of small order, under which anyone can sign"
        raise UsageError(field, value or encoded.hex(), problem, "Give the signer's own.")


def own_key_path() -> Path:
    """Return where this user's signing key is, or will be: in the user's directory of configuration."""
    location = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(location) / "fdaudit" / "signing-key.pem"


def own_key(ask: Callable[[], str | None] = lambda: None) -> Ed25519PrivateKey:
    """Return this user's signing key; make it at first use, with mode 600. A key is never replaced.

    Raises:
        UsageError: it cannot be made, others may read it, or it is no such key.
    """
    path = own_key_path()
    try:
        if not os.path.lexists(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
            key = Ed25519PrivateKey.generate()
            text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):  # another process was first: its key counts
                    os.link(temporary, path)
            finally:
                temporary.unlink()
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        problem = f"cannot be made or read ({error.strerror})"
        raise UsageError("sign", str(path), problem, "Give a key with --sign.") from None
    if mode & 0o077:
        problem = f"can be read or changed by other users (mode {mode:04o})"
        raise UsageError("sign", str(path), problem, f"Run `chmod 600 {path}`, or make another key.")
    return private_key(path, ask)


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return the key as PEM, SubjectPublicKeyInfo."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the key's DER form (SubjectPublicKeyInfo), in hexadecimal."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _kind(key: object) -> str:
    return type(key).__name__.lstrip("_")


def _read(path: Path, field: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UsageError(field, str(path), problem, "Give the path of a PEM file.") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(field, str(path), "is too large for a key", "Give the path of a PEM file.")
    return data
