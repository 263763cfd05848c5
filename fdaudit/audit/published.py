"""The memory of what was published of a run: one set of outcomes, however often its public page is written.

Two public pages of one run with different outcomes tell more than each by itself: whoever made the scores behind them
subtracts one from the other. The vault therefore keeps a digest of the outcomes that went out first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fdaudit.errors import RunError
from fdaudit.storage.files import load_json, save_json

__all__ = ["PUBLISHED", "publish_once"]

PUBLISHED = "published.json"
"""The file in the vault."""


def publish_once(run: Path, outcomes: str) -> None:
    """Note that a run's outcomes are made public, and refuse other ones than those of the first time.

    A run without a vault, such as one in a bundle of evidence, has no memory and is not refused.

    Args:
        run: the run directory.
        outcomes: digest of what the public page says.

    Raises:
        RunError: other outcomes of the run were made public before; nothing was written.
    """
    vault = run / "vault"
    if not vault.is_dir():
        return
    path = vault / PUBLISHED
    if not path.exists():
        save_json(path, {"outcomes": outcomes})
        return
    earlier: Any = load_json(path)
    if earlier != {"outcomes": outcomes}:
        raise RunError(
            "public",
            str(run),
            "has a public page with other outcomes, and two of them tell what neither does",
            f"Pass on the first page; if nobody has seen it, remove vault/{PUBLISHED} and write it anew.",
        )
