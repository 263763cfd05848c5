"""A run on disk: begin, resume, reopen or refuse it; its case, views, truth and scorer.

Guarantee:
  * an existing directory is checked before anything is planned from it: first its record, then the code that its files
    name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from torch import Tensor

from fdaudit.adversary.view import View, view_of
from fdaudit.errors import RunError, SpecError
from fdaudit.handout.oracle_server import Answering
from fdaudit.planning.case import Case
from fdaudit.planning.recorded import recording_in
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.goals.scorer import ScoringInputs
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.scoring import Scorer
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.spec.trust import name_code, refuse_code
from fdaudit.storage.files import load_json, save_json, write_atomically
from fdaudit.storage.locks import make_private, writing
from fdaudit.storage.tree import refuse_links
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.log import read_log
from fdaudit.transcript.manifest import MANIFEST, origin_of, read_manifest, refuse_changed
from fdaudit.transcript.transcript import Position, refuse_broken

if TYPE_CHECKING:
    from fdaudit.transcript.messages import Message

__all__ = ["RunDirectory"]


@dataclass(frozen=True, eq=False)
class RunDirectory:
    """A run on disk, which opens its record, its vault and the truth about it.

    Attributes:
        path: the directory.
        case: the run's case.
    """

    path: Path
    case: Case

    @classmethod
    @contextmanager
    def begun(
        cls,
        source: Spec | Path | str | dict[str, Any] | None,
        path: Path,
        *,
        resume: bool = False,
        seed_from: Path | None = None,
    ) -> Iterator[RunDirectory]:
        """Begin a run, or resume one, and hold its directory for this process alone.

        Args:
            source: the spec; None with `resume` takes the one in the directory.
            path: the directory; must not exist yet, unless `resume`.
            resume: continue a run that has begun.
            seed_from: a run directory whose seed and secret are used again.

        Raises:
            UsageError: the spec is wrong, or the directory is occupied or being written, or it names code that
                is not trusted; nothing was written.
            IntegrityError: the run was changed; nothing was written.
        """
        if (path / MANIFEST).is_file() and origin_of(read_manifest(path)) == "recording":
            problem = "is a recording: its federation ran elsewhere"
            remedy = "Attack it with `fdaudit attack`, or choose another directory."
            raise RunError("out", str(path), problem, remedy)
        with ExitStack() as locks:
            if path.is_dir():
                locks.enter_context(writing(path))
                # Any other directory is refused below, for what it is.
                if any(os.path.lexists(path / name) for name in ("spec.yaml", "vault")):
                    refuse_links(path)
            if resume:
                _refuse_changed_so_far(path)
            spec = _the_spec(source, path, resume)
            secrets = _the_secrets(spec, path, resume, seed_from)
            run = cls(path, simulated_case(spec, secrets))
            make_private(path)
            locks.enter_context(writing(path))
            # Another process may have begun a run here while the case was made.
            if run._has_begun and _the_secrets(spec, path, resume, seed_from) != secrets:
                problem = "was begun by another process"
                raise RunError("out", str(path), problem, "Resume it, or choose another directory.")
            run.case.execution.begin()
            run._write(secrets)
            if seed_from is not None:
                clients = Vault(seed_from / "vault").handed_out
                if clients:
                    run.vault.note_handed_out(clients)  # the same secret means the same candidates
            yield run

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """Return an existing run.

        Raises:
            RunError: there is no run, or its data are no longer available.
            SpecError: it names code that is not trusted.
            IntegrityError: its record was changed, so new figures would be attributed to the wrong record.
        """
        refuse_changed(path)
        spec, manifest = _the_spec(None, path, resume=True), read_manifest(path)
        secrets = Vault(path / "vault").secrets
        if origin_of(manifest) == "recording":
            case: Case = recording_in(path, spec, secrets, manifest["recording"])
        else:
            case = simulated_case(spec, secrets)
        run = cls(path, case)
        for name, commitment in run.commitments.items():
            if manifest["commitments"].get(name) != commitment:
                problem = f"does not have the {name} that its manifest commits to"
                remedy = "Restore the dataset and the vault it was run with."
                raise RunError("run", str(path), problem, remedy)
        run.case.execution.begin()
        return run

    @cached_property
    def vault(self) -> Vault:
        """Return the run's vault."""
        return Vault(self.path / "vault")

    # -- the record -------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest of a sealed run, as `read_manifest` checks it."""
        return read_manifest(self.path)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the messages that are on record by now."""
        return read_log(self.path / "transcript").messages

    def view(self, adversary: str) -> View:
        """Return what an adversary saw, with the records of its own clients.

        Args:
            adversary: a party, or a coalition `a+b`.

        Raises:
            SpecError: it is no party of the run.
        """
        case = self.case
        own = dict[str, tuple[Tensor, Tensor]]()
        if not case.missing("images"):
            members = adversary.split("+")
            for client in case.clients:
                if client in members:
                    own[client] = case.records(client)
        return view_of(
            self.path / "transcript",
            adversary,
            parties=case.parties,
            hyperparameters=case.settings,
            transport=case.spec.transport,
            own_data=own,
            without=() if case.imported is None else case.imported.not_finite,
        )

    # -- the auditor's side -----------------------------------------------------------------------------------

    @cached_property
    def truth(self) -> Truth:
        """Return what guesses are compared with."""
        return Truth(self.case, self.vault, lambda: self.messages)

    @cached_property
    def answering(self) -> Answering:
        """Return the models that oracles serve."""
        return Answering(self.case, self.vault)

    @cached_property
    def scorer(self) -> Scorer:
        """Return the scorer of the guesses of every goal."""
        case = self.case
        inputs = ScoringInputs(truth=self.truth, run=self.path, answering=self.answering, encode=None)
        # The encoder is a classifier's: it knows no masks.
        if not case.missing("auxiliary") and not case.dataset.task.labels.dense:
            inputs = replace(inputs, encode=case.encoder)
        return Scorer(inputs)

    # -- what it began with -----------------------------------------------------------------------------------

    @cached_property
    def commitments(self) -> dict[str, str]:
        """Return commitments to the seed, the data and each split. Without their salts they would reveal membership."""
        secrets = self.vault.secrets
        commitments = {
            "seed": secrets.commit("seed", secrets.seed.to_bytes(8, "big")),
            "data": secrets.commit("data", self.case.dataset.sha256().encode()),
        }
        for part, rows in sorted(self.case.splits.to_dict().items()):
            name = f"split {part}"
            commitments[name] = secrets.commit(name, rows.numpy().tobytes())
        return commitments

    @property
    def _has_begun(self) -> bool:
        return (self.vault.directory / "secrets.json").is_file()

    def _write(self, secrets: Secrets) -> None:
        """Write the spec, the secrets and the splits of a new run; for a resumed run, check the data.

        The first opening stores commitments to the records.

        Raises:
            RunError: the data are not those that the run began with.
        """
        if not self._has_begun:
            self.vault.create(secrets)
        path = self.vault.directory / "commitments.json"
        if not path.is_file():
            save_json(path, self.commitments)
        earlier = load_json(path)
        for name, commitment in self.commitments.items():
            if not isinstance(earlier, dict) or earlier.get(name) != commitment:
                problem = f"differs in its {name} from what the run began with"
                dataset = self.case.spec.dataset.name
                raise RunError("dataset", dataset, problem, "Restore it, or start a new run.")
        # Of a run that was killed between writing a file and naming it.
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink()
        self.vault.save("splits", self.case.splits.to_dict())
        text = yaml.safe_dump(self.case.spec.public(self.commitments["seed"]), sort_keys=False)
        write_atomically(self.path / "spec.yaml", text.encode("utf-8"))


def _refuse_changed_so_far(path: Path) -> None:
    """Refuse a run whose record was changed; of an unfinished run, its log up to the last checkpoint."""
    if (path / MANIFEST).is_file():
        refuse_changed(path)
        return
    checkpoint = Vault(path / "vault").load_round()
    if checkpoint is not None:
        refuse_broken(path / "transcript", Position(**checkpoint["transcript"]))


def _the_spec(source: Spec | Path | str | dict[str, Any] | None, out: Path, resume: bool) -> Spec:
    """Return the spec of a run: the given one, or the run's own. A resumed run must have begun with the given spec.

    Raises:
        RunError: a run exists and `resume` is false, no run exists to resume, or it began with another spec.
        SpecError: the run's own spec names code that neither the given spec names nor the user trusts.
    """
    path = out / "spec.yaml"
    if source is None:
        if not resume or not path.is_file():
            raise RunError("run", str(out), "is no run directory", "Give a spec, or the directory of a run.")
        return _kept_spec(path)
    spec = load_spec(source)
    name_code(spec.model_dump(mode="json"))
    if not resume or not path.is_file():
        return spec
    earlier = _kept_spec(path)
    ours, theirs = spec.model_dump(), earlier.model_dump()
    # The run's own spec contains no seed, which the vault holds.
    compared = ours.keys() - {"seed"}
    if spec.preset and not spec.preset.written_out:
        # What a preset stands for is written out in the run's own spec.
        compared -= {"protocol", "defenses", "withhold"}
        if earlier.preset is not None:
            theirs["preset"] = {**theirs["preset"], "written_out": False, "tuned": spec.preset.tuned}
    # The run's own spec contains the settings that rules chose.
    for field in ("threads", "device", "strategy", "memory_format", "precision", "compile"):
        if ours[field] == Spec.model_fields[field].default:
            compared.discard(field)
    for field in compared:
        if ours[field] != theirs[field]:
            problem = f"differs from the run's own: {theirs[field]!r}"
            raise SpecError(field, ours[field], problem, "Resume with the run's own spec.")
    return earlier.model_copy(update={"seed": spec.seed})


def _kept_spec(path: Path) -> Spec:
    """Return the spec in a run directory, which may be a stranger's."""
    spec = load_spec(path)
    refuse_code(spec.model_dump(mode="json"), "spec")
    return spec


def _the_secrets(spec: Spec, out: Path, resume: bool, seed_from: Path | None) -> Secrets:
    """Return the secrets of a run: its own if it has begun, those of the run `seed_from`, or new ones.

    Raises:
        RunError: the directory is not a run's, or its secrets are not those of `seed_from`.
    """
    if not out.is_dir() and (out.exists() or out.is_symlink()):
        raise RunError("out", str(out), "is not a directory", "Choose another directory.")
    occupied = out.exists() and any(out.iterdir())
    if occupied and not resume:
        raise RunError("out", str(out), "exists already", "Choose another directory, or add --resume.")
    if resume and occupied and not (out / "vault").is_dir():
        raise RunError("out", str(out), "is not a run directory", "Choose another directory.")
    of_other = None
    if seed_from is not None:
        of_other = Vault(seed_from / "vault").secrets
    if resume and (out / "vault" / "secrets.json").is_file():
        secrets = Vault(out / "vault").secrets
    else:
        secrets = of_other or Secrets.draw(spec.seed)
    if spec.seed not in (None, secrets.seed):
        raise SpecError("seed", spec.seed, "is not the seed in the vault", "Leave it out.")
    if of_other not in (None, secrets):
        raise RunError("seed-from", str(seed_from), "has another seed or secret", "Resume without it.")
    return secrets
