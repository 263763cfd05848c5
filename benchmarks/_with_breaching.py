"""Inverting Gradients by breaching: its configuration `invertinggradients`, its attacker, one restart after another."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its objectives are torch.jit scripts, which torch deprecates
    import breaching


class Breaching:
    """The attack on one image's gradient. Only restarts and iterations are set; all else is as configured there.

    Args:
        module: the network, as the server sent it.
        sent: the gradient of the image, by parameter.
        y: (1,) its label.
        shape: (3, h, w) of the image: total variation there takes three channels.
        restarts: trials.
        iterations: of each trial.
    """

    def __init__(
        self,
        module: nn.Module,
        sent: Sequence[Tensor],
        y: Tensor,
        shape: Sequence[int],
        restarts: int,
        iterations: int,
    ) -> None:
        overrides = [f"restarts.num_trials={restarts}", f"optim.max_iterations={iterations}"]
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.config = breaching.get_attack_config("invertinggradients", overrides)
        about = SimpleNamespace(shape=list(shape), mean=[0.0] * 3, std=[1.0] * 3, modality="vision")
        parameters = [p.detach() for p in module.parameters()]
        # Without buffers it would put BatchNorm into training mode.
        buffers = [b.detach() for b in module.buffers()] or None
        self._payload = [{"parameters": parameters, "buffers": buffers, "metadata": about}]
        told = {"num_data_points": len(y), "labels": y, "local_hyperparams": None}
        self._shared = [{"gradients": list(sent), "buffers": None, "metadata": told}]
        setup = {"dtype": torch.float, "device": torch.device("cpu")}
        self._attacker = breaching.attacks.prepare_attack(module, nn.CrossEntropyLoss(), self.config, setup)
        self.evaluations = restarts * (iterations + 1)
        """Of images: one an iteration, and one to score each trial."""

    @property
    def tv(self) -> float:
        """Its weight of total variation."""
        return float(self.config.regularization.total_variation.scale)

    @property
    def lr(self) -> float:
        """Its step."""
        return float(self.config.optim.step_size)

    def __call__(self, start: Tensor | None = None) -> tuple[Tensor, list[float]]:
        """The best image, (1, 3, h, w), and the first trial's objective by iteration; `start` is every trial's."""
        found, stats = self._attacker.reconstruct(self._payload, self._shared, {}, initial_data=start)
        return found["data"], stats["Trial_0_Val"]

    def variation(self, x: Tensor) -> float:
        """Its total variation, weighted: it counts the step from the last row and column to zero too."""
        return float(self._attacker.regularizers[0](x))


def imprint(module: nn.Module, x: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return the images (m, 1, h, w) that an imprint block before a network shows of a batch.

    Block, settings and attacker are those of its case "malicious model" (Robbing the Fed), but for the number of bins.

    Args:
        module: the network after the block.
        x: (n, 1, h, w) images in [0, 1].
        y: (n,) their labels.
        bins: neurons of the block.
    """
    from breaching.attacks.analytic_attack import ImprintAttacker
    from breaching.cases.malicious_modifications.imprint import ImprintBlock

    mean, std = 0.1307, 0.3081  # of MNIST
    shape = tuple(x.shape[1:])
    torch.manual_seed(0)
    block = ImprintBlock(shape, bins, connection="linear", gain=1.0, linfunc="fourier", mode=32)
    whole = nn.Sequential(block, module)
    loss = nn.CrossEntropyLoss()
    gradients = torch.autograd.grad(loss(whole((x - mean) / std), y), list(whole.parameters()))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = breaching.get_attack_config("imprint")
    about = SimpleNamespace(shape=list(shape), mean=[mean], std=[std], modality="vision")
    names = [name for name, _ in whole.named_parameters()]
    place = {"weight_idx": names.index("0.linear0.weight"), "bias_idx": names.index("0.linear0.bias")}
    secrets = {"ImprintBlock": {**place, "shape": shape, "structure": block.structure}}
    payload = [{"parameters": [p.detach() for p in whole.parameters()], "buffers": None, "metadata": about}]
    told = {"num_data_points": len(y), "labels": y, "local_hyperparams": None}
    shared = [{"gradients": [g.clone() for g in gradients], "buffers": None, "metadata": told}]
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker = ImprintAttacker(whole, loss, config, setup)
    found, _ = attacker.reconstruct(payload, shared, secrets)
    return found["data"] * std + mean
