"""Checks of what clients receive: a client that refuses a message stays silent for the rest of the round."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.registry import DefenseCard

from ._parts import Configured

__all__ = ["CheckConfig", "FreshSamples", "FreshSamplesConfig", "OwnPublicSet", "SameBroadcast"]


class CheckConfig(Config):
    """The check has no settings."""


class FreshSamplesConfig(Config):
    """Settings of fresh samples."""

    repeats: int = Field(0, ge=0)
    """Most samples of a message that the client answered before, or that are in it twice."""


class SameBroadcast(Configured[CheckConfig]):
    """Clients compare digests of what they were sent, and refuse it where two of them differ.

    It finds a server that sends clients different models (Pasquini et al. 2022, section 7). The clients need a channel
    that the server cannot change, for example signed digests. One model that is bad for all passes.
    """

    card = DefenseCard(
        name="same-broadcast",
        source="Pasquini, Francati & Ateniese 2022, section 7",
        protects="what clients send against a server that sends each another message",
        at="receipt",
    )
    Config: ClassVar[type[CheckConfig]] = CheckConfig

    def refuses(self, copies: Mapping[str, Mapping[str, Tensor]]) -> Collection[str]:
        """Return every receiver if two copies differ in a tensor, or in its name or type, else none."""
        digests = set()
        for tensors in copies.values():
            digest = hashlib.sha256()
            for name, tensor in sorted(tensors.items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            digests.add(digest.digest())
        return list(copies) if len(digests) > 1 else ()


class FreshSamples(Configured[FreshSamplesConfig]):
    """A client refuses samples that it was shown before, and samples that are in one message twice.

    Where a defence draws new noise for each answer, a server that repeats a sample averages the noise away. Only equal
    samples are found: a server that changes one pixel passes.
    """

    card = DefenseCard(
        name="fresh-samples",
        source="ours",
        protects="answers against a server that asks for a sample again to average noise away",
        at="receipt",
        accepts=("generated_samples",),
    )
    Config: ClassVar[type[FreshSamplesConfig]] = FreshSamplesConfig

    def __init__(self, config: FreshSamplesConfig) -> None:
        super().__init__(config)
        self._shown: dict[str, set[bytes]] = {}

    def refuses(self, copies: Mapping[str, Mapping[str, Tensor]]) -> Collection[str]:
        """Return the receivers that were shown more than the allowed number of these samples (n, ...) before."""
        refusing = []
        for name, tensors in copies.items():
            rows = [row.cpu().numpy().tobytes() for row in tensors["samples"].contiguous()]
            digests = [hashlib.sha256(row).digest() for row in rows]
            shown = self._shown.setdefault(name, set())
            new = set(digests) - shown
            shown |= new
            if len(digests) - len(new) > self.config.repeats:
                refusing.append(name)
        return refusing


class OwnPublicSet(Configured[CheckConfig]):
    """Clients take the public samples from a source that the server does not control.

    A server that would hand out other samples, with candidates among them, is not listened to. The numbers in its
    requests name the clients' own public samples.
    """

    card = DefenseCard(
        name="own-public-set",
        source="ours",
        protects="clients' records against a server that puts them among the public samples",
        at="receipt",
        accepts=("proxy_indices",),
    )
    Config: ClassVar[type[CheckConfig]] = CheckConfig
    keeps_public: ClassVar[bool] = True
    """Whether the public samples stay those of the spec, whoever hands out others."""

    def refuses(self, copies: Mapping[str, Mapping[str, Tensor]]) -> Collection[str]:
        """Return no receiver: a request names samples that everyone holds."""
        return ()
