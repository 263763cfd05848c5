"""The memory of published outcomes: all public pages of one run must show the same outcomes.

Two public pages of one run with different outcomes reveal more than each by itself: the author of the underlying
scores can subtract one page from the other. So the vault keeps a digest of the first published outcomes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fdaudit.errors import RunError
from fdaudit.storage.files import load_json, save_json

__all__ = ["PUBLISHED", "publish_once"]

PUBLISHED = "published.json"
"""Name of the digest's file in the vault."""


def publish_once(run: Path, outcomes: str) -> None:
    """Record that a run's outcomes become public; refuse outcomes that differ from the first published ones.

    A run without a vault, such as one in a bundle of evidence, has no memory and is not refused.

    Args:
        run: the run directory.
        outcomes: digest of the public page's outcomes.

    Raises:
        RunError: other outcomes of the run are public already; nothing was written.
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
