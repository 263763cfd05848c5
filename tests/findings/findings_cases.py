"""A small run, the command line and an installed attack, for the tests of a red team's findings.

They use nothing that came with the remedies, so that the same tests fail where the remedies are absent.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

import fdaudit
from fdaudit import attacks
from fdaudit.errors import FdauditError
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import cli
from ..helpers.warm import forked_attackers

Commanded = Callable[..., tuple[int, str, str]]
SEED = 1234
"""A small seed, which an attacker tries."""
SPEC: Mapping[str, Any] = {
    "seed": SEED,
    "profile": "quick",
    "device": "cpu",
    "threads": 1,
    "clients": 3,
    "victims": 2,
    "dataset": {"name": "digits"},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "splits": {"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 20},
    "model": {"name": "mlp", "params": {"widths": [8]}},
    "protocol": {
        "name": "fedavg",
        "params": {"rounds": 2, "batch_size": 8, "local_epochs": 1, "upload": "model_update"},
    },
    "references": [],
    "adversaries": ["server"],
    "attacks": [],
}
"""Three clients of different classes, two rounds."""


def command(*arguments: object, most_bytes: int) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line in a process of its own, with a limit on its memory."""

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "fdaudit", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    return done.returncode, done.stdout, done.stderr


def error_of(work: Callable[[], object]) -> BaseException | None:
    """Return what a piece of work raises."""
    try:
        work()
    except BaseException as error:
        return error
    return None


def is_one_line(error: BaseException | None) -> bool:
    """Return whether an error is one of fdaudit's own, in one line."""
    return isinstance(error, FdauditError) and "\n" not in str(error)


def digits() -> torch.Tensor:
    """Return all images (1797, 1, 8, 8) of the public dataset."""
    return torch.from_numpy(load_digits().images / 16).float()[:, None]


def of_members(run: fdaudit.Run, x: torch.Tensor, client: str = "client/0") -> torch.Tensor:
    """Which images (n, ...) a client trained on (n,): what the auditor knows."""
    own = {row.numpy().tobytes() for row in run.case.records(client)[0]}
    return torch.tensor([row.numpy().tobytes() in own for row in x])


@pytest.fixture
def commanded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commanded:
    """The command line in this process."""
    return lambda *arguments: cli(monkeypatch, capsys, *arguments)


# -- a run with a report --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a report, and what its client/1 saw."""
    home = tmp_path_factory.mktemp("files")
    run = fdaudit.run(small_spec(attacks=[{"name": "loss-threshold"}]), home / "run")
    fdaudit.report(run)
    fdaudit.export_view(run, "client/1", home / "handout")
    return home


@pytest.fixture
def home(recorded: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(recorded, tmp_path / "home"))


# -- guesses ------------------------------------------------------------------------------------------------------


def guesses(folder: Path, handout: Path, **kinds: Any) -> Path:
    """A file of guesses on what was handed out."""
    card = json.loads((handout / "card.json").read_text())
    about = {
        "schema": "fdaudit-guesses/1",
        "name": "mine",
        "adversary": card["adversary"],
        "view": card["view_sha256"],
    }
    path = folder / "guesses.json"
    path.write_text(json.dumps({**about, **kinds}))
    return path


def memberships(handout: Path, scores: Mapping[str, Iterable[float]]) -> list[dict[str, Any]]:
    issued = json.loads((handout / "card.json").read_text())["challenges"]
    return [{"target": t, "challenge": c["sha256"], "scores": [*scores[t]]} for t, c in issued.items()]


def candidates(handout: Path, client: str = "client/0") -> dict[str, torch.Tensor]:
    """A client's candidates as they are handed out: `x`, `y`, `pair`."""
    return load_file(handout / "challenges" / f"{client.replace('/', '-')}.safetensors")


def reconstruction(folder: Path, run: fdaudit.Run, images: torch.Tensor) -> list[dict[str, Any]]:
    """A guess that images are those of client/0's first update."""
    sent = run.view("server").messages
    seq = next(m.seq for m in sent if (m.kind, m.sender) == ("model_update", "client/0"))
    save_file({"images": images.contiguous()}, folder / "images.safetensors")
    return [{"target": "client/0", "messages": [seq], "images": "images.safetensors"}]


# -- an installed attack ------------------------------------------------------------------------------------------


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """Installs the attack `finder`, as far as Python can tell."""
    package, info = site / "finder_extras", site / "finder_extras-0.1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").touch()
    shutil.copyfile(Path(__file__).with_name("findings_plugin.py"), package / "attack.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: finder-extras\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fdaudit.attacks]\nfinder = finder_extras.attack:Finder\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        attacks.REGISTRY.__dict__.pop("_targets", None)
        yield
    attacks.REGISTRY.__dict__.pop("_targets", None)


def attacked(folder: Path, mode: str, place: str = "") -> tuple[Path, dict[str, Any]]:
    """A run that `finder` has attacked, and the outcome; its server may ask its clients' own models."""
    spec = {
        **SPEC,
        "clients": 2,
        "victims": 1,
        "queries": 60,
        "partition": {"name": "iid"},
        "dataset": {"name": "digits", "limit": 300},
        "splits": {"test": 0.2, "proxy": 0.2, "auxiliary": 0.2, "candidates": 10},
        "protocol": {"name": "fedmd", "params": {"rounds": 1, "warm_up_steps": 1, "local_steps": 1}},
        "attacks": [{"name": "finder", "params": {"mode": mode, "place": place}}],
    }
    with installed(folder / f"site-{mode}"), forked_attackers():
        run = fdaudit.run(spec, folder / mode)
    return run.directory, next(c for c in run.result.plain()["cells"] if c["attack"] == "finder")
