"""A protocol as a run does it: shared part of the benchmarks of rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdaudit.federation.checkpoints import Checkpoints
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData
from fdaudit.federation.rehearsal import kinds_of, parties_of, setting_of
from fdaudit.models import Architecture
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.storage.writer import BackgroundWriter
from fdaudit.training.execution import Execution
from fdaudit.transcript.transcript import Transcript
from fdaudit.transcript.wire import Wire


class Recorded:
    """One round a call: every message on disk, the truth in the vault, files durable, a checkpoint."""

    def __init__(
        self,
        folder: Path,
        protocol: Any,
        config: Any,
        network: Architecture,
        data: Mapping[str, PartyData],
        execution: Execution,
        seed: int,
        public: Tensor | None = None,
    ) -> None:
        vault = Vault(folder / "vault")
        vault.create(Secrets.draw(seed))
        secret = vault.secrets.secret
        self._transcript = Transcript(folder / "transcript", secret=secret, writer=BackgroundWriter())
        self._checkpoints = Checkpoints(vault, self._transcript)
        wire = Wire(
            self._transcript,
            parties=parties_of(protocol, config, len(data)),
            kinds=kinds_of(protocol),
            device=torch.device(execution.device),
            secret=secret,
        )
        public = torch.zeros(0, *network.input_shape) if public is None else public
        common = Common(networks=Networks(network), execution=execution, public=public)
        self.config = config
        self.protocol = protocol(config, setting_of(protocol, common, data, wire, seed))
        self._rounds = self.protocol.rounds(0)

    def __call__(self) -> None:
        done = next(self._rounds)
        self._checkpoints.save(done, self.protocol.state, utility=0)
        # What a run writes while its next round computes must not be written while the other side is timed.
        self._transcript.writer.drain()

    def close(self) -> None:
        """Close the log."""
        self._transcript.close()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Return the model that the protocol would publish now."""
        released: dict[str, Tensor] = self.protocol.released()
        return released
