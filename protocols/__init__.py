"""Protocols: one file each, in the order of the paper's algorithm box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdaudit.registry import ProtocolCard, Registry

if TYPE_CHECKING:
    from fdaudit.federation.protocol import FederatedProtocol

__all__ = ["REGISTRY", "FederatedProtocol", "ProtocolCard"]

REGISTRY: Registry[FederatedProtocol, ProtocolCard] = Registry(
    "fdaudit.protocols",
    {
        "asyndgan": "fdaudit.protocols.asyndgan:AsynDGAN",
        "centralized": "fdaudit.protocols.standalone:Centralized",
        "cronus": "fdaudit.protocols.cronus:Cronus",
        "dafkd": "fdaudit.protocols.dafkd.protocol:DaFKD",
        "ds-fl": "fdaudit.protocols.ds_fl:DSFL",
        "fedavg": "fdaudit.protocols.fedavg:FedAvg",
        "feddf": "fdaudit.protocols.feddf:FedDF",
        "feded": "fdaudit.protocols.feded:FedED",
        "fedftg": "fdaudit.protocols.fedftg.protocol:FedFTG",
        "fedgems": "fdaudit.protocols.fedgems:FedGEMS",
        "fedgen": "fdaudit.protocols.fedgen.protocol:FedGEN",
        "fediod": "fdaudit.protocols.fediod.protocol:FedIOD",
        "fedkd": "fdaudit.protocols.fedkd.protocol:FedKD",
        "fedmd": "fdaudit.protocols.fedmd:FedMD",
        "fkd": "fdaudit.protocols.classwise:FKD",
        "pls": "fdaudit.protocols.classwise:PLS",
        "selective-fd": "fdaudit.protocols.selective_fd.protocol:SelectiveFD",
        "standalone": "fdaudit.protocols.standalone:Standalone",
    },
)
"""Public names of protocols; installed packages add theirs through the entry-point group."""


def __getattr__(name: str) -> Any:
    if name == "FederatedProtocol":  # its module loads torch
        from fdaudit.federation.protocol import FederatedProtocol

        return FederatedProtocol
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
