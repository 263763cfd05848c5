"""Files from outside: JSON of one meaning, regular files, tables without formulas, keys under which one party signs."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import fdaudit
from fdaudit.attestation.check import verify_bundle
from fdaudit.attestation.keys import public_key, refuse_weak
from fdaudit.audit.guesses import guesses_and_digest
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.storage.files import load_json, parse_json
from fdaudit.storage.tables import csv_text
from fdaudit.transcript.manifest import MANIFEST, verify

from ..helpers.command import Cli
from ..helpers.evidence_cases import SPEC
from ..helpers.run_cases import finished


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("made") / "run", **SPEC)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


# -- JSON ---------------------------------------------------------------------------------------------------------

AMBIGUOUS = (
    '{"a": 1, "a": 1}',
    '[{"b": {"a": 1, "\\u0061": 2}}]',
    '{"a": NaN}',
    "[Infinity]",
    "[-Infinity]",
    "[1e999]",
    "[-1e999]",
    "[" * 100_000,
    "",
    "{'a': 1}",
    "\ufeff{}",
)


@pytest.mark.parametrize("text", AMBIGUOUS, ids=range(len(AMBIGUOUS)))
def test_json_of_no_or_of_several_meanings_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"file\.json .* JSON"):
        load_json(path)
    with pytest.raises(UsageError, match="is not JSON"):
        guesses_and_digest(path)


@pytest.mark.parametrize("value", [{}, [1, 2.5, -3e-7, "é", None, True], {"a": {"a": 1}, "b": {"a": 2}}])
def test_other_json_is_what_it_was(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.thorough
def test_a_name_given_twice_in_guesses_is_refused_by_the_command(run: Path, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "guesses.json"
    path.write_text('{"schema": "fdaudit-guesses/1", "name": "one", "name": "two"}', encoding="utf-8")
    code, _, error = cli("score", run, path)
    assert code == 2
    assert "'name' stands twice" in error


# -- files that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [MANIFEST, "spec.yaml", "utility.csv", "transcript/messages.jsonl", "transcript"]
)
def test_a_link_to_the_very_file_is_found(name: str, run: Path, tmp_path: Path) -> None:
    assert verify(run) == []
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    assert [f for f in verify(run) if "no regular file" in f] != []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_payload_that_is_no_file_is_found_and_not_opened(kind: str, run: Path, tmp_path: Path) -> None:
    path = sorted((run / "transcript" / "payloads").iterdir())[0]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere") if kind == "link" else os.mkfifo(path)
    (finding,) = verify(run)
    assert finding.startswith(f"transcript/payloads/{path.name} is ")


def test_a_pipe_in_place_of_the_manifest_is_found(run: Path) -> None:
    (run / MANIFEST).unlink()
    os.mkfifo(run / MANIFEST)
    (finding,) = verify(run)
    assert finding.startswith(f"{MANIFEST} is no ")


def test_json_is_read_from_no_link(run: Path, tmp_path: Path) -> None:
    (run / "result.json").rename(tmp_path / "result.json")
    (run / "result.json").symlink_to(tmp_path / "result.json")
    with pytest.raises(IntegrityError, match=r"result\.json .* link"):
        _ = fdaudit.load(run).result


TIMES = (
    "[1, 2]",
    '{"a": 1' + "0" * 400 + "}",
    '{"a": "soon"}',
    '{"a": true}',
    '{"a": -1}',
    '{"a": null}',
    "{",
    '{"a": 1, "a": 2}',
    "\xff",
)


@pytest.mark.parametrize("text", TIMES, ids=range(len(TIMES)))
def test_malformed_times_are_one_error(text: str, run: Path, cli: Cli) -> None:
    (run / "timings.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"^timings\.json: "):
        fdaudit.report(fdaudit.load(run))
    code, _, error = cli("report", run)
    assert (code, error.count("\n")) == (2, 1)
    assert not (run / "report").exists() or not list((run / "report").iterdir())


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"id": 3}', "null"])
def test_a_file_that_is_no_outcome_is_one_error(text: str, run: Path, cli: Cli) -> None:
    (run / "attacks" / "server-loss-threshold.json").write_text(text)
    code, _, error = cli("run", "--resume", "--no-report", "--out", run)
    assert (code, error.count("\n")) == (3, 1), error
    assert "server-loss-threshold.json is no" in error


def test_a_run_without_times_has_a_report(run: Path) -> None:
    (run / "timings.json").unlink()
    assert fdaudit.report(fdaudit.load(run)).is_file()


# -- tables -------------------------------------------------------------------------------------------------------

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1", " =1", "\uff1d1", "-", "=")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_and_no_heading_is_a_formula(text: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text([["a", text], [text, 1]]), newline="")))
    assert rows == [["a", f"'{text}"], [f"'{text}", "1"]]


def test_numbers_and_other_text_stay() -> None:
    cells = [-1, -0.5, "-0.5", "+3", "-1e-07", "inf", "-inf", "client/0", "a=b", "", "1-2", None]
    assert csv_text([cells]) == "-1,-0.5,-0.5,+3,-1e-07,inf,-inf,client/0,a=b,,1-2,\n"


def test_tables_are_written_in_one_place() -> None:
    root = Path(fdaudit.__file__).parents[1]
    rooms = [root / room for room in ("fdaudit", "attacks", "defenses", "deviations", "protocols", "reports")]
    writers = {
        path.name
        for room in rooms
        for path in room.rglob("*.py")
        if "csv.writer" in (text := path.read_text("utf-8")) or "to_csv" in text or "DictWriter" in text
    }
    assert writers == {"tables.py"}


# -- keys ---------------------------------------------------------------------------------------------------------


P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL = (0, 1, P - 1, ORDER_8, P - ORDER_8)
FORMS = tuple(
    y + n * P + (sign << 255) for y in SMALL for n in (0, 1) for sign in (0, 1) if y + n * P < 2**255
)
BASE = 4 * pow(5, P - 2, P) % P


def key_of(number: int) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(number.to_bytes(32, "little"))


def pem(folder: Path, number: int) -> Path:
    path = folder / "key.pub"
    path.write_bytes(key_of(number).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def x_of(y: int) -> int:
    """The x that belongs to y on the curve, one of two."""
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    return x


@pytest.mark.parametrize("y", SMALL)
def test_eight_times_each_refused_point_is_nothing(y: int) -> None:
    point = x_of(y), y
    for _ in range(3):
        (x, y), k = point, D * point[0] ** 2 * point[1] ** 2 % P
        point = 2 * x * y * pow(1 + k, P - 2, P) % P, (y * y + x * x) * pow(1 - k, P - 2, P) % P
    assert point == (0, 1)


@pytest.mark.parametrize("number", [*FORMS, P + 3, P + 18, 2**255 - 1, P + 3 + (1 << 255)])
def test_a_weak_key_is_refused(number: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"small order|not canonical"):
        public_key(pem(tmp_path, number))
    with pytest.raises(UsageError, match=r"small order|not canonical"):
        verify_bundle(tmp_path, key=key_of(number))


def test_a_strong_key_is_taken() -> None:
    for _ in range(20):
        refuse_weak(Ed25519PrivateKey.generate().public_key())


def test_under_a_key_of_small_order_anybody_signs(made: Path, tmp_path: Path, cli: Cli) -> None:
    """S = 1 and R = the base point: right for every message under the neutral element, if that were a key."""
    forged = BASE.to_bytes(32, "little") + (1).to_bytes(32, "little")
    key_of(1).verify(forged, b"whatever")
    bundle = fdaudit.evidence(fdaudit.load(made), tmp_path / "bundle")
    path = bundle / "statement.dsse.json"
    envelope = json.loads(path.read_bytes())
    envelope["signatures"] = [{"keyid": "", "sig": base64.b64encode(forged).decode()}]
    path.write_text(json.dumps(envelope, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    code, _, error = cli("verify", bundle, "--key", pem(tmp_path, 1))
    assert code == 2
    assert "small order" in error
