"""Evidence as it is written: what a bundle holds, what never gets into it, what the statement says, what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.judgement.verdict import judge_all

import fdaudit
from fdaudit.attestation.bundle import PARTS
from fdaudit.attestation.environment import _checked_out, tool
from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError
from fdaudit.result import read
from fdaudit.scoring.scoring import _scores_of
from fdaudit.storage.digests import canonical
from fdaudit.storage.vault import Vault
from fdaudit.transcript.manifest import read_manifest
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.command import Cli
from ..helpers.docs_pages import ROOT
from ..helpers.evidence_cases import envelope_of, flip, keypair, payload_of, sha, statement_of
from ..helpers.run_cases import finished, tree

LOSS = {"name": "loss-threshold"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one attack, a gate and a report; its seed is drawn, so that it can be looked for."""
    run = finished(
        tmp_path_factory.mktemp("evidence") / "run",
        name="Straße <b>",
        seed=None,
        adversaries=["server", "world"],
        attacks=[LOSS],
        gates={"membership_auc": 1.0, "epsilon": 8},
    )
    fdaudit.report(fdaudit.load(run))
    return run


@pytest.fixture(scope="module")
def bundle(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    private, _ = keypair(folder)
    return fdaudit.evidence(fdaudit.load(original), folder / "made", sign=private)


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


# -- what it holds ------------------------------------------------------------------------------------------------


def test_it_holds_every_file_but_the_vault_listed_with_size_and_digest(original: Path, bundle: Path) -> None:
    due = {f"run/{name}": data for name, data in tree(original, ()).items() if not name.startswith("vault/")}
    found = tree(bundle, ())
    own = {"statement.dsse.json", "files.json", "environment.json", "sbom.cdx.json"}
    assert found.keys() == due.keys() | own
    assert {name: found[name] for name in due} == due
    assert {p.name for p in original.iterdir()} == PARTS - {"card.yaml"} | {"vault"}, (
        "no part of a run is forgotten"
    )
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    data = (bundle / "files.json").read_bytes()
    listing = json.loads(data)
    assert canonical(listing) + b"\n" == data
    files = tree(bundle, ("statement.dsse.json", "files.json"))
    assert [f["path"] for f in listing["files"]] == sorted(files)
    for file in listing["files"]:
        assert file == {
            "path": file["path"],
            "size": len(files[file["path"]]),
            "sha256": sha(bundle / file["path"]),
        }


def test_nothing_of_the_vault_is_in_it(original: Path, bundle: Path) -> None:
    """Neither the secret nor the seed in any spelling, no file of the vault, no digest of one."""
    secrets = json.loads((original / "vault" / "secrets.json").read_bytes())
    secret, seed = bytes.fromhex(secrets["secret"]), secrets["seed"]
    sent = [read_payload(original / "transcript", m) for m in read_messages(original / "transcript")]
    whole = [p for p in (original / "vault").rglob("*") if p.is_file()]
    vault = [p for p in whole if p.read_bytes() not in sent]
    # The released model lies in the transcript too, as the message to the world that it was.
    assert [p.name for p in whole if p not in vault] == ["server.safetensors"]
    needles = [
        secret,
        secrets["secret"].encode(),
        secrets["secret"].upper().encode(),
        str(seed).encode(),
        f"{seed:x}".encode(),
        seed.to_bytes(8, "big"),
        seed.to_bytes(8, "little"),
        *(sha(p).encode() for p in vault),
        *(bytes.fromhex(sha(p)) for p in vault),
        *(p.read_bytes() for p in vault if p.stat().st_size > 8),
    ]
    needles += [base64.b64encode(secret)[:40]]
    texts = {**tree(bundle, ()), "the statement": payload_of(bundle)}
    assert len(texts) > 50
    for name, data in texts.items():
        assert [n for n in needles if n in data] == [], name
    assert any(str(seed).encode() in p.read_bytes() for p in vault), "the search finds what is there"


def test_the_environment_and_the_tool_are_named(bundle: Path) -> None:
    found = json.loads((bundle / "environment.json").read_bytes())
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == version("torch")
    assert found["tool"]["version"] == version("fdaudit")
    text = json.dumps(found)
    assert platform.node() not in text or not platform.node()
    assert str(Path.home()) not in text
    found = {}
    for room in ("fdaudit", "attacks", "defenses", "deviations", "protocols", "reports"):
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                name = path.relative_to(ROOT).as_posix()
                found[name if room == "fdaudit" else f"fdaudit/{name}"] = sha(path)
    stated = statement_of(bundle)["predicate"]["tool"]
    assert stated["source_sha256"] == hashlib.sha256(canonical(found)).hexdigest()
    assert stated == tool()
    assert fdaudit.Run(bundle / "run").verify() == []
    assert read_manifest(bundle / "run")["messages"] == 9


def test_the_commit_of_a_checkout_is_what_git_says(tmp_path: Path) -> None:
    """On a branch, packed, detached, in a second working tree; none where there is no repository."""

    def git(*arguments: str, at: Path) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
        done = subprocess.run(["git", *name, *arguments], cwd=at, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert _checked_out(tmp_path) is None
    root = tmp_path / "root"
    root.mkdir()
    git("init", at=root)
    assert _checked_out(root) is None
    git("commit", "--allow-empty", "-m", "first", at=root)
    first = git("rev-parse", "HEAD", at=root)
    assert _checked_out(root) == first
    git("pack-refs", "--all", at=root)
    assert _checked_out(root) == first
    git("worktree", "add", "../second", at=root)
    git("commit", "--allow-empty", "-m", "second", at=tmp_path / "second")
    assert _checked_out(tmp_path / "second") == git("rev-parse", "HEAD", at=tmp_path / "second") != first
    git("checkout", "--detach", at=root)
    assert _checked_out(root) == first


def test_a_run_that_takes_a_larger_statement_than_is_read_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.attestation.bundle.MOST_BYTES", 10_000)
    assert "a statement of" in str(refused(run, tmp_path / "made"))


def test_the_statement_says_what_the_run_says(original: Path, bundle: Path) -> None:
    """Each fact worked out here from the run's own files."""
    statement = statement_of(bundle)
    assert canonical(statement) == payload_of(bundle)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:fdaudit:evidence:v2"
    names = [s["name"] for s in statement["subject"]]
    assert names == sorted(tree(bundle, ("statement.dsse.json",)))
    assert all(s["digest"] == {"sha256": sha(bundle / s["name"])} for s in statement["subject"])

    said, result = statement["predicate"], json.loads((original / "result.json").read_bytes())
    manifest = json.loads((original / "manifest.json").read_bytes())
    assert said["run"] == {
        "name": "Straße <b>",
        "spec_sha256": fdaudit.load_spec(original / "spec.yaml").digest(),
        "head": manifest["head"],
        "messages": manifest["messages"],
        "origin": "simulation",
        "manifest_self": manifest["self"],
        "result_sha256": sha(original / "result.json"),
    }
    assert {g["name"]: (g["value"], g["passed"]) for g in said["gates"]} == {
        g["name"]: (g["value"], g["passed"]) for g in result["gates"]
    }
    assert {g["name"] for g in said["gates"]} == {"membership_auc", "epsilon"}
    assert {v["cell"]: v["level"] for v in said["verdicts"]} == {
        f.cell.id: f.level for f in judge_all(read(result))
    }
    assert {row["adversary"]: row["epsilon"] for row in said["ledger"]} == {"server": None, "world": None}
    assert {c["verdict"] for c in said["checks"]} == {"nothing-claimed"}
    assert said["auditor_only"] is True
    assert said["tool"]["version"] == version("fdaudit")
    assert any(name.startswith("scores/world-loss-threshold/") for name in said["vault"]["files"])


def test_unsigned_it_says_so_and_is_the_same_otherwise(run: Path, bundle: Path, tmp_path: Path) -> None:
    made = fdaudit.evidence(fdaudit.load(run), tmp_path / "made")
    assert envelope_of(made)["signatures"] == []
    assert len(envelope_of(bundle)["signatures"]) == 1
    ours, theirs = statement_of(made)["predicate"], statement_of(bundle)["predicate"]
    assert {**ours, "written": ""} == {**theirs, "written": ""}
    assert tree(made, ("statement.dsse.json",)) == tree(bundle, ("statement.dsse.json",))


def test_temporary_files_stay_behind(run: Path, tmp_path: Path) -> None:
    (run / "attacks" / ".server-dlg.json.tmp").write_bytes(b"half")
    (run / ".result.json.tmp").write_bytes(b"half")
    (run / ".result.json.4x7q.part").write_bytes(b"half")
    (run / "report" / ".index.html.4x7q.part").write_bytes(b"half")
    made = fdaudit.evidence(fdaudit.load(run), tmp_path / "made")
    assert not [name for name in tree(made, ()) if name.endswith((".tmp", ".part"))]


@pytest.mark.thorough
def test_the_report_is_made_anew_whatever_lies_in_the_run(run: Path, bundle: Path, tmp_path: Path) -> None:
    for name in ("index.html", "index.json", "notes.html"):
        (run / "report" / name).write_text("No leak was found.", encoding="utf-8")
    made = fdaudit.evidence(fdaudit.load(run), tmp_path / "made")
    assert tree(made / "run" / "report", ()) == tree(bundle / "run" / "report", ())
    shutil.rmtree(run / "report")
    made = fdaudit.evidence(fdaudit.load(run), tmp_path / "again")
    assert sorted(tree(made / "run" / "report", ())) == ["appendix.html", "index.html", "index.json"]


# -- what is refused ----------------------------------------------------------------------------------------------


def refused(run: Path, out: Path, *, sign: Path | None = None) -> Any:
    """The refusal; nothing may be written, and nothing left over."""
    before = set(out.parent.iterdir()) if out.parent.is_dir() else set()
    with pytest.raises((UsageError, IntegrityError)) as caught:
        fdaudit.evidence(fdaudit.Run(run), out, sign=sign)
    after = set(out.parent.iterdir()) if out.parent.is_dir() else set()
    assert before == after
    return caught.value


def test_an_unfinished_run_is_refused(run: Path, tmp_path: Path) -> None:
    (run / "result.json").rename(tmp_path / "kept")
    assert "no result yet" in str(refused(run, tmp_path / "made"))
    (run / "manifest.json").unlink()
    error = refused(run, tmp_path / "made")
    assert isinstance(error, RunError)
    assert "no manifest" in str(error)


def test_a_place_that_is_taken_or_inside_the_run_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "file").write_bytes(b"")
    for name in ("empty", "dead", "file"):
        assert "exists already" in str(refused(run, tmp_path / name))
    for place in (run, run / "vault"):
        assert "in the run" in str(refused(run, place / "made"))
    assert "cannot be made" in str(refused(run, tmp_path / "file" / "made"))


def test_what_is_no_part_of_a_run_is_refused_by_its_name(run: Path, tmp_path: Path) -> None:
    for name in ("notes.txt", "vault.bak/secrets.json", "attacks/with a space", "attacks/ü", "attacks/notes.txt",
                 "transcript/payloads/00000000.safetensors.part", "result.json.part"):  # fmt: skip
        path = run / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        assert name.split("/")[0] in str(refused(run, tmp_path / "made"))
        shutil.rmtree(path.parent) if path.parent.name == "vault.bak" else path.unlink()
    link = run / "attacks" / "link.json"
    link.symlink_to(run / "vault" / "secrets.json")
    assert "link.json" in str(refused(run, tmp_path / "made"))
    link.unlink()
    os.mkfifo(run / "attacks" / "pipe")
    assert "pipe" in str(refused(run, tmp_path / "made"))


@pytest.mark.thorough
def test_a_changed_record_and_a_foreign_result_are_no_evidence(run: Path, tmp_path: Path) -> None:
    flip(run / "utility.csv", -2)
    assert "utility.csv" in str(refused(run, tmp_path / "made"))
    flip(run / "utility.csv", -2)
    result = json.loads((run / "result.json").read_bytes())
    for name, value in {"head": "0" * 64, "messages": 1, "spec_sha256": "0" * 64}.items():
        changed = {**result, "run": {**result["run"], name: value}}
        (run / "result.json").write_text(json.dumps(changed), encoding="utf-8")
        error = refused(run, tmp_path / "made")
        assert isinstance(error, IntegrityError)
        assert name in str(error)


def test_a_judgement_that_contradicts_its_cells_is_believed_by_nothing(run: Path, tmp_path: Path) -> None:
    path = run / "result.json"
    stored = json.loads(path.read_bytes())
    assert fdaudit.load(run).verify() == []
    (mild, *_) = [one for one in stored["judgement"]["cells"] if one["level"] != "not-requested"]
    mild["level"] = "not-requested"
    path.write_text(json.dumps(stored), encoding="utf-8")
    for use in (
        fdaudit.report,
        lambda read: fdaudit.evidence(read, tmp_path / "made"),
        lambda read: read.result,
    ):
        with pytest.raises(FdauditError, match="contradicts the cells"):
            use(fdaudit.load(run))
    (finding,) = fdaudit.load(run).verify()
    assert "'not-requested' contradicts" in finding
    assert "--resume --out RUN" in finding
    fdaudit.run(None, run, resume=True)
    assert fdaudit.load(run).verify() == []


@pytest.mark.thorough
def test_an_outcome_that_the_result_lacks_is_no_evidence_until_the_run_is_concluded(
    run: Path, tmp_path: Path
) -> None:
    """As after an attack that was killed before its result was written."""
    path = run / "attacks" / "world-loss-threshold.json"
    cell = json.loads(path.read_bytes())
    again = {**cell, "reason": "run again"}
    vault = Vault(run / "vault")
    vault.save(_scores_of(again), vault.load(_scores_of(cell)))
    path.write_text(json.dumps(again), encoding="utf-8")
    assert "lie in attacks/" in str(refused(run, tmp_path / "made"))
    fdaudit.run(None, run, resume=True)
    made = fdaudit.evidence(fdaudit.load(run), tmp_path / "made")
    assert (made / "run" / "attacks" / path.name).read_bytes() == path.read_bytes()


def test_a_wrong_key_or_a_missing_vault_is_refused(run: Path, tmp_path: Path) -> None:
    _, public = keypair(tmp_path)
    assert "a public key" in str(refused(run, tmp_path / "made", sign=public))
    shutil.rmtree(run / "vault")
    assert "vault" in str(refused(run, tmp_path / "made"))


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_command_signs_and_says_that_it_is_the_auditors(
    run: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = keypair(tmp_path, passphrase=b"open sesame")
    made = tmp_path / "made"
    monkeypatch.delenv("FDAUDIT_KEY_PASSPHRASE", raising=False)
    code, out, err = cli("evidence", run, "--out", made, "--sign", private)
    assert (code, out, made.exists()) == (2, "", False)
    assert "FDAUDIT_KEY_PASSPHRASE" in err
    monkeypatch.setenv("FDAUDIT_KEY_PASSPHRASE", "open sesame")
    code, out, err = cli("evidence", run, "--out", made, "--sign", private)
    assert (code, err) == (0, "")
    assert sum("auditor only" in line for line in out.splitlines()) == 1
    assert envelope_of(made)["signatures"][0]["keyid"] in out
    code, out, err = cli("evidence", run, "--out", tmp_path / "again", "--json")
    value = json.loads(out)
    assert (code, err, len(out.splitlines())) == (0, "", 1)
    files = len(tree(made, ("statement.dsse.json",)))
    assert value == {
        "evidence": str(tmp_path / "again"),
        "files": files,
        "signed_by": None,
        "auditor_only": True,
    }
    code, out, err = cli("verify", made, "--key", public)
    assert (code, err) == (0, "")
