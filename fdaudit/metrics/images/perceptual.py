"""Perceptual measures that need pretrained networks: LPIPS and FID.

A network is loaded once and passed to the functions. If its weights are missing or wrong, `load_lpips` and `load_fid`
raise an error, and the figures are unavailable with that reason. No other network replaces it.

Guarantees:
  * LPIPS of identical images is 0 and LPIPS is symmetric;
  * FID is the Fréchet distance (`fdaudit.metrics.images.frechet`) of the network's pooled features;
  * nothing is downloaded, and loading does not change torch's global random state.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import images, same_shape
from fdaudit.metrics.images.frechet import frechet_figure
from fdaudit.metrics.images.weights import WeightsUnavailableError, load_weights
from fdaudit.parallel.randomness import forked_randomness
from fdaudit.types import Figure

__all__ = [
    "LPIPS_SIDE",
    "fid_figure",
    "inception_features",
    "load_fid",
    "load_lpips",
    "lpips_distance",
    "lpips_note",
]

LPIPS_SIDE = 64
"""Images with a shorter side than this are enlarged to it before LPIPS: AlexNet was calibrated on 64x64
patches and its pooling does not fit much less."""

_SLICES = {0: 1, 3: 2, 6: 3, 8: 4, 10: 5}
"""lpips cuts AlexNet's `features` into five slices: layer number -> slice."""


def load_lpips(directory: Path | None = None) -> torch.nn.Module:
    """Return LPIPS v0.1 on AlexNet.

    Source: Zhang et al., "The unreasonable effectiveness of deep features as a perceptual metric", CVPR 2018.

    Args:
        directory: folder of AlexNet's weights; default: `FDAUDIT_WEIGHTS`, then torch's hub cache. The linear layers
            come from the installed `lpips` package.

    Raises:
        WeightsUnavailableError: either file is missing or is not the pinned one.
    """
    backbone = load_weights("alexnet", directory)
    import lpips

    heads = load_weights("lpips-alex", Path(lpips.__file__).parent / "weights" / "v0.1")
    # Layers draw initial weights from torch's global generator; these are overwritten.
    with forked_randomness(), warnings.catch_warnings():
        # lpips 0.1.4 calls torchvision's alexnet by an argument deprecated since 0.13, to the same effect.
        warnings.filterwarnings("ignore", message="The parameter 'pretrained' is deprecated")
        warnings.filterwarnings("ignore", message="Arguments other than a weight enum or `None`")
        network = lpips.LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False)
    state = dict(heads)
    for layer, part in _SLICES.items():
        for kind in ("weight", "bias"):
            state[f"net.slice{part}.{layer}.{kind}"] = backbone[f"features.{layer}.{kind}"]
    missing, unexpected = network.load_state_dict(state, strict=False)
    # `lins` repeats `lin0` ... `lin4`, and the scaling constants are the package's own.
    unfit = []
    for key in missing:
        if not key.startswith(("lins.", "scaling_layer.")):
            unfit.append(key)
    unfit += unexpected
    if unfit:
        raise WeightsUnavailableError("lpips", unfit, "are layers that do not fit", "Install lpips 0.1.4.")
    return _frozen(network)


def load_fid() -> torch.nn.Module:
    """Return FID's Inception as ported by pytorch-fid, up to the last pooling (2048 features).

    Raises:
        WeightsUnavailableError: the file is missing or is not the pinned one.
    """
    state = load_weights("inception")
    from pytorch_fid import inception

    # pytorch-fid downloads unchecked weights while it builds; replace them by the checked ones.
    loader = mock.Mock(return_value=state)
    with forked_randomness(), mock.patch.object(inception, "load_state_dict_from_url", loader):
        network = inception.InceptionV3([inception.InceptionV3.BLOCK_INDEX_BY_DIM[2048]])
    return _frozen(network)


def _frozen(network: torch.nn.Module) -> torch.nn.Module:
    return network.eval().requires_grad_(False)


def _rgb(values: ArrayLike, field: str) -> torch.Tensor:
    """Return float32 images of three channels; a single channel is repeated."""
    tensor = images(values, field, torch.float32)
    if tensor.shape[1] not in (1, 3):
        raise UsageError(
            field, tuple(tensor.shape), "has neither 1 nor 3 channels", "Give grey or RGB images."
        )
    return tensor.expand(-1, 3, -1, -1)


def _device(network: torch.nn.Module) -> torch.device:
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def _enlarged(tensor: torch.Tensor) -> torch.Tensor:
    short = min(tensor.shape[-2:])
    if short >= LPIPS_SIDE:
        return tensor
    size = [round(side * LPIPS_SIDE / short) for side in tensor.shape[-2:]]
    return torch.nn.functional.interpolate(tensor, size=size, mode="bilinear", align_corners=False)


def lpips_distance(
    a: ArrayLike, b: ArrayLike, network: torch.nn.Module, *, batch_size: int = 64
) -> torch.Tensor:
    """Return LPIPS of each pair of images, (n, c, h, w) and (n, c, h, w) in [0, 1] -> (n,) float64; 0 is identical.

    One channel is repeated to three. Images with a side under 64 are enlarged bilinearly, both in the same way, until
    their shorter side is 64.

    Args:
        a: images.
        b: images.
        network: network from `load_lpips`; maps two batches and `normalize=True` to (n, 1, 1, 1).
        batch_size: number of pairs at once.

    Raises:
        UsageError: shapes differ, channels are neither 1 nor 3, or pixels are not in [0, 1].
    """
    first, second = _rgb(a, "a"), _rgb(b, "b")
    same_shape(first, second)
    device, distances = _device(network), []
    with torch.no_grad():
        for x, y in zip(torch.split(first, batch_size), torch.split(second, batch_size), strict=True):
            value = network(_enlarged(x.to(device)), _enlarged(y.to(device)), normalize=True)
            distances.append(value.reshape(len(x)).to("cpu", torch.float64))
    return torch.cat(distances)


def lpips_note(height: int, width: int) -> str:
    """Return a note for readers of LPIPS on images of this size."""
    if min(height, width) >= LPIPS_SIDE:
        return "AlexNet"
    return f"AlexNet; images of {height}x{width} enlarged to {LPIPS_SIDE} pixels"


def inception_features(values: ArrayLike, network: torch.nn.Module, *, batch_size: int = 32) -> torch.Tensor:
    """Return pooled features of images (n, c, h, w) in [0, 1] -> (n, d) float64.

    One channel is repeated to three. The network itself resizes to 299x299, bilinearly.

    Args:
        values: images.
        network: network from `load_fid`; maps a batch to a list whose first item is (n, d, h, w).
        batch_size: number of images at once.

    Raises:
        UsageError: channels are neither 1 nor 3, or pixels are not in [0, 1].
    """
    device, features = _device(network), []
    with torch.no_grad():
        for part in torch.split(_rgb(values, "images"), batch_size):
            maps = network(part.to(device))[0]
            features.append(maps.mean((2, 3)).to("cpu", torch.float64))
    return torch.cat(features)


def fid_figure(images_a: ArrayLike, images_b: ArrayLike, *, network: torch.nn.Module | None = None) -> Figure:
    """Return FID (Heusel et al., NeurIPS 2017) of two sets of images; unavailable with a reason without weights.

    Args:
        images_a: (n, c, h, w) in [0, 1].
        images_b: (m, c, h, w) in [0, 1].
        network: network from `load_fid`; loaded by default.

    Raises:
        UsageError: images are unsuitable for `inception_features`, or a side has fewer than two.
    """
    try:
        network = load_fid() if network is None else network
    except WeightsUnavailableError as error:
        return Figure(name="fid", value=None, unavailable=str(error))
    first, second = inception_features(images_a, network), inception_features(images_b, network)
    figure = frechet_figure(first, second, "fid")
    size = tuple(images(images_a, "images_a").shape[-2:])
    if min(size) >= 299:
        return figure
    return replace(figure, note=f"{figure.note}; images of {size[0]}x{size[1]} enlarged to 299x299")
