"""Checkpoints: make each round of a run durable, so that the run can resume after it.

Guarantees:
  * `round.json` names a round only after its truth, its messages and the protocol's state are durable;
  * rounds become durable in order, and callbacks run in that order;
  * a saved round becomes durable after the writer's earlier work and the rounds that wait with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from fdaudit.federation.protocol import Round
from fdaudit.storage.files import encode
from fdaudit.storage.vault import Vault
from fdaudit.transcript.transcript import Transcript

__all__ = ["Checkpoints"]


class Checkpoints:
    """Saves the rounds of a run, through the writer of its transcript.

    Waiting rounds become durable together, after the last of them is written. So a slow disk is synchronised once for
    many rounds.

    Args:
        vault: store of truth, states and `round.json`.
        transcript: the run's record.
        current: the state from which the run resumes; all other states are removed.
    """

    def __init__(self, vault: Vault, transcript: Transcript, current: str | None = None) -> None:
        self._vault, self._transcript = vault, transcript
        self._saved, self._due = 0, 0
        self._written: list[tuple[Path, Callable[[], object]]] = []
        self._forget_states_but(current)

    def save(
        self,
        done: Round,
        state: Mapping[str, Tensor],
        utility: int,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Save a round in its current state; messages that were appended before become durable with it.

        Args:
            done: the round that ended.
            state: the protocol's state between rounds.
            utility: length of `utility.csv` in bytes.
            then: called when the round is durable, by the thread that made it so.
        """
        batches: dict[str, Tensor] = {}
        for seq, batch in done.batches.items():
            batches[str(seq)] = batch
        truth = encode(batches)
        tensors, number, turn = encode(state), done.index, self._saved + 1

        def write() -> None:
            name = f"truth/round-{number:06d}"
            self._vault.save_encoded(name, truth, sync=False)
            self._written.append((self._vault.path(name), then))
            if turn < self._due:
                return
            # Everything written since the last time becomes durable together, and then the state after this round.
            current = f"state/round-{number:06d}"
            digest = self._vault.save_encoded(current, tensors, sync=False)
            staged = self._vault.stage_round(
                {
                    "round": number,
                    "transcript": vars(self._transcript.position),
                    "state": current,
                    "state_sha256": digest,
                    "utility": utility,
                }
            )
            # All files in one call, since a file system commits many at once; then the file that names them.
            files = [*(path for path, _ in self._written), self._vault.path(current)]
            self._transcript.sync([*files, *{path.parent for path in files}, staged])
            self._vault.replace_round(staged)
            self._forget_states_but(current)
            for _, callback in self._written:
                callback()
            self._written.clear()
            self._due = self._saved

        self._transcript.writer.put(write, len(truth) + len(tensors))
        # Only after put() returns: if it is interrupted while it waits for space, this round was never queued.
        self._saved = turn

    def _forget_states_but(self, current: str | None) -> None:
        for name in self._vault.names("state"):
            if name != current:
                self._vault.forget(name)
