"""Measure how often a run's membership verdicts find a leak if nothing leaks.

The scores of a finished run stay as they are. Its coins are tossed again, so that the scores know nothing of them.
Each figure is computed from these coins. The family of tests has re-flips of its own, and the report's rules judge.
Target: in 2 to 5.5 % of the tosses any membership cell reads "leak" or "partial leak".

Without RUN a small federation is run first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from fdaudit.reports.judgement.verdict import judge_all
from scipy.stats import binomtest

import fdaudit
from fdaudit.metrics import FigureKey, Pairs, auc, reflip, tpr_at_fpr
from fdaudit.result import Adjusted, Cell, Result
from fdaudit.result import Family as Tests
from fdaudit.scoring import family
from fdaudit.types import Figure

Scores = Mapping[str, Mapping[str, Pairs]]


def tossed(scores: Scores, generator: np.random.Generator) -> dict[str, dict[str, Pairs]]:
    """Return the scores of every cell under fresh coins, one for each pair of each client."""
    sizes = {client: len(pairs.inside) for of in scores.values() for client, pairs in of.items()}
    kept = {client: generator.random(n) < 0.5 for client, n in sorted(sizes.items())}
    return {
        cell: {
            client: Pairs(np.where(kept[client], a, b), np.where(kept[client], b, a))
            for client, (a, b) in of.items()
        }
        for cell, of in scores.items()
    }


def figure_of(key: FigureKey, scores: Scores) -> Figure:
    """Return a figure by its definition; its own p-value has no part in the verdict."""
    of = scores[key.cell]
    chosen = list(of.values()) if key.target is None else [of[key.target]]
    inside, outside = (np.concatenate([pairs[half] for pairs in chosen]) for half in (0, 1))
    values, member = np.concatenate([inside, outside]), np.arange(2 * len(inside)) < len(inside)
    rate = None if key.figure == "auc" else float(key.figure[len("tpr_at_") : -len("fpr")]) / 100
    value = auc(values, member) if rate is None else tpr_at_fpr(values, member, rate)
    return Figure(name=key.figure, value=value, unit="fraction", p=0.0)


def anew(result: Result, scores: Scores, generator: np.random.Generator, reflips: int) -> Result:
    """Return the result with the membership figures of these scores, and their family of tests."""
    tested = reflip(scores, generator, level=family.LEVEL, reflips=reflips)
    made: dict[tuple[str, str | None], list[Figure]] = {}
    for key in tested.p:
        made.setdefault((key.cell, key.target), []).append(figure_of(key, scores))

    def changed(cell: Cell) -> Cell:
        targets = tuple(
            t.model_copy(update={"figures": tuple(made.get((cell.id, t.target), ()))}) for t in cell.targets
        )
        return cell.model_copy(update={"figures": tuple(made.get((cell.id, None), ())), "targets": targets})

    cells = tuple(changed(cell) for cell in result.cells if cell.id in scores)
    adjusted = tuple(Adjusted(**key._asdict(), p=p) for key, p in tested.p.items())
    return result.model_copy(update={"cells": cells, "family": Tests(level=family.LEVEL, adjusted=adjusted)})


def flagged(run: fdaudit.Run, tosses: int, reflips: int, seed: int) -> int:
    """Return the number of tosses that have a membership cell with a leak."""
    result, generator, found = run.result, np.random.default_rng(seed), 0
    scores = family.candidate_scores(run.opened, result.cells)
    for _ in range(tosses):
        judged = judge_all(anew(result, tossed(scores, generator), generator, reflips))
        found += any(f.level in ("leak", "partial") for f in judged)
    return found


def small(folder: Path) -> fdaudit.Run:
    """Run a federation with a few attacks."""
    spec = {
        "seed": 1,
        "device": "cpu",
        "threads": 1,
        "clients": 3,
        "model": {"name": "mlp"},
        "protocol": {"name": "fedavg", "params": {"rounds": 2, "local_steps": 10}},
        "references": [],
        "adversaries": ["server", "world"],
        "attacks": [{"name": name} for name in ("loss-threshold", "calibrated-loss", "rmia", "gap")],
    }
    return fdaudit.run(spec, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--tosses", type=int, default=200)
    parser.add_argument("--reflips", type=int, default=999, help="of each toss")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = [fdaudit.load(path) for path in given.runs] or [small(Path(folder) / "run")]
        print(f"{'run':<24} {'tosses':>7} {'flagged':>8} {'share':>7}   95 % interval")
        for run in runs:
            found = flagged(run, given.tosses, given.reflips, given.seed)
            low, high = binomtest(found, given.tosses).proportion_ci(0.95, method="exact")
            share = found / given.tosses
            print(
                f"{run.directory.name:<24} {given.tosses:>7} {found:>8} {share:>7.2%}   {low:.2%} to {high:.2%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
