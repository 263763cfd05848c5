"""Checkpoints: what makes a round of a run durable, so that the run can go on after it.

Guarantees:
  * `round.json` names a round once its truth, its messages and the protocol's state are durable, never before;
  * rounds become durable in their order, and whoever is told of them is told in that order;
  * a round that is saved is durable as soon as the writer has done what was put to it before, and the rounds that
    waited beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.federation.protocol import Round
from fdaudit.storage.files import encode
from fdaudit.storage.vault import Vault
from fdaudit.transcript.transcript import Transcript

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checkpoints"]


class Checkpoints:
    """Saves the rounds of a run, by the writer of its transcript.

    The rounds that wait when it has made others durable become durable together, once the last of them is written:
    where a disk is slower than the rounds are, it is asked once for many.

    Args:
        vault: where truth, states and `round.json` are kept.
        transcript: the run's record.
        current: the state from which the run goes on; any other is of no use any more, and removed.
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
        """Saves a round as it is now; what was appended to the transcript before is made durable with it.

        Args:
            done: the round that ended.
            state: everything of the protocol that outlives a round.
            utility: length of `utility.csv` in bytes.
            then: called once the round is durable, by the thread that made it so.
        """
        truth = encode({str(seq): b for seq, b in done.batches.items()})
        kept, number, turn = encode(state), done.index, self._saved + 1

        def write() -> None:
            name = f"truth/round-{number:06d}"
            self._vault.save_encoded(name, truth, sync=False)
            self._written.append((self._vault.path(name), then))
            if turn >= self._due:
                self._make_durable(number, kept, utility)

        self._transcript.writer.put(write, len(truth) + len(kept))
        # Only now, for who waited here for room may have been interrupted: the writer relies on a round that was saved.
        self._saved = turn

    def _make_durable(self, number: int, state: bytes, utility: int) -> None:
        """Everything that was written since this was last done, and the state after round `number`."""
        name = f"state/round-{number:06d}"
        digest = self._vault.save_encoded(name, state, sync=False)
        staged = self._vault.stage_round(
            {
                "round": number,
                "transcript": vars(self._transcript.position),
                "state": name,
                "state_sha256": digest,
                "utility": utility,
            }
        )
        # All at once, for a file system commits many files together; then what names them.
        files = [*(path for path, _ in self._written), self._vault.path(name)]
        self._transcript.sync([*files, *{path.parent for path in files}, staged])
        self._vault.replace_round(staged)
        self._forget_states_but(name)
        for _, then in self._written:
            then()
        self._written.clear()
        self._due = self._saved

    def _forget_states_but(self, current: str | None) -> None:
        for name in self._vault.names("state"):
            if name != current:
                self._vault.forget(name)
