"""The federation whose stage of attacks is timed, spread over processes and killed."""

from __future__ import annotations

from ..helpers.run_cases import three_clients

SPEC = three_clients(
    threads=2,
    dataset={"name": "digits", "limit": 300},
    splits={"candidates": 10},
    attacks=[{"name": "loss-threshold"}, {"name": "gap"}],
)
