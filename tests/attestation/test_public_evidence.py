"""Evidence to pass on: it holds nothing of the truth, is signed, and the documented check finds every change."""

from __future__ import annotations

import ast
import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit.attestation.keys import key_id, own_key_path, private_key
from fdaudit.attestation.public import KEY, verify_public
from fdaudit.errors import UsageError
from fdaudit.storage.files import load_tensors
from fdaudit.storage.vault import Vault
from fdaudit.transcript.transcript import read_messages

from ..helpers.command import Cli
from ..helpers.docs_pages import blocks
from ..helpers.evidence_cases import STATEMENT, dumps, envelope_of, flip, keypair, sha, statement_of
from ..helpers.run_cases import finished

FILES = {"public.html", "public.json", KEY, STATEMENT}


class Passed:
    """A run, two pieces of public evidence of it by one key, one by another key, and the check on the page."""

    def __init__(self, folder: Path) -> None:
        self.run = finished(
            folder / "run",
            seed=None,
            name="A run <b>",
            adversaries=["server", "world"],
            attacks=[{"name": "loss-threshold"}, {"name": "label-updates"}],
            audit={"system": "Straße 7 <script>"},
        )
        self.private, self.public = keypair(folder)
        run = fdaudit.load(self.run)
        self.bundle = fdaudit.public_evidence(run, folder / "one", sign=self.private)
        other, _ = keypair(folder, "other")
        self.by_another = fdaudit.public_evidence(run, folder / "other", sign=other)
        self.auditors = fdaudit.evidence(run, folder / "auditors", sign=self.private)
        self.script = folder / "check.py"
        self.script.write_text(script_of_the_page(), encoding="utf-8")
        self.id = key_id(private_key(self.private).public_key())


def script_of_the_page() -> str:
    (script,) = [block for block in blocks("docs/evidence.md", "python") if "load_pem_public_key" in block]
    return script


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Passed:
    return Passed(tmp_path_factory.mktemp("passed"))


@pytest.fixture
def bundle(passed: Passed, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(passed.bundle, tmp_path / "bundle"))


def checked(passed: Passed, bundle: Path, expected: str | None = None) -> subprocess.CompletedProcess[str]:
    """What the page's script says of a directory, in a process that cannot import fdaudit from here."""
    command = [sys.executable, "-I", str(passed.script), str(bundle), expected or passed.id]
    return subprocess.run(command, cwd=bundle.parent, capture_output=True, text=True, check=False)


def refused(passed: Passed, bundle: Path, expected: str | None = None) -> bool:
    """Whether both the page's script and `fdaudit verify` refuse a directory."""
    done = checked(passed, bundle, expected)
    ours = verify_public(bundle, key=private_key(passed.private).public_key() if expected is None else None)
    return done.returncode != 0 and "intact" not in done.stdout and bool(ours.findings)


# -- what it is ---------------------------------------------------------------------------------------------------


def test_it_is_small_and_its_page_is_documented_and_names_the_signer(passed: Passed) -> None:
    assert {entry.name for entry in passed.bundle.iterdir()} == FILES
    assert all(entry.is_file() and not entry.is_symlink() for entry in passed.bundle.iterdir())
    assert sum(entry.stat().st_size for entry in passed.bundle.iterdir()) < 2_000_000
    statement = statement_of(passed.bundle)
    assert {subject["name"] for subject in statement["subject"]} == FILES - {STATEMENT}
    assert statement["predicate"]["auditor_only"] is False
    manifest = json.loads((passed.run / "manifest.json").read_bytes())
    assert statement["predicate"]["run"]["head"] == manifest["head"]
    assert statement["predicate"]["commitments"] == manifest["commitments"]
    page = (passed.bundle / "public.html").read_text("utf-8")
    assert passed.id in page
    assert "Straße 7 &lt;script&gt;" in page
    assert "public-appendix.html" not in page
    data = json.loads((passed.bundle / "public.json").read_bytes())
    assert data["signed_by"] == passed.id
    assert data["result"]["auditor_only"] is False
    assert data["result"]["ledger"]
    text = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text("utf-8")
    section = text.split("## Evidence to pass on")[1].split("\n## ")[0]
    predicate = statement_of(passed.bundle)["predicate"]
    for name in (*FILES, *predicate, *predicate["run"], *predicate["stands_on"]):
        assert f"`{name}`" in section, name


def test_the_outcomes_of_all_public_pages_agree(passed: Passed, tmp_path: Path) -> None:
    run = Path(shutil.copytree(passed.run, tmp_path / "run"))
    (run / "vault" / "published.json").write_text('{"outcomes": "of another page"}', "utf-8")
    with pytest.raises(UsageError, match="with other outcomes"):
        fdaudit.public_evidence(fdaudit.load(run), tmp_path / "out", sign=passed.private)
    assert not (tmp_path / "out").exists()


# -- the key ------------------------------------------------------------------------------------------------------


def test_the_key_is_made_once_for_its_user_alone_and_never_replaced(
    passed: Passed, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = shutil.copytree(passed.run, tmp_path / "run")
    code, out, _ = cli("evidence", run, "--out", tmp_path / "one", "--public")
    key = own_key_path()
    assert code == 0
    assert key.is_relative_to(tmp_path / "config")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [entry.name for entry in key.parent.iterdir()] == [key.name]
    made = key.read_bytes()
    assert key_id(private_key(key).public_key()) in out
    assert str(key) in out
    code, out, _ = cli("evidence", run, "--out", tmp_path / "two", "--public")
    assert (code, key.read_bytes()) == (0, made)
    assert str(key) not in out
    assert (tmp_path / "one" / KEY).read_bytes() == (tmp_path / "two" / KEY).read_bytes()
    code, out, _ = cli("verify", tmp_path / "two")
    assert code == 0
    assert "intact" in out


def test_a_key_that_others_can_read_signs_nothing(
    passed: Passed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = own_key_path()
    key.parent.mkdir()
    shutil.copy(passed.private, key)
    key.chmod(0o644)
    with pytest.raises(UsageError, match="by other users"):
        fdaudit.public_evidence(fdaudit.load(passed.run), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the check that needs no fdaudit ------------------------------------------------------------------------------


def test_the_script_is_short_and_needs_cryptography_alone(passed: Passed) -> None:
    script = script_of_the_page()
    assert len(script.splitlines()) <= 30
    named = set()
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.add(str(node.module).partition(".")[0])
    assert named - sys.stdlib_module_names == {"cryptography"}
    done = checked(passed, passed.bundle)
    assert (done.returncode, done.stdout.split()[-1]) == (0, passed.id)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_byte_is_refused(passed: Passed, bundle: Path, name: str) -> None:
    size = (bundle / name).stat().st_size
    for at in (0, size // 2, size - 1):
        flip(bundle / name, at)
        assert refused(passed, bundle), f"byte {at} of {name}"
        flip(bundle / name, at)
    assert not refused(passed, bundle)


@pytest.mark.thorough
def test_no_byte_of_the_statement_and_of_the_key_can_be_changed(
    passed: Passed, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every byte, in this process."""
    code = compile(script_of_the_page(), "check.py", "exec")
    monkeypatch.setattr(sys, "argv", ["check.py", str(bundle), passed.id])
    exec(code, {})  # the page's own script
    capsys.readouterr()
    for name in (STATEMENT, KEY):
        for at in range((bundle / name).stat().st_size):
            flip(bundle / name, at)
            with pytest.raises(BaseException) as caught:  # noqa: PT011  # whatever ends it
                exec(code, {})
            assert not (isinstance(caught.value, SystemExit) and caught.value.code in (0, None)), (name, at)
            flip(bundle / name, at)
    assert "intact" not in capsys.readouterr().out


@pytest.mark.thorough
def test_a_file_that_was_added_or_removed_is_refused(passed: Passed, bundle: Path, tmp_path: Path) -> None:
    (bundle / "note.txt").write_bytes(b"")
    assert refused(passed, bundle)
    (bundle / "note.txt").unlink()
    for name in sorted(FILES):
        (bundle / name).rename(tmp_path / "kept")
        assert refused(passed, bundle), name
        (tmp_path / "kept").rename(bundle / name)
    assert not refused(passed, bundle)


@pytest.mark.thorough
def test_a_swapped_signature_is_refused(passed: Passed, bundle: Path) -> None:
    """Of the same key over another statement, and of another key over this one."""
    ours = envelope_of(bundle)
    for theirs in (envelope_of(passed.auditors), envelope_of(passed.by_another)):
        (bundle / STATEMENT).write_bytes(dumps({**ours, "signatures": theirs["signatures"]}) + b"\n")
        assert refused(passed, bundle)
    for signatures in ([], ours["signatures"] * 2, [{**ours["signatures"][0], "more": 1}]):
        (bundle / STATEMENT).write_bytes(dumps({**ours, "signatures": signatures}) + b"\n")
        assert refused(passed, bundle)
    spaced = json.dumps(ours, sort_keys=True).encode()
    (bundle / STATEMENT).write_bytes(spaced + b"\n")
    assert refused(passed, bundle)


def test_another_key_is_refused(passed: Passed, bundle: Path) -> None:
    assert refused(passed, passed.by_another)
    assert checked(passed, bundle, "0" * 64).returncode != 0
    shutil.copy(passed.by_another / KEY, bundle / KEY)
    assert refused(passed, bundle)


@pytest.mark.thorough
def test_links_folders_and_pipes_are_refused_unread(passed: Passed, bundle: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copy(bundle / "public.html", secret)
    (bundle / "public.html").unlink()
    (bundle / "public.html").symlink_to(secret)
    assert refused(passed, bundle)
    (bundle / "public.html").unlink()
    shutil.copy(secret, bundle / "public.html")
    (bundle / "folder").mkdir()
    assert refused(passed, bundle)
    (bundle / "folder").rmdir()
    os.mkfifo(bundle / "pipe")
    assert refused(passed, bundle)
    (bundle / "pipe").unlink()
    with (bundle / "large").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    assert refused(passed, bundle)
    (bundle / "large").unlink()
    assert not refused(passed, bundle)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"_type":1,"predicate":{},"predicateType":1,"subject":[]}',
        b'{"subject":[{"name":"../../etc/passwd","digest":{"sha256":"' + b"0" * 64 + b'"}}]}',
    ],
)
def test_a_hostile_statement_ends_in_a_finding(passed: Passed, bundle: Path, payload: bytes) -> None:
    envelope = {**envelope_of(bundle), "payload": base64.b64encode(payload).decode()}
    (bundle / STATEMENT).write_bytes(dumps(envelope) + b"\n")
    assert refused(passed, bundle)


# -- with fdaudit -------------------------------------------------------------------------------------------------


def test_the_command_checks_it_and_the_revealed_run(passed: Passed, tmp_path: Path, cli: Cli) -> None:
    vault = passed.run / "vault"
    code, out, err = cli("verify", passed.bundle)
    assert code == 0
    assert passed.id in out
    assert "Compare its id" in err
    code, out, err = cli("verify", passed.bundle, "--key", passed.public, "--vault", vault)
    assert (code, err) == (0, "")
    assert "the vault is" in out
    run = Path(shutil.copytree(passed.run, tmp_path / "run"))
    flip(run / "result.json", -3)
    code, _, err = cli("verify", passed.bundle, "--vault", run / "vault")
    assert code == 3
    assert "result.json is not" in err


# -- an enemy who reads it ----------------------------------------------------------------------------------------


def texts(bundle: Path) -> Iterator[bytes]:
    """Every file of a directory, and what its envelope holds in Base64."""
    for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
        yield path.read_bytes()
        if path.name == STATEMENT:
            yield base64.b64decode(json.loads(path.read_bytes())["payload"])


def truths(run: Path) -> Iterator[list[int]]:
    """The members' and other split's record indices, and the labels of each client's records."""
    labels = fdaudit.Run(run).case.dataset.y
    for tensor in load_tensors(run / "vault" / "splits.safetensors").values():
        yield tensor.flatten().tolist()
        if tensor.dim() == 1 and tensor.numel() and int(tensor.max()) < len(labels):
            yield labels[tensor].tolist()


def shown(truth: list[int], found: bytes, window: int = 6) -> bool:
    """Whether a stretch of a secret list stands in some bytes: as numbers of a text, or as they lie in memory."""
    numbers = " " + " ".join(re.findall(r"\d+", found.decode("latin-1"))) + " "
    for start in range(len(truth) - window + 1):
        stretch = truth[start : start + window]
        if len(set(stretch)) < 4:
            continue  # a stretch of one value proves nothing
        if f" {' '.join(map(str, stretch))} " in numbers:
            return True
        for kind in (torch.int64, torch.int32, torch.int16, torch.uint8):
            if (
                max(stretch) <= torch.iinfo(kind).max
                and torch.tensor(stretch).to(kind).numpy().tobytes() in found
            ):
                return True
    return False


def guessable(run: Path) -> set[str]:
    """Digests without a salt of what an enemy could guess: files, tensors, messages, and all short label vectors."""
    found = set[str]()
    released = {"server.safetensors"}  # the released model is public, and so is its digest
    for path in run.rglob("*"):
        if path.is_file() and path.name not in released:
            found.add(sha(path))
        if path.suffix == ".safetensors" and path.is_relative_to(run / "vault"):
            for tensor in load_tensors(path).values():
                found.add(hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest())
    for message in read_messages(run / "transcript"):
        found.add(message.sha256)
    for length in (1, 2, 3):
        for labels in itertools.product(range(10), repeat=length):
            for kind in (torch.int64, torch.uint8):
                found.add(hashlib.sha256(torch.tensor(labels, dtype=kind).numpy().tobytes()).hexdigest())
            found.add(hashlib.sha256(json.dumps(labels).encode()).hexdigest())
    return found


def digests(bundle: Path) -> set[str]:
    return {text.decode() for data in texts(bundle) for text in re.findall(rb"\b[0-9a-f]{64}\b", data)}


@pytest.mark.thorough
def test_an_enemy_finds_no_record_label_or_secret(passed: Passed) -> None:
    everything = list(texts(passed.bundle))
    secrets = Vault(passed.run / "vault").secrets
    needles = [secrets.secret, secrets.secret.hex().encode(), base64.b64encode(secrets.secret)]
    needles += [str(secrets.seed).encode(), str(secrets.working_seed).encode()]
    assert [needle for needle in needles for data in everything if needle in data] == []
    lists = list(truths(passed.run))
    assert len(lists) > 8
    assert [truth[:6] for truth in lists for data in everything if shown(truth, data)] == []


@pytest.mark.thorough
def test_an_enemy_finds_no_digest_that_confirms_a_guess(passed: Passed) -> None:
    assert digests(passed.bundle) & guessable(passed.run) == set()


@pytest.mark.thorough
def test_the_enemy_would_find_them_in_the_auditors_evidence(passed: Passed, tmp_path: Path) -> None:
    """The control: the same searches, where there is something to be found."""
    assert digests(passed.auditors) & guessable(passed.run)
    truth: Any = next(t for t in truths(passed.run) if len(set(t[:6])) >= 4)
    leaky = tmp_path / "leaky"
    leaky.mkdir()
    for number, data in enumerate(
        (json.dumps(truth, indent=1).encode(), torch.tensor(truth).numpy().tobytes())
    ):
        (leaky / f"{number}").write_bytes(data)
    assert all(shown(truth, data) for data in texts(leaky))
