"""Checks for authors of protocols, attacks and defences, and small federations to try them on.

A check raises an AssertionError of one sentence, in any test framework or in none. Where there is no CUDA device, it
warns that this was not checked. Nothing in fdaudit imports this package.
"""

from fdaudit.testing.attacks import check_attack
from fdaudit.testing.defenses import check_defense
from fdaudit.testing.federation import common, network, records
from fdaudit.testing.messages import example_message
from fdaudit.testing.protocols import check_protocol
from fdaudit.testing.recorded import RecordedFederation
from fdaudit.testing.running import ProtocolRun, run_protocol
from fdaudit.testing.specs import SMALL_SPEC, small_case, small_spec

__all__ = [
    "SMALL_SPEC",
    "ProtocolRun",
    "RecordedFederation",
    "check_attack",
    "check_defense",
    "check_protocol",
    "common",
    "example_message",
    "network",
    "records",
    "run_protocol",
    "small_case",
    "small_spec",
]
