"""Broken defences and ledgers: each must be contradicted, or the refutation suite could not fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from fdaudit.defenses.dp_sgd import DPSGD
from fdaudit.defenses.noise import GaussianNoise
from fdaudit.defenses.pate import aggregators
from torch import Tensor

from fdaudit.federation.rehearsal import set_up
from fdaudit.handout.oracle_server import Answering
from fdaudit.planning import message_sizes
from fdaudit.rng import SecretStream

from . import refutation_rows

__all__ = ["BROKEN", "Broken"]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One way to break a run or its ledger.

    Attributes:
        name: what is broken.
        case: the case that shows it.
        adversaries: whose claim must be contradicted.
        patch: breaks it.
    """

    name: str
    case: str
    adversaries: tuple[str, ...]
    patch: Callable[[pytest.MonkeyPatch], None]


def _quiet_training(patch: pytest.MonkeyPatch) -> None:
    """DP-SGD with a hundredth of the noise that its event states."""
    honest = DPSGD.noised

    def noised(self: DPSGD, total: Mapping[str, Tensor], noise: SecretStream) -> dict[str, Tensor]:
        loud = honest(self, total, noise)
        bare = {n: t / self.expected_batch for n, t in total.items()}
        return {n: bare[n] + (t - bare[n]) / 100 for n, t in loud.items()}

    patch.setattr(DPSGD, "noised", noised)


def _quiet_messages(patch: pytest.MonkeyPatch) -> None:
    """Gaussian noise on messages, a hundredth of what its event states."""
    patch.setattr(
        GaussianNoise,
        "_drawn",
        lambda self, sent, noise: torch.as_tensor(noise.normal(*sent.shape)) * self.config.sigma / 100,
    )


def _quiet_votes(patch: pytest.MonkeyPatch) -> None:
    """PATE's aggregators without noise to speak of."""
    honest = aggregators._normal
    patch.setattr(aggregators, "_normal", lambda noise, sigma, *shape: honest(noise, sigma / 1e4, *shape))


def _undefended_oracle(patch: pytest.MonkeyPatch) -> None:
    """The oracle on the released model answers from the model before the noise on its message."""

    def released(self: Any) -> Any:
        case = self._case
        protocol = set_up(case.protocol, case.protocol_config, case.common, case.clients, case.seed)
        protocol.state = self._vault.load(self._vault.load_round()["state"])
        return protocol.released()

    served = cached_property(released)
    served.__set_name__(Answering, "_released")
    patch.setattr(Answering, "_released", served)


_BELIEVED = {("hard_labels", "aggregator"), ("hard_labels", "client")}


def _sizes_believed(patch: pytest.MonkeyPatch) -> None:
    """A ledger that takes the size of answers for fixed, although their number varies."""
    honest = message_sizes.fixed_sizes
    patch.setattr("fdaudit.audit.ledgers.fixed_sizes", lambda case: honest(case) | _BELIEVED)
    patch.setattr(refutation_rows, "fixed_sizes", lambda case: honest(case) | _BELIEVED)


BROKEN = (
    Broken(name="noise of DP-SGD", case="fedavg, preset, ε 1", adversaries=("server", "world", "client/1"),
           patch=_quiet_training),
    Broken(name="noise of DP-SGD, seen in answers", case="ds-fl, preset, ε 1", adversaries=("server",),
           patch=_quiet_training),
    Broken(name="noise on messages", case="fedavg, noise on gradients", adversaries=("server",),
           patch=_quiet_messages),
    Broken(name="noise on votes", case="fedkd, votes under gnmax", adversaries=("server",), patch=_quiet_votes),
    Broken(name="oracle before the defence", case="centralized, noise on the model", adversaries=("world",),
           patch=_undefended_oracle),
    Broken(name="sizes", case="selective-fd, votes under confident-gnmax", adversaries=(refutation_rows.ENCRYPTED,),
           patch=_sizes_believed),
)  # fmt: skip
"""Every positive control."""
