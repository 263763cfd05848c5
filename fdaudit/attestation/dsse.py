"""The envelope: a statement's bytes and signatures over them, in the DSSE v1 format.

Signatures cover PAE(type, body) = "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body, lengths in bytes as decimal
numbers: bytes cannot move between type and body, and neither needs a canonical form.

Source: Dead Simple Signing Envelope, protocol and envelope, version 1.0 (github.com/secure-systems-lab/dsse).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdaudit.errors import IntegrityError
from fdaudit.storage.digests import canonical

from .strict import parse_canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["MOST_SIGNATURES", "PAYLOAD_TYPE", "Envelope", "Signature", "open_envelope", "pae", "seal"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_SIGNATURES = 16


@dataclass(frozen=True)
class Signature:
    """One signature.

    Attributes:
        keyid: a hint at the key; it is not verified.
        sig: its bytes.
    """

    keyid: str
    sig: bytes


@dataclass(frozen=True)
class Envelope:
    """An opened envelope: the payload's bytes and the signatures over them, still unchecked."""

    payload: bytes
    signatures: tuple[Signature, ...]

    def signed_by(self, key: Ed25519PublicKey) -> bool:
        """Return whether one of the signatures is valid under the key."""
        from cryptography.exceptions import InvalidSignature

        message = pae(PAYLOAD_TYPE, self.payload)
        for signature in self.signatures:
            try:
                key.verify(signature.sig, message)
            except InvalidSignature:
                continue
            return True
        return False


def pae(payload_type: str, body: bytes) -> bytes:
    """Return the signed bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def seal(payload: bytes, key: Ed25519PrivateKey | None) -> bytes:
    """Return the envelope of an in-toto statement as a canonical JSON line; `signatures` is empty without a key."""
    signatures = []
    if key is not None:
        from .keys import key_id

        sig = key.sign(pae(PAYLOAD_TYPE, payload))
        signatures.append({"keyid": key_id(key.public_key()), "sig": base64.b64encode(sig).decode()})
    value = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": signatures,
    }
    return canonical(value) + b"\n"


def open_envelope(data: bytes, name: str) -> Envelope:
    """Open an envelope without checking its signatures.

    Args:
        data: the envelope's bytes, in canonical form.
        name: name of the file, for messages.

    Raises:
        IntegrityError: it is not an envelope, or its type is not that of an in-toto statement.
    """
    value = parse_canonical(data, name)
    if not isinstance(value, dict) or value.keys() != {"payload", "payloadType", "signatures"}:
        raise IntegrityError([f"{name} does not have just payload, payloadType and signatures"])
    if value["payloadType"] != PAYLOAD_TYPE:
        raise IntegrityError([f"{name}: payloadType is not {PAYLOAD_TYPE}"])
    listed = value["signatures"]
    if not isinstance(listed, list) or len(listed) > MOST_SIGNATURES:
        raise IntegrityError([f"{name}: signatures is no list of at most {MOST_SIGNATURES}"])
    signatures = []
    for number, entry in enumerate(listed):
        where = f"{name}: signatures.{number}"
        if not isinstance(entry, dict) or not {"sig"} <= entry.keys() <= {"keyid", "sig"}:
            raise IntegrityError([f"{where} does not have just sig and keyid"])
        keyid = entry.get("keyid", "")
        if not isinstance(keyid, str):
            raise IntegrityError([f"{where}.keyid is no text"])
        signatures.append(Signature(keyid, _decoded(entry["sig"], f"{where}.sig")))
    return Envelope(_decoded(value["payload"], f"{name}: payload"), tuple(signatures))


def _decoded(text: object, where: str) -> bytes:
    """Decode standard or URL-safe base64, both of which DSSE allows; refuse other spellings of the same bytes."""
    if isinstance(text, str):
        alphabet = b"-_" if "-" in text or "_" in text else b"+/"
        try:
            data = base64.b64decode(text.encode("ascii"), alphabet, validate=True)
        except (binascii.Error, ValueError):
            data = None
        if data is not None and base64.b64encode(data, alphabet).decode() == text:
            return data
    raise IntegrityError([f"{where} is not Base64"])
