"""Rehearsals of a run's protocol, for adversaries and controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.isolation.rehearsal import Rehearsal

if TYPE_CHECKING:
    from fdaudit.config import Config
    from fdaudit.planning.plan import Plan

__all__ = ["rehearsal_of"]


def rehearsal_of(
    plan: Plan,
    adversary: str,
    *,
    config: Config | None = None,
    defended: bool = True,
    own: Path | None = None,
    everybody: Path | None = None,
) -> Rehearsal:
    """Return a rehearsal of a run's protocol on auxiliary records.

    Args:
        plan: the run's plan.
        adversary: the adversary whose view is returned.
        config: other settings of the protocol.
        defended: with the run's defences, withheld messages and transport; else with none of these.
        own: a directory for rehearsals of this adversary only; default: the temporary directory.
        everybody: a directory for rehearsals on shared records; None shares nothing.
    """
    settings = (config or plan.protocol_config).model_dump(mode="json")
    setting: dict[str, Any] = {
        "protocol": {"name": plan.protocol.name, "params": settings},
        "clients": plan.spec.clients,
    }
    if defended:
        setting |= plan.spec.model_dump(mode="json", include={"defenses", "withhold", "transport"})
    return Rehearsal(
        setting={**setting, "defended": defended},
        common=plan.common,
        adversary=adversary,
        shared=plan.auxiliary,
        own=own,
        everybody=everybody,
    )
