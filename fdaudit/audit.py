"""The audit: spec -> plan -> federation -> transcript -> views -> attacks -> figures -> result, on one screen."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from fdaudit import heap
from fdaudit.attack_stage import Tick, attack_cells, note_time, stand_by
from fdaudit.conclusion import conclude
from fdaudit.controls.kept import take_controls
from fdaudit.elsewhere import HERE, Elsewhere
from fdaudit.errors import RunError, SpecError
from fdaudit.locks import make_private, together, writing
from fdaudit.manifest import MANIFEST, read_manifest, refuse_changed, write_manifest
from fdaudit.plan import Plan, make_plan
from fdaudit.simulation import federate
from fdaudit.spec import Spec, load_spec
from fdaudit.storage import load_json, save_json, write_atomically
from fdaudit.transcript import Position
from fdaudit.vault import Secrets, Vault

__all__ = ["attacked", "commitments", "federated", "perform", "reopen"]

_PACKAGES = ("fdaudit", "numpy", "safetensors", "scikit-learn", "scipy", "torch", "torchvision")


def perform(
    source: Spec | Path | str | dict[str, Any] | None,
    out: Path,
    *,
    resume: bool = False,
    seed_from: Path | None = None,
    elsewhere: Elsewhere = HERE,
    tick: Tick = lambda what, done, total: None,
) -> None:
    """Runs a spec into a run directory: federation, transcript, attacks, result.

    Args:
        source: the spec; None with `resume` takes the one in the run directory.
        out: the run directory; must not exist yet, unless `resume`.
        resume: go on from the last whole round.
        seed_from: a run directory whose vault's seed and secret are used again, and outcomes of controls where
            they depend on nothing else.
        elsewhere: other machines' part in it.
        tick: called with what is under way, how far it is, and of how much.

    Raises:
        UsageError: the spec is wrong, or the directory is occupied or being written; nothing was written.
    """
    with together():
        plan = federated(source, out, resume=resume, seed_from=seed_from, elsewhere=elsewhere, tick=tick)
        attacked(plan, out, seed_from=seed_from, elsewhere=elsewhere, tick=tick)


def federated(
    source: Spec | Path | str | dict[str, Any] | None,
    out: Path,
    *,
    resume: bool = False,
    seed_from: Path | None = None,
    elsewhere: Elsewhere = HERE,
    tick: Tick = lambda what, done, total: None,
) -> Plan:
    """The first half of `perform`, with its arguments: federation and transcript, sealed."""
    with ExitStack() as held:
        if out.is_dir():
            held.enter_context(writing(out))
        spec = _the_spec(source, out, resume)
        secrets = _the_secrets(spec, out, resume, seed_from)
        plan = make_plan(spec, secrets)
        make_private(out)
        held.enter_context(writing(out))
        _refuse_begun_meanwhile(spec, out, resume, seed_from, secrets)
        plan.execution.begin()
        _open_directory(plan, out, secrets)
        if seed_from is not None and (shown := Vault(seed_from / "vault").handed_out):
            Vault(out / "vault").note_handed_out(shown)  # the same secret means the same candidates
        if (out / MANIFEST).is_file():
            refuse_changed(out)
            return plan
        if elsewhere.cells is None:
            stand_by(plan)
        tick(plan.protocol.name, 0, plan.protocol_config.rounds)  # type: ignore[attr-defined]
        seconds = time.perf_counter()
        end = federate(plan, out, tick)
        _seal(plan, out, secrets, end)
        heap.give_back()
        note_time(out, "federation", time.perf_counter() - seconds)
        return plan


def attacked(
    plan: Plan,
    out: Path,
    *,
    seed_from: Path | None = None,
    beside: Sequence[Path] = (),
    elsewhere: Elsewhere = HERE,
    tick: Tick = lambda what, done, total: None,
) -> None:
    """The second half of `perform`: the attacks on a sealed record, and the result; `beside` as in `attack_cells`."""
    with writing(out):
        if seed_from is not None:
            take_controls(seed_from, out)
        attack_cells(plan, out, beside=beside, workers=elsewhere.cells, tick=tick)
        conclude(plan, out)


def reopen(run: Path) -> Plan:
    """The plan of an existing run, from its spec and its vault.

    Raises:
        RunError: there is no run, or its data cannot be had any more.
        IntegrityError: its record was changed: figures from it would stand under a head that is not theirs.
    """
    spec = _the_spec(None, run, resume=True)
    plan = make_plan(spec, Vault(run / "vault").secrets)
    refuse_changed(run)
    stated = read_manifest(run)["commitments"]
    for name, found in commitments(plan, Vault(run / "vault").secrets).items():
        if stated.get(name) != found:
            problem = f"does not have the {name} that its manifest commits to"
            raise RunError("run", str(run), problem, "Restore the dataset and the vault it was run with.")
    plan.execution.begin()
    return plan


# -- the stages -----------------------------------------------------------------------------------------------


def _seal(plan: Plan, run: Path, secrets: Secrets, end: Position) -> None:
    """Writes the manifest: the federation is over, and changes to its record become visible."""
    write_manifest(
        run,
        {
            "head": end.head,
            "messages": end.seq,
            "commitments": commitments(plan, secrets),
            "spec_sha256": plan.spec.digest(),
            "versions": {**{p: version(p) for p in _PACKAGES}, "python": platform.python_version()},
        },
    )


# -- details --------------------------------------------------------------------------------------------------


def commitments(plan: Plan, secrets: Secrets) -> dict[str, str]:
    """Salted commitments to the seed, the data and each split; unsalted ones would test membership."""
    tensors = plan.splits.to_dict()
    parts = {f"split {name}": tensors[name].numpy().tobytes() for name in sorted(tensors)}
    return {
        "seed": secrets.commit("seed", secrets.seed.to_bytes(8, "big")),
        "data": secrets.commit("data", plan.dataset.sha256().encode()),
        **{name: secrets.commit(name, data) for name, data in parts.items()},
    }


def _the_spec(source: Spec | Path | str | dict[str, Any] | None, out: Path, resume: bool) -> Spec:
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
            # The run's own spec holds what the rules chose, and no seed: that lies in the vault.
            open_here = field == "seed" or (field in left_open and ours[field] == left_open[field])
            if not open_here and ours[field] != theirs[field]:
                problem = f"differs from the run's own: {theirs[field]!r}"
                raise SpecError(field, ours[field], problem, "Resume with the run's own spec.")
        return earlier.model_copy(update={"seed": spec.seed})
    return spec


def _the_secrets(spec: Spec, out: Path, resume: bool, seed_from: Path | None) -> Secrets:
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


def _refuse_begun_meanwhile(
    spec: Spec, out: Path, resume: bool, seed_from: Path | None, secrets: Secrets
) -> None:
    """Looks again once nobody else can write: the plan was made while another process could still begin a run."""
    begun = (out / "vault" / "secrets.json").is_file()
    if begun and _the_secrets(spec, out, resume, seed_from) != secrets:
        raise RunError(
            "out", str(out), "was begun by another process", "Resume it, or choose another directory."
        )


def _open_directory(plan: Plan, run: Path, secrets: Secrets) -> None:
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
    """A run goes on with the records it began with; the first opening notes what they commit to."""
    path, found = vault.directory / "commitments.json", commitments(plan, secrets)
    if not path.is_file():
        save_json(path, found)
    begun = load_json(path)
    for name in found:
        if not isinstance(begun, dict) or begun.get(name) != found[name]:
            problem = f"differs in its {name} from what the run began with"
            raise RunError("dataset", plan.spec.dataset.name, problem, "Restore it, or start a new run.")
