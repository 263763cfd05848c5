"""Controls of attacks on uploads: a client that trained on half of the candidates, and one that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit import protocols
from fdaudit.config import validate
from fdaudit.evaluation.controls._membership import (
    Design,
    Measured,
    design,
    guessed,
    knowing,
    on_fedavg,
    passed,
)
from fdaudit.handout.auxiliary import others
from fdaudit.storage.scratch import scratch

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case
    from fdaudit.result import Control

__all__ = ["recorded_uploads"]

_ROUNDS, _LR, _BATCH = 30, 0.1, 8
_MOST = 64
"""Most candidates."""
_SHARE = 0.6
"""Share of the auxiliary records that are candidates; another client holds records of the rest."""


def recorded_uploads(attack: AttackPlan, plan: Case) -> dict[str, Control]:
    """Return both controls: FedAvg with one gradient per round on the run's network, seen by the server.

    The victim of the positive control holds one candidate of each pair, by a fair coin. The victim of the negative
    control holds as many other records, so the coins are independent of its messages.
    """
    made = design(attack, plan, share=_SHARE, most=_MOST, random_labels=False)
    count = int(made.member.sum())
    x, y = made.rest
    apart = (x[:count], y[:count])
    found = {
        name: _attacked(attack, plan, made, held)
        for name, held in (("positive", made.members), ("negative", apart))
    }
    what = f"gradients of {_ROUNDS} rounds of FedAvg, batches of {_BATCH}"
    return passed(
        (f"{what}, of a client with {count} auxiliary records against {count} held out", found["positive"]),
        (f"the same candidates, {what}, of a client with {len(apart[1])} other records", found["negative"]),
    )


def _attacked(attack: AttackPlan, plan: Case, made: Design, held: tuple[Tensor, Tensor]) -> Measured:
    """Return the attack's AUC about a client that holds these records."""
    fedavg = protocols.REGISTRY.load("fedavg")
    settings = {"rounds": _ROUNDS, "upload": "gradient", "local_steps": 1, "batch_size": _BATCH, "lr": _LR}
    (x, y), count = made.rest, len(held[1])
    with scratch("control") as folder:
        config = validate(fedavg.Config, settings)
        view = on_fedavg(attack, plan, folder, config, [held, (x[count:], y[count:])])
        return guessed(attack, plan, view, knowing(plan, auxiliary=others(plan).records), made)
