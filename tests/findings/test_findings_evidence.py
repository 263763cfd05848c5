"""Findings of a red team, fourteen and fifteen: what is given away, what is signed, and what is installed.

Each test states its finding, and works through files and commands that a user has. The others are in
`test_findings.py` and `test_findings_files.py`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fdaudit.reports.curves.curves import Sweep, curves_csv
from fdaudit.reports.curves.sweep_rows import SweepRow, SweepRun

import fdaudit
from fdaudit.attestation.check import verify_bundle
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError
from fdaudit.storage.digests import canonical

from ..helpers import warm
from .findings_cases import Commanded, attacked, commanded, error_of, guesses, home, recorded

pytestmark = pytest.mark.usefixtures("forked_processes")

ROOT = Path(__file__).parents[2]

__all__ = ["commanded", "home", "recorded"]


# -- 14: smaller ones ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_public_page_names_no_place_on_the_auditors_machine(tmp_path: Path) -> None:
    """14. The reason why an attack failed must not show local paths in public."""
    directory, cell = attacked(tmp_path, "stray", "/home/alice-s-laptop/none")
    assert "alice-s-laptop" in cell["reason"]
    page = fdaudit.report(fdaudit.load(directory), tmp_path / "page.html", public=True)
    shown = [p.suffix for p in (page, page.with_suffix(".json")) if "alice-s-laptop" in p.read_text("utf-8")]
    assert not shown, f"a local path stands on the public page ({shown})"


@pytest.mark.thorough
def test_a_report_that_was_edited_is_no_evidence(home: Path) -> None:
    """14. A report that was edited by hand must not be signed as the run's own."""
    page = home / "run" / "report" / "index.html"
    page.write_text(page.read_text("utf-8").replace("</h1>", " FORGED</h1>", 1), "utf-8")
    assert "FORGED" in page.read_text("utf-8")
    bundle = fdaudit.evidence(fdaudit.load(home / "run"), home / "bundle")
    forged = [p.name for p in bundle.rglob("*.html") if "FORGED" in p.read_text("utf-8")]
    assert not forged or verify_bundle(bundle).findings, f"evidence holds the edited {forged} as intact"


def test_half_written_files_are_no_evidence(home: Path) -> None:
    """14. A file that was being written when a process died must not be part of evidence."""
    (home / "run" / "attacks" / ".cell.json.part").write_text("half")
    bundle = fdaudit.evidence(fdaudit.load(home / "run"), home / "bundle")
    assert not (found := [p.name for p in bundle.rglob("*.part")]), f"evidence holds {found}"


def test_nobody_signs_under_a_key_of_small_order(home: Path, commanded: Commanded) -> None:
    """14. A key under which one signature suits every message must be refused."""
    bundle = fdaudit.evidence(fdaudit.load(home / "run"), home / "bundle")
    base = 4 * pow(5, 2**255 - 21, 2**255 - 19) % (2**255 - 19)
    forged = base.to_bytes(32, "little") + (1).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes((1).to_bytes(32, "little"))
    named = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    envelope = json.loads((bundle / "statement.dsse.json").read_bytes())
    envelope["signatures"] = [{"keyid": named, "sig": base64.b64encode(forged).decode()}]
    (bundle / "statement.dsse.json").write_bytes(canonical(envelope) + b"\n")
    pem = home / "key.pub"
    pem.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    code, said, _ = commanded("verify", bundle, "--key", pem)
    assert code == 2, f"a signature that anybody can make ended with {code}: {said}"


def test_a_heading_of_a_table_is_no_formula() -> None:
    """14. A name in a table's heading must not be computed by a spreadsheet."""
    run = SweepRun(key="0", protocol="fedavg", defence="none", level=1.0, seed=1, status="done")
    text = curves_csv(Sweep(name="s", rows=(SweepRow(run=run, references={"=cmd|' /C calc'!A0": 0.5}),)))
    formulas = [name for name in next(csv.reader(io.StringIO(text))) if name.startswith("=")]
    assert not formulas, f"headings are formulas: {formulas}"


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": "soon"}'])
def test_malformed_times_are_one_error(text: str, home: Path, commanded: Commanded) -> None:
    """14. Times that are none must be one error, not a traceback."""
    (home / "run" / "timings.json").write_text(text)
    found = error_of(lambda: commanded("report", home / "run"))
    assert found is None, f"timings.json of {text} ends in {type(found).__name__}"
    code, _, errors = commanded("report", home / "run")
    assert (code, len(errors.splitlines())) == (2, 1), f"timings.json of {text} ended with {code}"


def test_a_name_given_twice_in_guesses_is_refused(home: Path, commanded: Commanded) -> None:
    """14. JSON of two meanings must be refused."""
    shares = [{"target": "client/0", "distribution": [0.1] * 10}]
    path = guesses(home, home / "handout", label_distribution=shares)
    path.write_text(path.read_text().replace("{", '{"name": "another", ', 1))
    code, _, errors = commanded("score", home / "run", path)
    assert code == 2, "guesses of two names were scored"
    assert "stands twice" in errors


def test_a_manifest_that_is_a_link_is_found(home: Path) -> None:
    """14. A link must not count as the manifest of a run."""
    (home / "run" / "manifest.json").rename(home / "elsewhere")
    (home / "run" / "manifest.json").symlink_to(home / "elsewhere")
    with pytest.raises(IntegrityError, match=r"manifest\.json .* link"):
        fdaudit.load(home / "run")
    assert Run(home / "run").verify(), "a link is verified as the manifest"


@pytest.mark.thorough
def test_what_a_killed_process_left_goes_with_the_next(recorded: Path, tmp_path: Path) -> None:
    """14. Exported views of a process that was killed must not stay in the temporary directory."""
    code = """
import os, signal, sys
from pathlib import Path
import fdaudit
from fdaudit.evaluation.stage import Stage
run = Path(sys.argv[1])
with Stage(fdaudit.load(run).opened).adversary("server"):
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    for ends, wanted in (("dies", -signal.SIGKILL), ("lives", 0)):
        done = warm.run(
            ["-c", code, str(recorded / "run"), ends], env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert done.returncode == wanted
    left = [p.name for p in tmp_path.iterdir() if "fdaudit" in p.name]
    assert not left, f"{left} stays behind"


# -- 15: what is installed ----------------------------------------------------------------------------------------


def test_an_audit_can_be_installed_by_hashes() -> None:
    """15. `make audit LOCKED=1` must install nothing whose hash is not on record."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "audit", "LOCKED=1", f"PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs
    loose = [i for i in installs if "--require-hashes" not in i and "--no-deps" not in i]
    assert not loose, f"installed without a hash: {loose}"


def test_evidence_holds_a_bill_of_materials(home: Path) -> None:
    """15. Evidence must say what was installed, in a form that tools read."""
    bundle = fdaudit.evidence(fdaudit.load(home / "run"), home / "bundle")
    bills = [
        v for p in bundle.glob("*.json") if (v := json.loads(p.read_bytes())).get("bomFormat") == "CycloneDX"
    ]
    assert len(bills) == 1, "evidence holds no bill of materials"
    assert {"torch", "opacus", "pytorch-fid", "lpips"} <= {c["name"] for c in bills[0]["components"]}


def test_every_installed_distribution_is_explained() -> None:
    """15. The docs must list every distribution of the audit's environment."""
    locks = [p.read_text("utf-8") for p in (ROOT / ".lock").glob("*.txt")]
    assert locks, "there is no lock"
    with (ROOT / "docs" / "dependencies.csv").open(encoding="utf-8", newline="") as file:
        explained = {row["Distribution"] for row in csv.DictReader(file) if row["What it is for"]}
    locked = {name for text in locks for name in re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)}
    assert len(locked) > 60
    assert not (missing := sorted(locked - explained)), f"{missing} are not explained"
