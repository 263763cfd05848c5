"""A run directory with its spec, secrets and plan: create, reopen, resume or refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fdaudit.errors import RunError, SpecError
from fdaudit.planning.plan import Plan, make_plan
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.storage.files import load_json, save_json, write_atomically
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.manifest import read_manifest, refuse_changed

__all__ = ["commitments", "open_directory", "refuse_begun_meanwhile", "reopen", "the_secrets", "the_spec"]


def reopen(run: Path) -> Plan:
    """Return the plan of an existing run, from its spec and its vault.

    Raises:
        RunError: there is no run, or its data are no longer available.
        IntegrityError: its record was changed, so new figures would be attributed to the wrong record.
    """
    spec = the_spec(None, run, resume=True)
    plan = make_plan(spec, Vault(run / "vault").secrets)
    refuse_changed(run)
    stated = read_manifest(run)["commitments"]
    for name, found in commitments(plan, Vault(run / "vault").secrets).items():
        if stated.get(name) != found:
            problem = f"does not have the {name} that its manifest commits to"
            raise RunError("run", str(run), problem, "Restore the dataset and the vault it was run with.")
    plan.execution.begin()
    return plan


def commitments(plan: Plan, secrets: Secrets) -> dict[str, str]:
    """Return salted commitments to the seed, the data and each split. Without a salt they would reveal membership."""
    tensors = plan.splits.to_dict()
    parts = {f"split {name}": tensors[name].numpy().tobytes() for name in sorted(tensors)}
    return {
        "seed": secrets.commit("seed", secrets.seed.to_bytes(8, "big")),
        "data": secrets.commit("data", plan.dataset.sha256().encode()),
        **{name: secrets.commit(name, data) for name, data in parts.items()},
    }


def the_spec(source: Spec | Path | str | dict[str, Any] | None, out: Path, resume: bool) -> Spec:
    """Return the spec of a run: the given one, or the run's own. A resumed run must have begun with the given spec.

    Raises:
        RunError: a run exists and `resume` is false, no run exists to resume, or it began with another spec.
    """
    kept = out / "spec.yaml"
    if source is None:
        if not resume or not kept.is_file():
            raise RunError("run", str(out), "is no run directory", "Give a spec, or the directory of a run.")
        return load_spec(kept)
    spec = load_spec(source)
    if resume and kept.is_file():
        earlier = load_spec(kept)
        ours, theirs = spec.model_dump(), earlier.model_dump()
        open_ = ("threads", "device", "strategy", "memory_format", "precision", "compile")
        left_open = {field: Spec.model_fields[field].default for field in open_}
        # What a preset stands for is written out in the run's own spec.
        expanded = (
            {"protocol", "defenses", "withhold"} if spec.preset and not spec.preset.written_out else set()
        )
        if expanded and earlier.preset is not None:
            theirs["preset"] = {**theirs["preset"], "written_out": False}
        for field in ours.keys() - expanded:
            # The run's own spec contains the settings that rules chose, but no seed: the vault holds it.
            open_here = field == "seed" or (field in left_open and ours[field] == left_open[field])
            if not open_here and ours[field] != theirs[field]:
                problem = f"differs from the run's own: {theirs[field]!r}"
                raise SpecError(field, ours[field], problem, "Resume with the run's own spec.")
        return earlier.model_copy(update={"seed": spec.seed})
    return spec


def the_secrets(spec: Spec, out: Path, resume: bool, seed_from: Path | None) -> Secrets:
    """Return the secrets of a run: its own if it has begun, those of the run `seed_from`, or new ones.

    Raises:
        RunError: the directory is not a run's, or its secrets are not those of `seed_from`.
    """
    if not out.is_dir() and (out.exists() or out.is_symlink()):
        raise RunError("out", str(out), "is not a directory", "Choose another directory.")
    if not resume and out.exists() and any(out.iterdir()):
        raise RunError("out", str(out), "exists already", "Choose another directory, or add --resume.")
    if resume and out.exists() and any(out.iterdir()) and not (out / "vault").is_dir():
        raise RunError("out", str(out), "is not a run directory", "Choose another directory.")
    given = None if seed_from is None else Vault(seed_from / "vault").secrets
    begun = resume and (out / "vault" / "secrets.json").is_file()
    secrets = Vault(out / "vault").secrets if begun else given or Secrets.draw(spec.seed)
    if spec.seed not in (None, secrets.seed):
        raise SpecError("seed", spec.seed, "is not the seed in the vault", "Leave it out.")
    if given not in (None, secrets):
        raise RunError("seed-from", str(seed_from), "has another seed or secret", "Resume without it.")
    return secrets


def refuse_begun_meanwhile(
    spec: Spec, out: Path, resume: bool, seed_from: Path | None, secrets: Secrets
) -> None:
    """Check again, under the write lock, that no other process has begun a run while the plan was made."""
    begun = (out / "vault" / "secrets.json").is_file()
    if begun and the_secrets(spec, out, resume, seed_from) != secrets:
        raise RunError(
            "out", str(out), "was begun by another process", "Resume it, or choose another directory."
        )


def open_directory(plan: Plan, run: Path, secrets: Secrets) -> None:
    """Write the spec, the secrets and the splits of a new run; for a resumed run, check the data.

    Raises:
        RunError: the data are not those that the run began with.
    """
    vault = Vault(run / "vault")
    if not (vault.directory / "secrets.json").is_file():
        vault.create(secrets)
    _refuse_other_data(plan, vault, secrets)
    for leftover in run.rglob(".*.tmp"):  # of a run that was killed between writing a file and naming it
        leftover.unlink()
    vault.save("splits", plan.splits.to_dict())
    text = yaml.safe_dump(plan.spec.public(commitments(plan, secrets)["seed"]), sort_keys=False)
    write_atomically(run / "spec.yaml", text.encode("utf-8"))


def _refuse_other_data(plan: Plan, vault: Vault, secrets: Secrets) -> None:
    """Refuse a resumed run whose records differ. The first opening stores commitments to the records."""
    path, found = vault.directory / "commitments.json", commitments(plan, secrets)
    if not path.is_file():
        save_json(path, found)
    begun = load_json(path)
    for name in found:
        if not isinstance(begun, dict) or begun.get(name) != found[name]:
            problem = f"differs in its {name} from what the run began with"
            raise RunError("dataset", plan.spec.dataset.name, problem, "Restore it, or start a new run.")
