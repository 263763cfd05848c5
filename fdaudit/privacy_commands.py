"""The commands that speak of ε: what a run costs, and how much noise keeps to a budget."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args

import typer

from fdaudit.errors import UsageError, nearest
from fdaudit.events import Relation, Unit
from fdaudit.places import mirrored
from fdaudit.terminal import AsJson, RunPath, say, show

__all__ = ["calibrate", "ledger"]


def ledger(
    run: RunPath,
    adversary: Annotated[
        list[str] | None,
        typer.Option(help="Whose view; repeat for several. Default: the spec's and every server."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; default: the spec's.")] = None,
    unit: Annotated[str | None, typer.Option(help="record or client; default: the spec's.")] = None,
    relation: Annotated[
        str | None, typer.Option(help="add-or-remove or replace-one; default: what the run's events suit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what ε each adversary's view costs the worst client, or why none can be claimed."""
    from fdaudit.bookkeeping import table, views_of
    from fdaudit.needs import but_reports
    from fdaudit.runs import load

    with mirrored(run, need=but_reports, quiet=as_json) as place:
        opened = load(place.path)
        found = [
            opened.ledger(
                view,
                delta=delta,
                unit=_one_of("unit", unit, Unit),
                relation=_one_of("relation", relation, Relation),
            )
            for view in adversary or views_of(opened.plan)
        ]
    if as_json:
        show(json.dumps([entry.to_json() for entry in found]))
        return
    show(*table(found))
    for warning in dict.fromkeys(w for entry in found for w in entry.warnings):
        say(f"warning: {warning}")


def calibrate(
    defence: Annotated[
        str, typer.Argument(help="dp-sgd, gnmax, sanitized-gradients, …; see --help of the options.")
    ],
    epsilon: Annotated[float, typer.Option(help="ε to keep to.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    releases: Annotated[int, typer.Option(help="Messages, or PATE queries, that are noised.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of DP-SGD, or of FedIOD's generator, in the run.")] = 1,
    samples: Annotated[int, typer.Option(help="Generated samples a step.")] = 1,
    sample_rate: Annotated[float, typer.Option(help="q of DP-SGD.")] = 1.0,
    sensitivity: Annotated[float, typer.Option(help="Of noise on a message: twice its clip.")] = 1.0,
    answered: Annotated[int | None, typer.Option(help="Confident-GNMax: the cap on answers.")] = None,
    threshold_noise: Annotated[float, typer.Option(help="Confident-GNMax: σ1 over σ.")] = 2.0,
    drawn_from: Annotated[int, typer.Option(help="Of how many clients one is drawn a step.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find the least noise with which a defence, used so often, keeps to an ε."""
    from fdaudit.accounting.calibration import SHAPES, Shape, noise_for
    from fdaudit.config import validate

    if not 0 < delta < 1:
        raise UsageError("--delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
    given = {
        "releases": releases, "steps": steps, "samples": samples, "sample_rate": sample_rate,
        "sensitivity": sensitivity, "answered": answered, "threshold_noise": threshold_noise, "drawn_from": drawn_from,
    }  # fmt: skip
    noise, reached = noise_for(defence, validate(Shape, given), epsilon, delta)
    setting = SHAPES[defence][0]
    if as_json:
        found = {"defence": defence, "setting": setting, "value": noise, "epsilon": reached, "delta": delta}
        show(json.dumps(found | _assumed(defence, sensitivity)))
        return
    # Noise is rounded up, so of its inverse more digits are shown than could round it up in turn.
    name, value = (setting[2:], f"{1 / noise:.8g}") if setting.startswith("1/") else (setting, f"{noise:.5g}")
    assumed = "".join(f", {what} = {number:g}" for what, number in _assumed(defence, sensitivity).items())
    show(f"{defence}: {name} = {value}, ε = {reached:.4g} at δ = {delta:g}{assumed}")


def _assumed(defence: str, sensitivity: float) -> dict[str, float]:
    """What the noise on a message was calibrated for. Replacing all of it moves a message by twice its clip."""
    if defence == "gaussian-noise":
        return {"clip": sensitivity / 2, "sensitivity": sensitivity}
    return {"sensitivity": sensitivity} if defence == "laplace-noise" else {}


def _one_of(field: str, value: str | None, names: Any) -> Any:
    """A word of a closed list, or None."""
    known = get_args(names)
    if value is not None and value not in known:
        raise UsageError(field, value, "is not known", nearest(value, known))
    return value
