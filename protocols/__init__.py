"""Protocols: one file each, in the order of the paper's algorithm box."""

from fdaudit.registry import Registry

__all__ = ["REGISTRY"]

REGISTRY = Registry(
    "fdaudit.protocols",
    {
        "centralized": "fdaudit.protocols.standalone:Centralized",
        "dafkd": "fdaudit.protocols.dafkd:DaFKD",
        "fedavg": "fdaudit.protocols.fedavg:FedAvg",
        "fediod": "fdaudit.protocols.fediod:FedIOD",
        "standalone": "fdaudit.protocols.standalone:Standalone",
    },
)
"""Public names of protocols; installed packages add theirs through the entry-point group."""
