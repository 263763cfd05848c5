"""LPIPS and FID on networks with random weights; the finding and checking of weights."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from fdaudit.errors import UsageError
from fdaudit.metrics import (
    PINS,
    Pin,
    WeightsUnavailableError,
    fid_figure,
    frechet_distance,
    inception_features,
    load_fid,
    load_lpips,
    load_weights,
    lpips_distance,
    score_reconstruction,
)
from fdaudit.metrics.images.perceptual import lpips_note

LPIPS_LAYERS = {
    0: (64, 3, 11, 11),
    3: (192, 64, 5, 5),
    6: (384, 192, 3, 3),
    8: (256, 384, 3, 3),
    10: (256, 256, 3, 3),
}


def _images(seed: int, n: int = 2, c: int = 3, side: int = 8) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((n, c, side, side))).float()


def _pinned(directory: Path, key: str, state: dict[str, Any]) -> dict[str, Pin]:
    """Writes `state` where `key`'s weights are looked for; the pins with its digest in place of the real
    one."""
    path = directory / PINS[key].file
    torch.save(state, path)
    return {**PINS, key: replace(PINS[key], sha256=hashlib.sha256(path.read_bytes()).hexdigest())}


def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FDAUDIT_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "no-cache"))


@pytest.fixture(scope="module")
def lpips_network(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    """LPIPS loaded by its real path, from a checkpoint of random AlexNet weights."""
    directory, g = tmp_path_factory.mktemp("weights"), torch.Generator().manual_seed(0)
    state = {}
    for layer, shape in LPIPS_LAYERS.items():
        fan_in = shape[1] * shape[2] * shape[3]
        state[f"features.{layer}.weight"] = torch.randn(shape, generator=g) * (2 / fan_in) ** 0.5
        state[f"features.{layer}.bias"] = 0.1 * torch.randn(shape[0], generator=g)
    with mock.patch("fdaudit.metrics.images.weights.PINS", _pinned(directory, "alexnet", state)):
        return load_lpips(directory)


@pytest.fixture(scope="module")
def inception_state() -> dict[str, torch.Tensor]:
    """Random weights of FID's Inception."""
    from pytorch_fid import inception

    g = torch.Generator().manual_seed(1)
    keep = torch.get_rng_state()
    with (
        mock.patch.object(torch.nn.Module, "load_state_dict"),
        mock.patch.object(inception, "load_state_dict_from_url"),
    ):
        state = inception.fid_inception_v3().state_dict()
    torch.set_rng_state(keep)
    for name, tensor in state.items():
        if name.endswith("conv.weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=g) * (2 / tensor[0].numel()) ** 0.5)
    return dict(state)


@pytest.fixture(scope="module")
def fid_network(inception_state: dict[str, torch.Tensor]) -> torch.nn.Module:
    with mock.patch("fdaudit.metrics.images.perceptual.load_weights", return_value=inception_state):
        return load_fid()


def test_lpips_laws(lpips_network: torch.nn.Module) -> None:
    a, b = _images(0), _images(1)
    apart = lpips_distance(a, b, lpips_network)
    assert torch.equal(lpips_distance(a, a, lpips_network), torch.zeros(2, dtype=torch.float64))
    assert lpips_distance(b, a, lpips_network).numpy() == pytest.approx(apart.numpy(), rel=1e-6)
    assert (apart > 0).all()
    near = lpips_distance(a, 0.9 * a + 0.1 * b, lpips_network)
    assert (near < apart).all()


def test_lpips_against_its_definition(lpips_network: torch.nn.Module) -> None:
    """Zhang et al. (2018), equation 1, from the layers themselves, on images that need no resizing."""
    a, b = _images(2, side=64), _images(3, side=64)

    def layers(x: torch.Tensor) -> list[torch.Tensor]:
        h = (2 * x - 1 - torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)) / torch.tensor(
            [0.458, 0.448, 0.450]
        ).view(1, 3, 1, 1)
        out = []
        for i in range(1, 6):
            h = getattr(lpips_network.net, f"slice{i}")(h)
            out.append(h / (h.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return out

    heads = load_weights("lpips-alex", Path(sys.modules["lpips"].__file__).parent / "weights" / "v0.1")
    reference = sum(
        ((x - y).square() * heads[f"lin{i}.model.1.weight"]).sum(1).mean((1, 2))
        for i, (x, y) in enumerate(zip(layers(a), layers(b), strict=True))
    )
    assert lpips_distance(a, b, lpips_network).numpy() == pytest.approx(reference.numpy(), rel=1e-5)


def test_lpips_enlarges_small_images_and_says_so(lpips_network: torch.nn.Module) -> None:
    a, b = _images(4), _images(5)
    large = [
        torch.nn.functional.interpolate(x, (64, 64), mode="bilinear", align_corners=False) for x in (a, b)
    ]
    expected = lpips_distance(*large, lpips_network)
    assert torch.equal(lpips_distance(a, b, lpips_network), expected)
    assert torch.equal(lpips_distance(a, b, lpips_network, batch_size=1), expected) or (
        lpips_distance(a, b, lpips_network, batch_size=1).numpy() == pytest.approx(expected.numpy(), rel=1e-5)
    )
    assert "enlarged to 64" in lpips_note(*a.shape[-2:])


def test_one_channel_is_repeated_and_two_are_refused(lpips_network: torch.nn.Module) -> None:
    a, b = _images(6, c=1), _images(7, c=1)
    grey = lpips_distance(a, b, lpips_network)
    assert torch.equal(grey, lpips_distance(a.expand(-1, 3, -1, -1), b.expand(-1, 3, -1, -1), lpips_network))
    with pytest.raises(UsageError, match="channels"):
        lpips_distance(_images(0, c=2), _images(1, c=2), lpips_network)


@pytest.mark.thorough
def test_fid_is_the_frechet_distance_of_pooled_features(fid_network: torch.nn.Module) -> None:
    a, b = _images(0, n=2), _images(1, n=3, side=16)
    figure = fid_figure(a, b, network=fid_network)
    features = [inception_features(x, fid_network, batch_size=2) for x in (a, b)]
    assert [tuple(f.shape) for f in features] == [(2, 2048), (3, 2048)]
    assert figure.name == "fid"
    assert figure.value == pytest.approx(frechet_distance(*features), rel=1e-4)
    assert figure.value > 0
    assert "singular" in figure.note
    assert "enlarged to 299x299" in figure.note


def test_fid_of_known_features_is_the_closed_form() -> None:
    class Pixels(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x[:, 0, 0, :2].reshape(len(x), 2, 1, 1)]

    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.random((4, 1, 4, 4))) for _ in range(2))
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    a[:, 0, 0, :2], b[:, 0, 0, :2] = 0.4 * corners, 0.2 * corners + 0.5
    # Means 0.2 and 0.6 in both coordinates; standard deviations 0.4 and 0.2 times √(1/3), uncorrelated.
    closed = 2 * 0.4**2 + 2 * (0.4 - 0.2) ** 2 / 3
    assert fid_figure(a, b, network=Pixels()).value == pytest.approx(closed, rel=1e-5)


def test_loading_leaves_the_global_generator_alone(inception_state: dict[str, torch.Tensor]) -> None:
    before = torch.get_rng_state()
    with mock.patch("fdaudit.metrics.images.perceptual.load_weights", return_value=inception_state):
        network = load_fid()
    assert torch.equal(torch.get_rng_state(), before)
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())


def test_missing_weights_make_figures_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _nowhere(monkeypatch, tmp_path)
    a = _images(0)
    score = score_reconstruction(a, a, None, np.random.default_rng(0))
    for figure in (score.figures["lpips"], fid_figure(a, a)):
        assert figure.value is None
        assert figure.unavailable.startswith("FDAUDIT_WEIGHTS: ")


@pytest.mark.parametrize("key", ["alexnet", "inception"])
def test_wrong_weights_are_refused_even_if_right_ones_lie_elsewhere(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FDAUDIT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub-home"))
    cache = tmp_path / "hub-home" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    pins = _pinned(cache, key, {"x": torch.ones(1)})
    monkeypatch.setattr("fdaudit.metrics.images.weights.PINS", pins)
    assert torch.equal(load_weights(key)["x"], torch.ones(1))
    torch.save({"x": torch.zeros(1)}, tmp_path / PINS[key].file)
    with pytest.raises(WeightsUnavailableError, match="not the pinned"):
        load_weights(key)
    a = _images(0)
    figure = fid_figure(a, a)
    if key == "alexnet":
        figure = score_reconstruction(a, a, None, np.random.default_rng(0)).figures["lpips"]
    assert "not the pinned" in figure.unavailable


def test_weights_of_the_right_digest_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    pins = _pinned(tmp_path, "alexnet", {"x": 1})
    with (
        mock.patch("fdaudit.metrics.images.weights.PINS", pins),
        pytest.raises(UsageError, match="names to tensors"),
    ):
        load_weights("alexnet", tmp_path)


def test_a_pickle_of_the_right_digest_runs_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    pins = _pinned(tmp_path, "alexnet", {"x": Hostile()})
    with (
        mock.patch("fdaudit.metrics.images.weights.PINS", pins),
        pytest.raises(WeightsUnavailableError, match="tensors"),
    ):
        load_weights("alexnet", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_pins_agree_with_the_published_names_and_the_installed_wheel() -> None:
    import lpips

    for key in ("alexnet", "inception"):
        assert PINS[key].file.removesuffix(".pth").rsplit("-", 1)[1] == PINS[key].sha256[:8]
    heads = load_weights("lpips-alex", Path(lpips.__file__).parent / "weights" / "v0.1")
    assert sorted(heads) == [f"lin{i}.model.1.weight" for i in range(5)]


@pytest.mark.thorough
def test_importing_the_metrics_loads_no_heavy_library() -> None:
    code = (
        "import sys, fdaudit.metrics\n"
        "heavy = {'torchvision', 'lpips', 'pytorch_fid', 'torchmetrics', 'sklearn', 'pandas', 'matplotlib'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
