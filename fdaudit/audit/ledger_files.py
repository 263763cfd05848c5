"""Files with privacy profiles, for other tools and for papers.

Guarantees:
  * each file is written completely or not at all; `profile.json`, which lists the others, comes last;
  * a directory with other content is refused, and files of earlier profiles are removed;
  * the same profiles give the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fdaudit.accounting.losses.distributions import Distribution
from fdaudit.accounting.profile import ALPHAS, Profile
from fdaudit.errors import IntegrityError, RunError
from fdaudit.reports.drawings.ledger_figures import Line, epsilon_figure, trade_off_figure
from fdaudit.storage.files import load_json, write_atomically
from fdaudit.storage.tables import csv_text

__all__ = ["write_profiles"]

_INDEX = "profile.json"
_SCHEMA = "fdaudit-profile/1"
_STATED = ("adversary", "unit", "relation")


def write_profiles(profiles: Sequence[Profile], out: Path | str, *, delta: float) -> list[Path]:
    """Write ε against δ and trade-off functions as tables and figures, and composed loss distributions.

    Args:
        profiles: profiles of one run or of several runs jointly; each pair of adversary and relation once.
        out: a new or empty directory, or one that this function filled earlier.
        delta: the δ marked in the figure of ε.

    Returns:
        Every file, `profile.json` last.

    Raises:
        RunError: the directory holds other files or cannot be written.
    """
    directory = Path(out)
    earlier = _earlier(directory)
    made = {
        "epsilon.csv": _table(
            (*_STATED, "delta", "epsilon", "client", "accountant"), _epsilon_rows(profiles)
        ),
        "trade-off.csv": _table((*_STATED, "alpha", "beta"), _trade_off_rows(profiles)),
    }
    losses = {name: _losses(p) for p, name in zip(profiles, _names(profiles), strict=True) if p.distributions}
    made |= losses
    made |= {f"epsilon.{end}": data for end, data in epsilon_figure(_epsilon_lines(profiles), delta).items()}
    made |= {f"trade-off.{end}": data for end, data in trade_off_figure(_trade_off_lines(profiles)).items()}
    entries = [
        {**_stated(p, delta), "losses": name if name in losses else None}
        for p, name in zip(profiles, _names(profiles), strict=True)
    ]
    index = {"schema": _SCHEMA, "files": sorted(made), "profiles": entries}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in earlier - made.keys():
            (directory / name).unlink(missing_ok=True)
        for name, data in made.items():
            write_atomically(directory / name, data)
        write_atomically(directory / _INDEX, json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise RunError("curve", str(out), problem, "Give another directory.") from None
    return [directory / name for name in (*made, _INDEX)]


def _earlier(directory: Path) -> set[str]:
    """Return the files that an earlier call wrote into the directory.

    Raises:
        RunError: the directory was not written by this module.
    """
    refused = RunError("curve", str(directory), "holds something else", "Give a new or empty directory.")
    if directory.is_dir() and not any(directory.iterdir()):
        return set()
    if not directory.exists() and not directory.is_symlink():
        return set()
    try:
        index = load_json(directory / _INDEX)
        if index["schema"] != _SCHEMA:
            raise refused
        return {name for name in index["files"] if Path(name).name == name}
    except (OSError, IntegrityError, KeyError, TypeError):
        raise refused from None


def _stated(profile: Profile, delta: float) -> dict[str, Any]:
    """Return one profile's entry in the index; an infinite ε is null."""
    at = float(profile.epsilons[int(abs(profile.deltas - delta).argmin())])
    return {
        "adversary": profile.view,
        "unit": profile.unit,
        "relation": profile.relation,
        "delta": delta,
        "epsilon": at if math.isfinite(at) else None,
        "cause": profile.cause,
        "gdp": profile.gdp,
        "zcdp": profile.zcdp,
        "losses_missing": profile.missing,
        "events": [asdict(e) for e in profile.exports],
        "assumptions": list(profile.assumptions),
    }


def _names(profiles: Sequence[Profile]) -> list[str]:
    """Return the file names of loss distributions: `losses-server-replace-one.safetensors`."""
    return [f"losses-{p.view.replace('/', '-')}-{p.relation}.safetensors" for p in profiles]


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    return csv_text([head, *rows]).encode()


def _epsilon_rows(profiles: Sequence[Profile]) -> list[Sequence[Any]]:
    return [
        (p.view, p.unit, p.relation, float(delta), float(epsilon), client, accountant)
        for p in profiles
        for delta, epsilon, client, accountant in zip(
            p.deltas, p.epsilons, p.clients, p.accountants, strict=True
        )
    ]


def _trade_off_rows(profiles: Sequence[Profile]) -> list[Sequence[Any]]:
    return [
        (p.view, p.unit, p.relation, float(alpha), float(beta))
        for p in profiles
        for alpha, beta in zip(ALPHAS, p.trade_off(), strict=True)
    ]


def _epsilon_lines(profiles: Sequence[Profile]) -> list[Line]:
    return [
        Line(name=name, x=p.deltas.tolist(), y=p.epsilons.tolist(), infinite=bool(p.cause))
        for p, name in zip(profiles, _shown(profiles), strict=True)
    ]


def _trade_off_lines(profiles: Sequence[Profile]) -> list[Line]:
    return [
        Line(name=name, x=ALPHAS.tolist(), y=p.trade_off().tolist(), infinite=bool(p.cause))
        for p, name in zip(profiles, _shown(profiles), strict=True)
    ]


def _shown(profiles: Sequence[Profile]) -> list[str]:
    """Return the names for a legend; they include the relation if there are two."""
    if len({p.relation for p in profiles}) == 1:
        return [p.view for p in profiles]
    return [f"{p.view}, {p.relation}" for p in profiles]


def _losses(profile: Profile) -> bytes:
    """Return loss distributions as safetensors: a float64 tensor each, and the rest as JSON under `distributions`."""
    from safetensors.numpy import save

    tensors, about = {}, list[dict[str, Any]]()
    for number, distribution in enumerate(profile.distributions):
        for direction, losses in _directions(distribution):
            name = f"{number}.{direction}"
            tensors[name] = losses.probabilities.copy()
            about.append(
                {
                    "tensor": name,
                    "client": distribution.client,
                    "direction": direction,
                    "grid": losses.grid,
                    "lower": losses.lower,
                    "infinity": losses.infinity,
                }
            )
    return bytes(save(tensors, metadata={"distributions": json.dumps(about)}))


def _directions(distribution: Distribution) -> tuple[tuple[str, Any], ...]:
    return ("remove", distribution.remove), ("add", distribution.add)
