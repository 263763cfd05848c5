"""Controls of attacks on what a client sends: one that trained on half of the candidates, and one that has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.deviations.candidate_neurons import CandidateNeurons, CandidateNeuronsConfig
from fdaudit.evaluation.controls._case import VICTIM, Records, Sent, SmallCase, knowing, on_protocol, said
from fdaudit.evaluation.controls._membership import ControlRecord, PairedCandidates, design, on_coins
from fdaudit.handout.auxiliary import others
from fdaudit.training.trainer import Fit, Job
from fdaudit.transcript.wire import Outgoing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

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


def recorded_uploads(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: FedAvg with one gradient per round on the run's network, seen by the server.

    The victim of the positive control holds one candidate of each pair, by a fair coin. The victim of the negative
    control holds as many other records, so the coins are independent of its messages.
    """
    coins = design(attack, case, share=_SHARE, most=_MOST)
    what = f"gradients of {_FEDAVG['rounds']} rounds of FedAvg, batches of {_FEDAVG['batch_size']}"
    return _on_clients(attack, case, coins, what, "fedavg", _FEDAVG)


def recorded_tables(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: FKD on the run's network, whose clients send class means, seen by the server.

    Labels are drawn at random, so a client learns its few records by heart. The victims are those of
    `recorded_uploads`.
    """
    coins = design(attack, case, share=_SHARE_OF_TABLES, most=_MOST_OF_TABLES, random_labels=True)
    what = f"class means of {_FKD['rounds']} rounds of FKD under random labels"
    return _on_clients(attack, case, coins, what, "fkd", _FKD)


def crafted_neurons(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: a client's gradient of one batch at a model with a neuron for each candidate.

    The batch of the positive control holds one candidate of each pair, by a fair coin. That of the negative control
    holds as many other records.
    """
    coins = design(attack, case, share=_SHARE, most=_MOST_OF_NEURONS)
    (x, y), count = coins.rest, coins.pairs
    what = "the gradient of one batch at a model with a neuron for each candidate"
    return on_coins(
        attack,
        case,
        coins,
        ControlRecord(
            f"{what}, of {count} auxiliary records against {count} held out",
            said(attack, case, _at_crafted_model(case, coins, coins.members)),
        ),
        ControlRecord(
            f"the same candidates, {what}, of {count} other records",
            said(attack, case, _at_crafted_model(case, coins, (x[:count], y[:count]))),
        ),
    )


def _on_clients(
    attack: AttackPlan,
    case: Case,
    coins: PairedCandidates,
    what: str,
    protocol: str,
    settings: Mapping[str, Any],
) -> dict[str, SmallCase]:
    """Return both cases of a protocol with these settings: its victim holds candidates, or other records."""
    (x, y), count = coins.rest, coins.pairs
    apart, another = (x[:count], y[:count]), (x[count:], y[count:])
    return on_coins(
        attack,
        case,
        coins,
        ControlRecord(
            f"{what}, of a client with {count} auxiliary records against {count} held out",
            on_protocol(protocol, attack, case, settings, [coins.members, another]),
        ),
        ControlRecord(
            f"the same candidates, {what}, of a client with {len(apart[1])} other records",
            on_protocol(protocol, attack, case, settings, [apart, another]),
        ),
        knowledge=knowing(case, auxiliary=others(case).records),
    )


def _at_crafted_model(case: Case, coins: PairedCandidates, records: Records) -> Sequence[Sent]:
    """Return a crafted model and the gradient of these records at it."""
    knowledge = knowing(case, candidates={VICTIM: (coins.challenge.x, coins.challenge.y)})
    draft = Outgoing(
        round=0,
        step=0,
        sender="server",
        receivers=(VICTIM,),
        kind="model_parameters",
        tensors=case.initial(),
    )
    deviation = CandidateNeurons(CandidateNeuronsConfig(rounds=(0,)), knowledge)
    (crafted,) = deviation.sends(draft, torch.Generator().manual_seed(0))
    x, y = records
    job = Job(party=VICTIM, parameters=crafted.tensors, x=x, targets=y, batches=[torch.arange(len(y))])
    (gradient,) = case.trainer().gradients([job], Fit(lr=1.0))
    return [
        ("server", VICTIM, "model_parameters", crafted.tensors),
        (VICTIM, "server", "gradient", gradient.parameters),
    ]
