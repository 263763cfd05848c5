"""The envelope and its keys: what is signed, byte for byte, and what is no key or no envelope."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.attestation.dsse import MOST_SIGNATURES, PAYLOAD_TYPE, open_envelope, pae, seal
from fdaudit.attestation.keys import PASSPHRASE, key_id, private_key, public_key
from fdaudit.attestation.listing import is_safe, read_listing
from fdaudit.attestation.statement import read_statement
from fdaudit.errors import IntegrityError, UsageError

from ..helpers.evidence_cases import TYPE, dumps, keypair, write_private, write_public

# The key is that of RFC 8032, section 7.1, test 1; the signature was made by `openssl pkeyutl -sign -rawin`.
PRIVATE = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
"""
PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
PAE = b'DSSEv1 28 application/vnd.in-toto+json 43 {"_type":"https://in-toto.io/Statement/v1"}'
SIGNATURE = "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA=="
KEY_ID = "06e3fd8fda29bb60ab59557de61edb0aecdb231134be30e75b455f8e1b792fa9"


def test_an_envelope_is_made_byte_for_byte_as_published(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(PRIVATE, encoding="ascii")
    key = private_key(path)
    expected = {
        "payload": base64.b64encode(PAYLOAD).decode(),
        "payloadType": TYPE,
        "signatures": [{"keyid": KEY_ID, "sig": SIGNATURE}],
    }
    assert seal(PAYLOAD, key) == dumps(expected) + b"\n"
    assert pae(PAYLOAD_TYPE, PAYLOAD) == PAE
    assert key_id(key.public_key()) == KEY_ID
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("é", "ü".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xbc", "lengths are of bytes"
    assert open_envelope(dumps(GOOD) + b"\n", "e").payload == b"{}"
    assert (
        open_envelope(dumps({**GOOD, "signatures": [{"sig": "AA=="}]}) + b"\n", "e").signatures[0].keyid == ""
    )
    whole = {**GOOD, "signatures": [SIG] * MOST_SIGNATURES}
    assert len(open_envelope(dumps(whole) + b"\n", "e").signatures) == MOST_SIGNATURES


@given(st.binary(max_size=200))
def test_a_signature_is_over_the_encoding_and_fits_nothing_else(payload: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    envelope = open_envelope(seal(payload, key), "e")
    assert envelope.payload == payload
    (signature,) = envelope.signatures
    written_out = f"DSSEv1 {len(TYPE)} {TYPE} {len(payload)} ".encode() + payload
    key.public_key().verify(signature.sig, written_out)  # raises where it does not fit
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert signature.keyid == hashlib.sha256(der).hexdigest()
    assert envelope.signed_by(key.public_key())
    assert not envelope.signed_by(Ed25519PrivateKey.generate().public_key())


@pytest.mark.parametrize(
    "message",
    [
        PAYLOAD,
        PAE.replace(b"v1", b"v2"),
        PAE.replace(b" 43 ", b" 043 "),
        PAE.replace(b" 28 application/vnd.in-toto+json", b" 16 application/json"),
        PAE.replace(b"DSSEv1 ", b""),
        base64.b64encode(PAYLOAD),
    ],
)
def test_a_signature_over_another_encoding_is_refused(message: bytes) -> None:
    key = Ed25519PrivateKey.generate()
    whole = json.loads(seal(PAYLOAD, key))
    assert open_envelope(dumps(whole) + b"\n", "e").signed_by(key.public_key())
    whole["signatures"][0]["sig"] = base64.b64encode(key.sign(message)).decode()
    assert not open_envelope(dumps(whole) + b"\n", "e").signed_by(key.public_key())


def test_url_safe_base64_is_read_too() -> None:
    """The protocol leaves the alphabet to the signer."""
    payload = b"\xfb\xff\xfe" * 5
    key = Ed25519PrivateKey.generate()
    whole = json.loads(seal(payload, key))
    whole["payload"] = base64.urlsafe_b64encode(payload).decode()
    assert "-" in whole["payload"]
    opened = open_envelope(dumps(whole) + b"\n", "e")
    assert opened.payload == payload
    assert opened.signed_by(key.public_key())


# -- strangers' envelopes -----------------------------------------------------------------------------------------

GOOD = {"payload": "e30=", "payloadType": TYPE, "signatures": []}
SIG = {"keyid": "", "sig": "AA=="}
HOSTILE = {
    "empty": b"",
    "null": b"null\n",
    "no newline": dumps(GOOD),
    "a space": dumps(GOOD).replace(b":", b": ") + b"\n",
    "a key twice": dumps(GOOD)[:-1] + b',"payload":"e30="}\n',
    "not UTF-8": b"\xff\n",
    "a byte-order mark": b"\xef\xbb\xbf" + dumps(GOOD) + b"\n",
    "deep": b"[" * 200_000 + b"]" * 200_000 + b"\n",
    "deep below a key": b'{"payload":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a long number": b"9" * 100_000 + b"\n",
    "not a number": b"NaN\n",
    "a list": dumps([GOOD]) + b"\n",
    "a field too many": {**GOOD, "extra": 1},
    "a field too few": {"payload": "e30=", "payloadType": TYPE},
    "another payloadType": {**GOOD, "payloadType": "application/json"},
    "payloadType in capitals": {**GOOD, "payloadType": TYPE.upper()},
    "payloadType no text": {**GOOD, "payloadType": [TYPE]},
    "payloadType half a character": {**GOOD, "payloadType": "\ud800"},
    "payload no text": {**GOOD, "payload": {}},
    "payload junk": {**GOOD, "payload": "****"},
    "payload without padding": {**GOOD, "payload": "e30"},
    "payload with a line break": {**GOOD, "payload": "e30=\n"},
    "payload with loose bits": {**GOOD, "payload": "e31="},
    "payload of two alphabets": {**GOOD, "payload": "+-+-"},
    "payload beyond ASCII": {**GOOD, "payload": "é30="},
    "signatures no list": {**GOOD, "signatures": {}},
    "signatures of numbers": {**GOOD, "signatures": [1]},
    "a signature with junk": {**GOOD, "signatures": [{**SIG, "sig": "!"}]},
    "a signature without sig": {**GOOD, "signatures": [{"keyid": "a"}]},
    "a keyid that is no text": {**GOOD, "signatures": [{**SIG, "keyid": 1}]},
    "thousands of signatures": {**GOOD, "signatures": [SIG] * 5000},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_envelope_is_a_finding(what: str) -> None:
    value = HOSTILE[what]
    data = value if isinstance(value, bytes) else dumps(value) + b"\n"
    with pytest.raises(IntegrityError) as caught:
        open_envelope(data, "statement.dsse.json")
    assert all(f.startswith("statement.dsse.json") and len(f) < 500 for f in caught.value.findings)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
)
FIELDS = st.sampled_from(
    [
        "_type",
        "subject",
        "predicateType",
        "predicate",
        "payload",
        "payloadType",
        "signatures",
        "schema",
        "files",
    ]
)


@given(JSON | st.dictionaries(FIELDS, JSON), st.binary(max_size=50))
def test_no_document_ends_in_another_error(value: object, junk: bytes) -> None:
    for data in (dumps(value), dumps(value) + b"\n", junk):
        for read in (open_envelope, read_statement, read_listing):
            with pytest.raises(IntegrityError):
                read(data, "f")


NO_PATHS = (
    *("", "/", "/etc/passwd", "..", "a/../b", "./a", "a/.", "a//b", "a/", "a\\b", "C:\\x"),
    *("a\nb", "a\0", "a b", 'a"b', "é", "\ud800", "a" * 1000, "~/a:b", "$(x)"),
)


@pytest.mark.parametrize("path", NO_PATHS)
def test_paths_that_leave_the_directory_or_need_escapes_are_refused(path: str) -> None:
    assert not is_safe(path)


@given(st.text(max_size=30))
def test_a_path_that_is_taken_stays_inside(path: str) -> None:
    if is_safe(path):
        base = Path("/somewhere")
        assert (base / path).is_relative_to(base)
        assert ".." not in (base / path).parts
        assert json.dumps(path) == f'"{path}"'


# -- keys ---------------------------------------------------------------------------------------------------------


def test_a_pair_of_keys_is_read(tmp_path: Path) -> None:
    private, public = keypair(tmp_path)
    assert key_id(private_key(private).public_key()) == key_id(public_key(public))


def test_a_passphrase_comes_from_the_environment_or_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = keypair(tmp_path, passphrase=b"open")
    monkeypatch.delenv(PASSPHRASE, raising=False)
    due = key_id(public_key(public))
    assert key_id(private_key(private, lambda: "open").public_key()) == due
    for answer, problem in ((None, PASSPHRASE), ("", PASSPHRASE), ("wrong", "passphrase is another")):
        with pytest.raises(UsageError, match=problem):
            private_key(private, lambda answer=answer: answer)
    monkeypatch.setenv(PASSPHRASE, "open")
    assert key_id(private_key(private, lambda: pytest.fail("asked for")).public_key()) == due
    plain, _ = keypair(tmp_path, "plain")
    assert private_key(plain), "a plain key needs none, whatever the environment says"


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    private, public = keypair(tmp_path)
    whole = private.read_bytes()
    cut = tmp_path / "cut.pem"
    cut.write_bytes(whole[:50] + whole[60:])
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    large = tmp_path / "large.pem"
    large.write_bytes(whole * 2000)
    cases = {
        public: "is a public key",
        cut: "is damaged",
        empty: "is no private key",
        large: "too large",
        tmp_path / "absent.pem": "cannot be read",
        tmp_path: "cannot be read",
    }
    for path, problem in cases.items():
        with pytest.raises(UsageError, match=problem) as caught:
            private_key(path)
        assert caught.value.exit_code == 2
        assert caught.value.field == "sign"


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    others = [
        ec.generate_private_key(ec.SECP256R1()),
        rsa.generate_private_key(65537, 2048),
        ed448.Ed448PrivateKey.generate(),
        x25519.X25519PrivateKey.generate(),
    ]
    for number, key in enumerate(others):
        private = write_private(tmp_path / f"{number}.pem", key)
        public = write_public(tmp_path / f"{number}.pub", key)
        for read, path in ((private_key, private), (public_key, public)):
            with pytest.raises(UsageError, match="no Ed25519 key"):
                read(path)


def test_what_is_no_public_key_is_refused(tmp_path: Path) -> None:
    private, public = keypair(tmp_path)
    cut = tmp_path / "cut.pub"
    cut.write_bytes(public.read_bytes()[:40] + public.read_bytes()[50:])
    junk = tmp_path / "junk.pub"
    junk.write_bytes(b"\xff" * 100)
    for path, problem in {private: "is a private key", cut: "is damaged", junk: "is no public key"}.items():
        with pytest.raises(UsageError, match=problem):
            public_key(path)
