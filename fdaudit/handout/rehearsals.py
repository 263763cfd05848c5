"""Rehearsals of a run's protocol, for adversaries and controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.errors import FdauditError
from fdaudit.isolation.rehearsal import Rehearsal
from fdaudit.planning.simulated import candidates_of

if TYPE_CHECKING:
    from fdaudit.config import Config
    from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig
    from fdaudit.planning.case import Case

__all__ = ["rehearsal_of", "stand_in_of"]


def stand_in_of(case: Case) -> tuple[type[FederatedProtocol], ProtocolConfig]:
    """Return the protocol that rehearsals run, and its settings.

    Raises:
        FdauditError: no protocol stands in for a recorded system's own.
    """
    if case.stand_in is None:
        raise FdauditError(f"rehearsal: no protocol of fdaudit stands in for {case.protocol.card.name}.")
    return case.stand_in


def rehearsal_of(
    case: Case,
    adversary: str,
    *,
    config: Config | None = None,
    defended: bool = True,
    own: Path | None = None,
    everybody: Path | None = None,
) -> Rehearsal:
    """Return a rehearsal of a run's protocol on auxiliary records.

    Args:
        case: the run's case.
        adversary: the adversary whose view is returned.
        config: other settings of the protocol.
        defended: with the run's defences, withheld messages and transport, and with the deviations of the adversary's
            own parties; else with none of these.
        own: a directory for rehearsals of this adversary only; default: the temporary directory.
        everybody: a directory for rehearsals on shared records; None shares nothing.

    Raises:
        FdauditError: no protocol stands in for a recorded system's own.
    """
    protocol, usual = stand_in_of(case)
    # A class that `import:` names is loaded by that name, not by what it calls itself.
    name = case.spec.protocol.name if protocol is case.protocol else protocol.card.name
    setting: dict[str, Any] = {
        "protocol": {"name": name, "params": (config or usual).model_dump(mode="json")},
        "clients": case.spec.clients,
    }
    if defended:
        setting |= case.spec.model_dump(mode="json", include={"defenses", "withhold", "transport"})
        own_deviants = case.deviants.keys() & set(adversary.split("+"))
        if own_deviants:
            own_deviations = [one for one in case.spec.deviations if one.party in own_deviants]
            setting["deviations"] = [one.model_dump(mode="json") for one in own_deviations]
            setting["deviations_seed"] = case.deviations_seed
    return Rehearsal(
        setting={**setting, "defended": defended},
        common=case.common,
        adversary=adversary,
        shared=case.auxiliary,
        candidates=candidates_of(case) if "deviations" in setting else None,
        own=own,
        everybody=everybody,
    )
