"""The public variant of a result: what can be shown to those who may not see the clients' records.

Guarantees:
  * no image, class count or class share is left, and no path of the auditor's machine;
  * what was left out is named in `withheld`, and nothing else is changed.
"""

from __future__ import annotations

from typing import Any

from .schema import Result

__all__ = ["WITHHELD", "public"]

WITHHELD = (
    "true and reconstructed images",
    "records of each class at each client",
    "true and guessed class shares",
    "where the data lie on the auditor's machine",
)
"""What itself leaks. Scores and intervals stay: they speak of groups of records and name none."""

_LOCAL = ("npz:", "folder:", "import:")
_HIDDEN = "(withheld)"


def public(result: Result) -> Result:
    """The result without what shows records or says which are whose."""
    run = result.run
    cells = tuple(
        cell.model_copy(
            update={
                "targets": tuple(
                    t.model_copy(update={"images": None, "shares": None, "messages": ()})
                    for t in cell.targets
                )
            }
        )
        for cell in result.cells
    )
    return result.model_copy(
        update={
            "auditor_only": False,
            "withheld": WITHHELD,
            "class_table": None,
            "cells": cells,
            "run": run.model_copy(
                update={
                    "dataset": _named(run.dataset),
                    "dataset_provenance": _HIDDEN if _local(run.dataset) else run.dataset_provenance,
                    "spec": _without_paths(run.spec),
                }
            ),
        }
    )


def _local(name: str) -> bool:
    return name.startswith(_LOCAL)


def _named(name: str) -> str:
    """A dataset's name; of one in a file only its sort."""
    return f"{name.partition(':')[0]}:{_HIDDEN}" if _local(name) else name


def _without_paths(value: Any, member: str = "") -> Any:
    """A part of the spec whose `root` and names of files are withheld, at whatever depth."""
    if isinstance(value, dict):
        return {k: _without_paths(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(v, member) for v in value]
    if not isinstance(value, str):
        return value
    return _HIDDEN if member == "root" else _named(value)
