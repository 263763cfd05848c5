"""The bundle: a run's files except the vault, their digests, the environment, a bill of materials, and the statement.

Guarantees:
  * it holds no file of the vault and no temporary file; a file that a run does not write is refused;
  * its report is made from its own result; files in the run's `report/` are ignored;
  * a changed record or an unfinished run is refused, and nothing is written;
  * it appears complete under its name or not at all.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.errors import IntegrityError, RunError
from fdaudit.storage.files import save_json, write_atomically, written_whole
from fdaudit.storage.locks import writing
from fdaudit.storage.tree import refuse_links
from fdaudit.transcript.manifest import read_manifest, verify

from .commitment import commit_to_vault
from .dsse import seal
from .environment import environment, tool
from .listing import ListedFile, digest, is_safe, is_temporary, walk, write_listing
from .page import REPORT, REPORTS, reports
from .sbom import sbom
from .statement import facts, write_statement
from .strict import MOST_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fdaudit.audit.run import Run

__all__ = ["ENVIRONMENT", "FILES", "PARTS", "RESULT", "RUN", "SBOM", "STATEMENT", "evidence", "refuse"]

STATEMENT, FILES, ENVIRONMENT, RUN = "statement.dsse.json", "files.json", "environment.json", "run"
SBOM, RESULT = "sbom.cdx.json", "result.json"
PARTS = frozenset(
    {
        "attacks",
        "card.yaml",
        "manifest.json",
        REPORT,
        RESULT,
        "spec.yaml",
        "timings.json",
        "transcript",
        "utility.csv",
    }
)
"""The entries of a run directory other than the vault."""
_VAULT = "vault"
_KNOWN = re.compile(
    r"(?:manifest|result|timings)\.json|(?:card|spec)\.yaml|utility\.csv"
    r"|transcript/messages\.jsonl|attacks/[^/]+/queries\.jsonl"
    r"|(?:transcript|attacks/[^/]+)/payloads/(?:\d{8}\.safetensors|round-\d{6}\.shard)"
    r"|attacks/(?:controls/)?[^/]+\.json"
    r"|attacks/[^/]+/[^/]+-(?:truth|guess|prior)\.png"
)
"""The files that a run writes: its own, its transcript's and oracle logs', its outcomes, controls and pictures."""


def evidence(
    run: Run,
    out: Path | str,
    *,
    sign: Path | str | None = None,
    passphrase: Callable[[], str | None] = lambda: None,
) -> Path:
    """Write a finished run as evidence: all its files except the vault, their digests, and a statement about them.

    The report is made again from the run's result.

    The bundle holds data derived from the truth, private records among it. Like the run, it is for the auditor only.
    The form to pass on is `fdaudit.attestation.public`.

    Args:
        run: a finished run, with its vault.
        out: a directory that does not exist yet.
        sign: an Ed25519 private key (PEM, PKCS#8); None leaves the statement unsigned.
        passphrase: called for the passphrase of an encrypted key if the environment variable `FDAUDIT_KEY_PASSPHRASE`
            is not set.

    Returns:
        The directory.

    Raises:
        UsageError: the run is unfinished or holds foreign files, `out` exists or cannot be made, or the key is invalid;
            nothing was written.
        IntegrityError: the run's record was changed; nothing was written.
    """
    target, source = Path(out), run.directory
    key = None
    if sign is not None:
        from .keys import private_key

        key = private_key(Path(sign), passphrase)
    refuse(source, target)
    with writing(source):  # no other process changes its attacks or its result meanwhile
        paths = _paths(source)
        with written_whole(target) as scratch:
            _fill(scratch, source, paths, key)
    return target


def refuse(source: Path, target: Path) -> None:
    """Refuse a run without a result, and a place for evidence that is taken or is in the run.

    Raises:
        UsageError: either is so.
        IntegrityError: the run holds a link.
    """
    if target.exists() or target.is_symlink():
        raise RunError("out", str(target), "exists already", "Choose another directory.")
    if target.resolve().is_relative_to(source.resolve()):
        raise RunError("out", str(target), "lies in the run itself", "Choose a directory beside it.")
    read_manifest(source)
    refuse_links(source)
    if not (source / RESULT).is_file():
        raise RunError(
            "run", str(source), "has no result yet", "Finish it with `fdaudit run --resume --out`."
        )


def _paths(source: Path) -> list[str]:
    """Return the run's files, sorted; raise an error that names a file that does not belong there."""
    paths = []
    for path, kind in walk(source):
        top, name = path.partition("/")[0], path.rpartition("/")[2]
        if top in (_VAULT, REPORT) or (kind == "file" and is_temporary(name)):
            continue
        if top not in PARTS:
            raise RunError("run", path, "is no part of a run", "Take it out of the run directory.")
        if kind not in ("file", "folder"):
            raise RunError("run", path, "is no regular file", "Put the file itself there, or take it away.")
        if not is_safe(path):
            problem = "has a name with other characters than letters, digits and . _ + = , @ -"
            raise RunError("run", path, problem, "Rename it, or take it out of the run directory.")
        if kind == "file" and not _KNOWN.fullmatch(path):
            raise RunError("run", path, "is no part of a run", "Take it out of the run directory.")
        if kind == "file":
            paths.append(path)
    return sorted(paths)


def _fill(bundle: Path, source: Path, paths: list[str], key: Ed25519PrivateKey | None) -> None:
    for path in paths:
        (bundle / RUN / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, bundle / RUN / path, follow_symlinks=False)
    findings = verify(bundle / RUN)  # the copy: the run may change meanwhile
    if findings:
        raise IntegrityError(findings)
    for name, text in reports(bundle / RUN).items():
        (bundle / RUN / REPORT).mkdir(exist_ok=True)
        write_atomically(bundle / RUN / name, text)
    save_json(bundle / ENVIRONMENT, environment())
    save_json(bundle / SBOM, sbom())
    names = [ENVIRONMENT, SBOM, *(f"{RUN}/{path}" for path in (*paths, *REPORTS))]
    files = [digest(bundle, name) for name in names]
    write_atomically(bundle / FILES, write_listing(files))
    listed: list[ListedFile] = [*files, digest(bundle, FILES)]
    own = {
        "tool": tool(),
        "vault": commit_to_vault(source / _VAULT),
        "written": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    envelope = seal(write_statement(listed, facts(bundle / RUN), own), key)
    if len(envelope) > MOST_BYTES:
        problem = f"takes a statement of {len(envelope):,} bytes for its {len(listed):,} files"
        raise RunError("run", str(source), problem, f"At most {MOST_BYTES:,} are ever read again.")
    write_atomically(bundle / STATEMENT, envelope)
