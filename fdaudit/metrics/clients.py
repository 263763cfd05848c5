"""One figure over several clients: the mean and the worst.

Guarantee:
  * `mean_and_worst` always returns both; a client without a value is named, not silently dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fdaudit.errors import UsageError
from fdaudit.metrics.intervals import joined, mean_figure, unavailable
from fdaudit.types import Figure

__all__ = ["mean_and_worst"]


def mean_and_worst(
    figures: Mapping[str, Figure], generator: np.random.Generator, *, higher_is_worse: bool = True
) -> tuple[Figure, Figure]:
    """Return the mean over clients (bootstrap over clients) and the figure of the worst-affected client.

    Args:
        figures: the same figure by client.
        generator: randomness of the bootstrap.
        higher_is_worse: whether a larger value means more leaked (AUC, PSNR) or less (MSE, LPIPS).

    Returns:
        `NAME_mean` and `NAME_worst`. The worst keeps its own interval, without a correction for the selection. Both are
        unavailable if no client has a value.

    Raises:
        UsageError: no client, or figures of different names.
    """
    names = {figure.name for figure in figures.values()}
    if len(names) != 1:
        raise UsageError(
            "figures", sorted(names), "is not one figure by client", "Give one name for all clients."
        )
    name = names.pop()
    values: dict[str, float] = {}
    for client, figure in figures.items():
        if figure.value is not None:
            values[client] = figure.value
    absent = sorted(set(figures) - set(values))
    unit = next(iter(figures.values())).unit
    if not values:
        why = f"no client has a value; {absent[0]}: {figures[absent[0]].unavailable}"
        mean, worst = unavailable((f"{name}_mean", f"{name}_worst"), why, unit)
        return mean, worst
    missing = f"without a value: {', '.join(absent)}" if absent else ""
    note = joined("n counts clients", missing)
    mean = mean_figure(f"{name}_mean", list(values.values()), generator, unit=unit, note=note)
    pick = max if higher_is_worse else min
    client = pick(values, key=lambda c: values[c])
    choice = f"{client}, worst of {len(values)}; interval not corrected for that choice"
    note = joined(choice, figures[client].note, missing)
    return mean, replace(figures[client], name=f"{name}_worst", unit=unit, note=note, p=None)
