"""The quickstart: five protocols on the same records, each a run of its own, and a page that compares them.

Guarantees:
  * every run has the first one's seed, and so the same records in the same hands;
  * interrupted at any instant, it goes on from the last whole round and ends as if nothing had happened;
  * a directory that holds anything else is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fdaudit import runs
from fdaudit.attack_stage import Tick
from fdaudit.elsewhere import HERE, Elsewhere
from fdaudit.errors import RunError
from fdaudit.runs import Run
from fdaudit.spec import Spec, load_spec
from fdaudit.storage import load_json

__all__ = ["PROTOCOLS", "quickstart", "specs", "table"]

PROTOCOLS = ("fedavg", "fedkd", "selective-fd", "fediod", "dafkd")
"""The runs in their order; the first one trains the reference lines for all."""

_SPECS = Path(__file__).with_name("quickstart")


def specs() -> dict[str, Spec]:
    """The quickstart's specs by protocol."""
    return {name: load_spec(_SPECS / f"{name}.yaml") for name in PROTOCOLS}


def quickstart(
    out: Path,
    *,
    resume: bool = False,
    elsewhere: Elsewhere = HERE,
    tick: Tick = lambda what, done, total: None,
) -> tuple[tuple[Run, ...], Path]:
    """Runs every spec into a directory of its own below `out`, writes their reports and the comparison.

    Args:
        out: where they go.
        resume: go on where it was interrupted.
        elsewhere: other machines' part in the runs.
        tick: progress.

    Returns:
        The runs, and the path of the page that compares them.

    Raises:
        UsageError: `out` holds something else, or a run and `resume` is not asked for; nothing was written.
    """
    wanted = specs()
    first = out / next(iter(wanted))
    _refuse_occupied(out, first, resume)
    finished, reports = list[Run](), list[Future[Path]]()
    # A report is one thread's work, and this process mostly waits for those that attack the next run.
    with ThreadPoolExecutor(1) as beside:
        try:
            for number, (name, spec) in enumerate(wanted.items(), 1):
                seed_from = None if out / name == first else first
                step = _step(tick, f"{number}/{len(wanted)} {name}")
                place, far = out / name, elsewhere
                made = runs.run(spec, place, resume=resume, seed_from=seed_from, elsewhere=far, tick=step)
                finished.append(made)
                reports.append(beside.submit(runs.report, made))
            for report in reports:
                report.result()
        finally:
            beside.shutdown(cancel_futures=True)
    return tuple(finished), runs.compare(finished, out)


def _step(tick: Tick, run: str) -> Tick:
    """Progress of one run, under its number and name."""
    return lambda what, done, total: tick(f"{run}: {what}", done, total)


def _refuse_occupied(out: Path, first: Path, resume: bool) -> None:
    if not out.is_dir():
        if out.exists() or out.is_symlink():
            raise RunError("out", str(out), "is not a directory", "Choose another directory.")
        return
    if not any(out.iterdir()):
        return
    if not resume:
        raise RunError("out", str(out), "exists already", "Choose another directory, or add --resume.")
    if not first.is_dir():
        raise RunError("out", str(out), "holds no quickstart", "Choose another directory.")


def table(page: Path) -> list[str]:
    """The comparison beside a page as lines for a terminal: accuracy, bytes and outcomes, a line a run."""
    value: dict[str, Any] = load_json(page.with_name("comparison.json"))
    goals = list(dict.fromkeys(o["goal"] for run in value["runs"] for o in run["outcomes"]))
    rows = [["run", "server", "clients", "worst", "bytes", *goals]]
    for run in value["runs"]:
        found = {o["goal"]: o["level"] or "not-audited" for o in run["outcomes"]}
        levels = [found.get(goal, "not-audited") for goal in goals]
        rows.append([run["name"], *_shares(run["accuracy"]), _amount(run["bytes"]["total"]), *levels])
    rows += [[line["line"], *_shares(line), "0 B"] for line in value["references"]]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows]


def _shares(line: Mapping[str, Any]) -> list[str]:
    values = [(line["server"] or {}).get("value"), line["mean"], (line["worst"] or {}).get("value")]
    return ["-" if v is None else f"{v:.1%}" for v in values]


def _amount(n: int) -> str:
    return f"{n / 1e6:.2f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB"
