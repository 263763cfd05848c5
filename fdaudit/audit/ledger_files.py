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
    files = _tables(profiles)
    entries = []
    for profile in profiles:
        entry = _entry(profile, delta)
        if profile.distributions:
            name = f"losses-{profile.view.replace('/', '-')}-{profile.relation}.safetensors"
            files[name] = _losses(profile)
            entry["losses"] = name
        entries.append(entry)
    epsilon_lines, trade_off_lines = _lines(profiles)
    for end, data in epsilon_figure(epsilon_lines, delta).items():
        files[f"epsilon.{end}"] = data
    for end, data in trade_off_figure(trade_off_lines).items():
        files[f"trade-off.{end}"] = data
    index = {"schema": _SCHEMA, "files": sorted(files), "profiles": entries}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in earlier - files.keys():
            (directory / name).unlink(missing_ok=True)
        for name, data in files.items():
            write_atomically(directory / name, data)
        write_atomically(directory / _INDEX, json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise RunError("curve", str(out), problem, "Give another directory.") from None
    return [directory / name for name in (*files, _INDEX)]


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


def _entry(profile: Profile, delta: float) -> dict[str, Any]:
    """Return one profile's entry in the index, without a file of losses; an infinite ε is null."""
    nearest = int(abs(profile.deltas - delta).argmin())
    epsilon = float(profile.epsilons[nearest])
    return {
        "adversary": profile.view,
        "unit": profile.unit,
        "relation": profile.relation,
        "delta": delta,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "cause": profile.cause,
        "gdp": profile.gdp,
        "zcdp": profile.zcdp,
        "losses_missing": profile.missing,
        "events": [asdict(e) for e in profile.exports],
        "assumptions": list(profile.assumptions),
        "losses": None,
    }


def _tables(profiles: Sequence[Profile]) -> dict[str, bytes]:
    """Return the tables of ε and of trade-off functions, by file name."""
    of_epsilon: list[Sequence[Any]] = [(*_STATED, "delta", "epsilon", "client", "accountant")]
    of_trade_off: list[Sequence[Any]] = [(*_STATED, "alpha", "beta")]
    for p in profiles:
        stated = (p.view, p.unit, p.relation)
        for delta, epsilon, *names in zip(p.deltas, p.epsilons, p.clients, p.accountants, strict=True):
            of_epsilon.append((*stated, float(delta), float(epsilon), *names))
        for alpha, beta in zip(ALPHAS, p.trade_off(), strict=True):
            of_trade_off.append((*stated, float(alpha), float(beta)))
    return {
        "epsilon.csv": csv_text(of_epsilon).encode(),
        "trade-off.csv": csv_text(of_trade_off).encode(),
    }


def _lines(profiles: Sequence[Profile]) -> tuple[list[Line], list[Line]]:
    """Return the curves of ε and of trade-off functions; their names include the relation if there are two."""
    relations = {p.relation for p in profiles}
    of_epsilon, of_trade_off = [], []
    for p in profiles:
        name = p.view if len(relations) == 1 else f"{p.view}, {p.relation}"
        infinite = bool(p.cause)
        of_epsilon.append(Line(name=name, x=p.deltas.tolist(), y=p.epsilons.tolist(), infinite=infinite))
        of_trade_off.append(Line(name=name, x=ALPHAS.tolist(), y=p.trade_off().tolist(), infinite=infinite))
    return of_epsilon, of_trade_off


def _losses(profile: Profile) -> bytes:
    """Return loss distributions as safetensors: a float64 tensor each, and the rest as JSON under `distributions`."""
    from safetensors.numpy import save

    tensors, about = {}, list[dict[str, Any]]()
    for number, distribution in enumerate(profile.distributions):
        for direction, losses in (("remove", distribution.remove), ("add", distribution.add)):
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
