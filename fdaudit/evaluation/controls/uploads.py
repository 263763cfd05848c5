"""Controls of attacks on what a client sends: one that trained on half of the candidates, and one that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fdaudit import protocols
from fdaudit.config import validate
from fdaudit.deviations.candidate_neurons import CandidateNeurons, CandidateNeuronsConfig
from fdaudit.evaluation.controls._membership import (
    Measured,
    PairedCandidates,
    design,
    guessed,
    knowing,
    on_protocol,
    passed,
    said,
    score,
)
from fdaudit.handout.auxiliary import others
from fdaudit.storage.scratch import scratch
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.wire import Outgoing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case
    from fdaudit.result import Control

__all__ = ["crafted_neurons", "recorded_tables", "recorded_uploads"]

_FEDAVG = {"rounds": 30, "upload": "gradient", "local_steps": 1, "batch_size": 8, "lr": 0.1}
_FKD = {"rounds": 20, "local_epochs": 5, "batch_size": 8, "lr": 0.1}
_MOST = 64
"""Most candidates of uploads."""
_SHARE = 0.6
"""Share of the auxiliary records that are candidates of uploads; another client holds records of the rest."""
_MOST_OF_NEURONS = 24
"""Most candidates of a crafted model: networks may have few neurons."""
_MOST_OF_TABLES = 24
_SHARE_OF_TABLES = 0.3


def recorded_uploads(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: FedAvg with one gradient per round on the run's network, seen by the server.

    The victim of the positive control holds one candidate of each pair, by a fair coin. The victim of the negative
    control holds as many other records, so the coins are independent of its messages.
    """
    made = design(attack, case, share=_SHARE, most=_MOST, random_labels=False)
    what = f"gradients of {_FEDAVG['rounds']} rounds of FedAvg, batches of {_FEDAVG['batch_size']}"
    return _both(attack, case, made, what, "fedavg", _FEDAVG)


def recorded_tables(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: FKD on the run's network, whose clients send class means, seen by the server.

    Labels are drawn at random, so a client learns its few records by heart. The victims are those of
    `recorded_uploads`.
    """
    made = design(attack, case, share=_SHARE_OF_TABLES, most=_MOST_OF_TABLES)
    what = f"class means of {_FKD['rounds']} rounds of FKD under random labels"
    return _both(attack, case, made, what, "fkd", _FKD)


def crafted_neurons(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: a client's gradient of one batch at a model with a neuron for each candidate.

    The batch of the positive control holds one candidate of each pair, by a fair coin. That of the negative control
    holds as many other records.
    """
    made = design(attack, case, share=_SHARE, most=_MOST_OF_NEURONS, random_labels=False)
    count = int(made.member.sum())
    x, y = made.rest
    found = {
        name: _at_crafted_model(attack, case, made, records)
        for name, records in (("positive", made.members), ("negative", (x[:count], y[:count])))
    }
    what = "the gradient of one batch at a model with a neuron for each candidate"
    return passed(
        (f"{what}, of {count} auxiliary records against {count} held out", found["positive"]),
        (f"the same candidates, {what}, of {count} other records", found["negative"]),
    )


def _both(
    attack: AttackPlan,
    case: Case,
    made: PairedCandidates,
    what: str,
    protocol: str,
    settings: Mapping[str, Any],
) -> dict[str, Control]:
    """Return the controls of a protocol with these settings: its victim holds candidates, or other records."""
    count = int(made.member.sum())
    x, y = made.rest
    apart = (x[:count], y[:count])
    found = {
        name: _attacked(attack, case, made, held, protocol, settings)
        for name, held in (("positive", made.members), ("negative", apart))
    }
    return passed(
        (f"{what}, of a client with {count} auxiliary records against {count} held out", found["positive"]),
        (f"the same candidates, {what}, of a client with {len(apart[1])} other records", found["negative"]),
    )


def _attacked(
    attack: AttackPlan,
    case: Case,
    made: PairedCandidates,
    held: tuple[Tensor, Tensor],
    protocol: str,
    settings: Mapping[str, Any],
) -> Measured:
    """Return the attack's AUC about a client that holds these records."""
    (x, y), count = made.rest, len(held[1])
    with scratch("control") as folder:
        config = validate(protocols.REGISTRY.load(protocol).Config, settings)
        view = on_protocol(protocol, attack, case, folder, config, [held, (x[count:], y[count:])])
        return guessed(attack, case, view, knowing(case, auxiliary=others(case).records), made)


def _at_crafted_model(
    attack: AttackPlan, case: Case, made: PairedCandidates, records: tuple[Tensor, Tensor]
) -> Measured:
    """Return the attack's AUC from the gradient of these records."""
    victim = made.challenge.target
    knowledge = knowing(case, candidates={victim: (made.challenge.x, made.challenge.y)})
    draft = Outgoing(
        round=0,
        step=0,
        sender="server",
        receivers=(victim,),
        kind="model_parameters",
        tensors=case.initial(),
    )
    deviation = CandidateNeurons(CandidateNeuronsConfig(rounds=(0,)), knowledge)
    (sent,) = deviation.sends(draft, torch.Generator().manual_seed(0))
    x, y = records
    job = Job(party=victim, parameters=sent.tensors, x=x, targets=y, batches=[torch.arange(len(y))])
    (gradient,) = case.trainer().gradients([job], Fit(lr=1.0))
    messages = [
        ("server", victim, "model_parameters", sent.tensors),
        (victim, "server", "gradient", gradient.parameters),
    ]
    with said(case, attack, messages) as view:
        return score(attack, case, view, made)
