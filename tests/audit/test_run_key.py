"""Runs that share a secret share no noise, no coins and no salts; a run that is repeated has the same."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fdaudit
import fdaudit.evaluation.stage
from fdaudit.rng import SecretStream
from fdaudit.storage.files import decode
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.run_cases import tree

SECRET = bytes(range(32))

GAUSSIAN = {
    "kind": "model_update",
    "sender": "client",
    "name": "gaussian-noise",
    "params": {"clip": 1.0, "sigma": 400.0},
}
"""At a clip of 1 and 314 values, what is sent is noise but for one part in 7,000."""
DP_SGD = {
    "at": "training",
    "name": "dp-sgd",
    "params": {"clip": 1.0, "noise_multiplier": 400.0, "sample_rate": 0.5},
}


def run(home: Path, place: str, /, seed: int = 7, **changes: Any) -> Path:
    """Runs a spec with the shared secret, and with a seed of its own."""
    vault = home / f"seed-{seed}" / "vault"
    if not vault.is_dir():
        Vault(vault).create(Secrets(seed, SECRET))
    return fdaudit.run(small_spec(seed=None, **changes), home / place, seed_from=vault.parent).directory


def sent(directory: Path, kind: str, sender: str = "client/0") -> np.ndarray[Any, Any]:
    """All values of a party's messages of one kind, in order."""
    messages = [
        m
        for m in read_messages(directory / "transcript")
        if (m.kind, m.sender) == (kind, sender) and m.tensors
    ]
    tensors = [
        t for m in messages for _, t in sorted(decode(read_payload(directory / "transcript", m)).items())
    ]
    return torch.cat([t.flatten().double() for t in tensors]).numpy()


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Cosine of the values that both have."""
    n = min(len(a), len(b))
    return float(a[:n] @ b[:n] / np.linalg.norm(a[:n]) / np.linalg.norm(b[:n]))


def chance(n: int) -> float:
    """Six standard deviations of the cosine of n independent normal values."""
    return 6 / n**0.5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared-secret")


@pytest.fixture(scope="module")
def noisy(home: Path) -> Path:
    return run(home, "noisy", defenses=[GAUSSIAN])


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    return run(home, "trained", defenses=[DP_SGD])


@pytest.mark.parametrize("protocol", ["centralized", "fedavg"])
def test_two_noise_levels_under_one_secret_do_not_give_the_private_model(home: Path, protocol: str) -> None:
    """2y(σ) - y(2σ) is the private model where both have one draw of noise: then its cosine is 0.9999994."""
    sender = "client/0" if protocol == "centralized" else "server"
    entry = {**GAUSSIAN, "kind": "model_parameters", "sender": sender.partition("/")[0]}
    params = {"rounds": 1, "batch_size": 16}

    def published(sigma: float | None) -> np.ndarray[Any, Any]:
        at = [] if sigma is None else [{**entry, "params": {"clip": 1.0, "sigma": sigma}}]
        asked = {"protocol": {"name": protocol, "params": params}, "adversaries": ["world"]}
        made = run(home, f"{protocol}-{sigma}", **asked, defenses=at)
        return sent(made, "model_parameters", sender)[-314:]

    private, one, two = published(None), published(400.0), published(800.0)
    assert abs(cosine(2 * one - two, private)) < chance(314)


OTHERS: dict[str, dict[str, Any]] = {
    "noise": {"defenses": [{**GAUSSIAN, "params": {"clip": 1.0, "sigma": 800.0}}]},
    "clip": {"defenses": [{**GAUSSIAN, "params": {"clip": 0.5, "sigma": 400.0}}]},
    "records": {"dataset__limit": 101},
    "partition": {"partition": {"name": "dirichlet", "alpha": 1.0}},
    "clients": {"clients": 3},
    "seed": {"seed": 8},
    "attacks": {"attacks": [{"name": "loss-threshold", "adversaries": ["server"]}]},
    "adversaries": {"adversaries": ["client/0"]},
    "learning-rate": {"protocol__params__lr": 0.2},
    "strategy": {"strategy": "stacked"},
    "canaries": {"canaries": {"count": 4, "clients": [0], "guesses": 2}},
    "name": {"name": "another"},
}


def assert_unrelated(one: Path, two: Path) -> None:
    """Check that the updates of two runs are no more alike than by chance."""
    first, second = sent(one, "model_update"), sent(two, "model_update")
    assert abs(cosine(first, second)) < chance(len(first))


IN_TRAINING = ("records", "seed", "clients", "attacks", "learning-rate")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("noise", "other"),
    [*(("noisy", other) for other in OTHERS), *(("trained", other) for other in IN_TRAINING)],
)
def test_one_setting_that_differs_makes_other_noise(
    home: Path, request: pytest.FixtureRequest, noise: str, other: str
) -> None:
    defence = GAUSSIAN if noise == "noisy" else DP_SGD
    again = run(home, f"{noise}-{other}", **{"defenses": [defence], **OTHERS[other]})
    assert_unrelated(request.getfixturevalue(noise), again)


def test_files_of_the_same_name_with_other_records_make_other_noise(home: Path, tmp_path: Path) -> None:
    """The spec names a file; its content is not in the spec."""
    generator, found = np.random.default_rng(0), []
    for turn in ("one", "two"):
        x = generator.integers(0, 256, (100, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / "records.npz", train_images=x, train_labels=np.arange(100) % 10)
        dataset = {"name": f"npz:{tmp_path / 'records.npz'}"}
        found.append(sent(run(home, f"file-{turn}", dataset=dataset, defenses=[GAUSSIAN]), "model_update"))
    assert abs(cosine(*found)) < chance(len(found[0]))


def test_another_network_under_the_same_import_path_makes_other_noise(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for slope in (0.1, 0.2):
        (tmp_path / "a_strangers_network.py").write_text(
            "from torch import nn\n\n"
            "class Net(nn.Sequential):\n"
            "    def __init__(self, classes):\n"
            f"        super().__init__(nn.Flatten(), nn.Linear(64, classes), nn.LeakyReLU({slope}))\n"
        )
        importlib.invalidate_caches()
        sys.modules.pop("a_strangers_network", None)
        model = {"name": "import:a_strangers_network:Net"}
        made = run(home, f"network-{slope}", model=model, defenses=[GAUSSIAN])
        found.append(sent(made, "model_update"))
    assert abs(cosine(*found)) < chance(len(found[0]))


HELPED = """
from torch import nn
from a_package import layers


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return layers.last(self.layer(x.flatten(1)))
"""
LAYERS = """
def last(x):
    from .slopes import SLOPE
    return (x * SLOPE).relu()
"""


def test_an_edit_of_what_a_network_imports_makes_other_noise(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class's own file stays as it is: the edit is two imports away, one of them inside a function."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("")
    (tmp_path / "a_helped_network.py").write_text(HELPED)
    (tmp_path / "a_package" / "layers.py").write_text(LAYERS)
    found = []
    for slope in (1.0, 1.1):
        (tmp_path / "a_package" / "slopes.py").write_text(f"SLOPE = {slope}\n")
        importlib.invalidate_caches()
        for name in [n for n in sys.modules if n.startswith(("a_helped", "a_package"))]:
            del sys.modules[name]
        model = {"name": "import:a_helped_network:Net"}
        made = run(home, f"helped-{slope}", model=model, defenses=[GAUSSIAN])
        found.append(sent(made, "model_update"))
    assert abs(cosine(*found)) < chance(len(found[0]))


def test_another_version_of_fdaudit_makes_other_noise(
    home: Path, noisy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.planning.simulated.own_digest", lambda: "0" * 64)
    assert_unrelated(noisy, run(home, "noisy-version", defenses=[GAUSSIAN]))


def test_a_run_that_is_repeated_has_the_same_bytes(home: Path, noisy: Path, trained: Path) -> None:
    for first, defence in ((noisy, GAUSSIAN), (trained, DP_SGD)):
        again = run(home, f"{first.name}-again", defenses=[defence])
        assert tree(again / "transcript") == tree(first / "transcript")
        written = fdaudit.run(first / "spec.yaml", home / f"{first.name}-written", seed_from=first).directory
        assert tree(written / "transcript") == tree(first / "transcript")


def test_salts_of_one_run_open_no_message_of_another(home: Path, noisy: Path) -> None:
    again = run(home, "noisy-salts", defenses=[GAUSSIAN], name="salts")
    one, two = ({m.salt for m in read_messages(d / "transcript")} for d in (noisy, again))
    assert not one & two


@pytest.mark.thorough
def test_an_oracles_noise_is_the_runs_own_and_the_questions_own(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[tuple[bytes, tuple[str | int, ...]]]()

    def watched(secret: bytes, *path: str | int) -> SecretStream:
        if path[:1] == ("oracle",):
            drawn.append((secret, path))
        return SecretStream(secret, *path)

    monkeypatch.setattr(fdaudit.evaluation.stage, "SecretStream", watched)
    asked = {"attacks": [{"name": "loss-threshold"}], "adversaries": ["world"]}
    run(home, "oracle-one", **asked)
    run(home, "oracle-two", **asked, name="another")
    keys = {secret for secret, _ in drawn}
    assert len(keys) == 2, "one key a run"
    assert SECRET not in keys
    assert len({path[-1] for _, path in drawn}) == len(drawn), "a digest of what is asked is part of the path"
