"""The strongest attacks that the refutation suite knows: each reads what a view holds of each canary directly.

The adversary is the one that differential privacy protects against: it knows every canary and all other records of
the client, and the public initial model. It reads

  * `update`: how far each canary's gradient goes into a change of parameters, by regression on the gradients of
    all records of the client; and plainly, by projection;
  * `loss`: each canary's loss under a model that it saw;
  * `answer`: what was said of the canary's own image, where it is a public sample, for its label against its class;
  * `oracle`: what a model says of the canary when asked;
  * `table`: whether a table of classes has the canary's class.

Beside these count the membership attacks of fdaudit itself that the case's spec asks for, by their scores of canaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.adversary.view import View
from fdaudit.audit.run import Run
from fdaudit.handout.oracle_server import Answering
from fdaudit.planning.case import Case
from fdaudit.rng import SecretStream
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.scoring import kept_scores
from fdaudit.storage.vault import Vault
from fdaudit.transcript.messages import Message
from fdaudit.transcript.samples import sample_index
from fdaudit.types import Challenge

__all__ = ["Asked", "Attacker", "Scores"]

_UPDATES = {"model_update": 1.0, "gradient": -1.0}
"""Kinds that say how parameters change, and in which direction."""
_OWN = -2
"""In the place of a message: the client's own initial model."""
_RIDGE = 1e-4
_PROBES = 300
"""Samples on which answers are regressed."""
_ANSWERS = ("logits", "soft_labels", "hard_labels", "ensemble_labels", "vote_counts")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The canaries of one client, and what else the adversary knows.

    Attributes:
        client: whose they are.
        challenge: images, labels and pairs.
        others: the client's other records (x, y).
        rows: (n,) the public sample that is the canary's image; -1 where there is none.
    """

    client: str
    challenge: Challenge
    others: tuple[Tensor, Tensor]
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of n canaries by the attacks on one view.

    Attributes:
        of: by attack, the scores (n,), higher for "trained on".
        member: (n,) who was trained on.
        pair: (n,) numbers of pairs, where a coin decides between two canaries.
        coins: how many coins were tossed.
    """

    of: Mapping[str, Tensor]
    member: Tensor
    pair: Tensor | None
    coins: int


class Attacker:
    """Attacks one run; what several views have in common is computed once.

    Args:
        run: a finished run with canaries.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.case = run, run.case
        self._vault = Vault(run.directory / "vault")
        self._answering = Answering(run.case, self._vault)
        self._trainer, self._initial = run.case.trainer(), run.case.initial()
        self._module = self._trainer.network(self._initial).eval()
        self._kept: dict[tuple[Any, ...], Any] = {}
        truth = Truth(run.case, self._vault)
        self._truth = {k: truth.canaries(k) for k in truth.with_canaries}
        self._asked = {k: _asked(run.case, k, challenge) for k, (challenge, _) in self._truth.items()}

    @property
    def paired(self) -> bool:
        """Return whether each coin decides between two canaries."""
        return any(c.design == "matched-pairs" for c, _ in self._truth.values())

    def scores(self, view: str) -> Scores:
        """Return every attack's scores of all canaries of clients that are no members of the adversary."""
        seen = self.run.view(view)
        attacked = [k for k in self._truth if k not in seen.members]
        found: dict[str, list[Tensor]] = {}
        pairs, coins = [], 0
        for k in attacked:
            asked = self._asked[k]
            for name, score in {**self._read(seen, asked), **self._answered(seen, asked)}.items():
                found.setdefault(name, []).append(score.double())
            pairs.append(asked.challenge.pair + coins)
            coins += len(asked.challenge.y) // (2 if self.paired else 1)
        for name, by_client in self._own_attacks(view).items():
            if all(k in by_client for k in attacked):
                found[name] = [by_client[k].double() for k in attacked]
        whole = {n: torch.cat(s).nan_to_num() for n, s in found.items() if len(s) == len(attacked)}
        member = torch.cat([self._truth[k][1] for k in attacked])
        return Scores(of=whole, member=member, pair=torch.cat(pairs) if self.paired else None, coins=coins)

    def _own_attacks(self, view: str) -> dict[str, dict[str, Tensor]]:
        """The scores of canaries that fdaudit's own attacks left in the vault, by attack and client."""
        wanted = [a.name for a in self.case.attacks if a.params is not None and view in a.adversaries]
        scores = {name: kept_scores(self.run.directory, f"{view}/{name}", "canaries") for name in wanted}
        return {name: by_client for name, by_client in scores.items() if by_client}

    # -- what a view shows ------------------------------------------------------------------------------------------

    def _read(self, view: View, asked: Asked) -> dict[str, Tensor]:
        """The scores that need no question."""
        found = dict[str, list[Tensor]]()
        reference = -1
        for m in view.messages:
            for name, score in self._of_message(view, m, asked, reference).items():
                if name == "loss of the last model":
                    found[name] = []
                found.setdefault(name, []).append(score)
            clients = [party for party in m.receivers if party.startswith("client/")]
            starts = (
                asked.client in clients or not clients
            )  # not another client's copy, from a deviating server
            if m.kind == "model_parameters" and m.sender == "server" and m.tensors and starts:
                reference = m.seq
        return {name: torch.stack(scores).sum(0) for name, scores in found.items()}

    def _of_message(self, view: View, m: Message, asked: Asked, reference: int) -> dict[str, Tensor]:
        if not m.tensors or m.sender not in (asked.client, "server", "aggregator"):
            return {}
        key = (m.seq, asked.client, reference)
        if key not in self._kept:
            self._kept[key] = self._scored(view, m, asked, reference)
        kept: dict[str, Tensor] = self._kept[key]
        return kept

    def _scored(self, view: View, m: Message, asked: Asked, reference: int) -> dict[str, Tensor]:
        """The scores that one message gives, where parameters start from those of message `reference`."""
        mine = "own" if m.sender == asked.client else "of all"
        if m.kind == "model_parameters":
            sent = self._parameters(view, m)
            whole = {**self._initial, **sent}  # predictors alone may be sent
            loss = self._losses(self._initial, asked) - self._losses(whole, asked)
            changed = self._of_change(asked, reference, sent, drift=True)
            return {
                **{f"{n} of a model": s for n, s in changed.items()},
                "loss of the last model": loss,
                "loss of all models": loss,
            }
        if m.kind in _UPDATES and m.sender != "server":
            sent = {n: _UPDATES[m.kind] * t for n, t in self._parameters(view, m).items()}
            return self._of_change(asked, reference, sent)
        if m.kind == "class_prototypes":
            table, y = view.tensors(m)["values"].double(), asked.challenge.y
            return {f"table, {mine}": table[y].sum(1), f"table by class, {mine}": table[y, y]}
        if m.kind in _ANSWERS:
            tensors = view.tensors(m)
            found = {}
            if bool((asked.rows >= 0).any()):
                found[f"answer, {mine}"] = _in_answer(self.case, tensors, asked)
            if (
                len(self.case.public)
                and "values" in tensors
                and tensors["values"].ndim == 2
                and tensors["values"].shape[1] == 10
            ):
                probes = self._probes(sample_index(tensors))
                soft = (
                    m.kind == "soft_labels"
                    or float(tensors["values"].float().sum(1).sub(1).abs().max()) < 1e-3
                )
                found[f"answers by regression, {mine}"] = self._of_outputs(
                    asked, probes, tensors["values"][:_PROBES].float(), soft
                )
            return found
        return {}

    def _probes(self, index: Tensor) -> Tensor:
        key = ("probes", tuple(index[:_PROBES].tolist()))
        if key not in self._kept:
            self._kept[key] = self.case.public[index[:_PROBES].long()]
        found: Tensor = self._kept[key]
        return found

    def _parameters(self, view: View, m: Message) -> Mapping[str, Tensor]:
        if (m.seq,) not in self._kept:
            self._kept[m.seq,] = {n: t.float() for n, t in view.tensors(m).items()}
        kept: Mapping[str, Tensor] = self._kept[m.seq,]
        return kept

    def _of_change(
        self, asked: Asked, reference: int, sent: Mapping[str, Tensor], drift: bool = False
    ) -> dict[str, Tensor]:
        """Scores of a change of parameters, each record's gradient being taken where the change starts."""
        start = self._kept.get((reference,), self._initial)
        names = sorted(n for n in start if n in sent)
        moved = torch.cat([(sent[n] - (start[n] if drift else 0)).flatten() for n in names]).double()
        records, n = self._records(asked, reference, names), len(asked.challenge.y)
        return {
            "update by regression": _regression(records, -moved)[:n],
            "update by projection": -(records @ moved)[:n],
        }

    def _records(self, asked: Asked, reference: int, names: Sequence[str] = ()) -> Tensor:
        """The directions (n, d) in which the canaries, and then the client's other records, pull a model.

        Where a part of it was sent, the rest is the client's own first one, and `names` are the parameters that count.
        """
        start = self._own(asked) if reference == _OWN else self._kept.get((reference,), self._initial)
        names = list(names) or sorted(start)
        key = ("gradients", reference, asked.client, *names)
        if key not in self._kept:
            start = {**self._own(asked), **start}
            own = self._gradients(start, names, asked.challenge.x, asked.challenge.y)
            records = torch.cat([own, self._gradients(start, names, *asked.others)])
            self._kept[key] = records / records.norm(dim=1, keepdim=True).clamp_min(1e-9)
        found: Tensor = self._kept[key]
        return found

    def _own(self, asked: Asked) -> Mapping[str, Tensor]:
        """The model that a client starts from: a guarantee holds against whoever knows it."""
        return self.case.networks.initial([asked.client], self.case.seed)[asked.client]

    def _of_outputs(self, asked: Asked, probes: Tensor, said: Tensor, soft: bool) -> Tensor:
        """Return scores (n,) from a client's answers, by the change that each record would make to them.

        Args:
            asked: the canaries of the client.
            probes: (p, c, h, w) samples.
            said: (p, C) logits, or probabilities where `soft`.
            soft: which they are.
        """
        key = ("outputs", asked.client, probes.data_ptr(), soft)
        if key not in self._kept:
            self._kept[key] = self._inverse(asked, probes, soft)
        before, whitened, factor = self._kept[key]
        changed = (before - said.double()).flatten()[:, None]
        seen = torch.linalg.solve_triangular(factor, changed, upper=False)[:, 0]
        return _regression(self._records(asked, _OWN) @ whitened.T, seen)[: len(asked.challenge.y)]

    def _inverse(self, asked: Asked, probes: Tensor, soft: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs (p, C) of a client's initial model, their whitened Jacobian (pC, d), and what whitens it."""
        start = self._own(asked)
        names = sorted(start)

        def outputs(weights: dict[str, Tensor], image: Tensor) -> Tensor:
            logits: Tensor = torch.func.functional_call(self._module, weights, (image[None],))[0]
            return logits.softmax(0) if soft else logits

        before = torch.func.vmap(outputs, in_dims=(None, 0))(dict(start), probes).double()
        by_name = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))(dict(start), probes)
        jacobian = torch.cat([by_name[n].flatten(2) for n in names], 2).flatten(0, 1).double()
        gram = jacobian @ jacobian.T
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        factor = torch.linalg.cholesky(gram + ridge).detach()
        whitened = torch.linalg.solve_triangular(factor, jacobian.detach(), upper=False)
        return before.detach(), whitened, factor

    def _gradients(self, start: Mapping[str, Tensor], names: list[str], x: Tensor, y: Tensor) -> Tensor:
        """The gradient (n, d) of each record's cross-entropy."""
        weights = {n: start[n].detach() for n in names}
        fixed = {n: t.detach() for n, t in start.items() if n not in weights}

        def loss(free: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            logits: Tensor = torch.func.functional_call(self._module, {**fixed, **free}, (image[None],))
            return F.cross_entropy(logits, label[None])

        if not len(x):
            return torch.zeros(0, sum(t.numel() for t in weights.values()), dtype=torch.float64)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        return torch.cat([each[n].flatten(1) for n in names], 1).double()

    def _losses(self, parameters: Mapping[str, Tensor], asked: Asked) -> Tensor:
        with torch.no_grad():
            logits = torch.func.functional_call(self._module, dict(parameters), (asked.challenge.x,))
        return F.cross_entropy(logits.double(), asked.challenge.y, reduction="none")

    # -- what an oracle answers -------------------------------------------------------------------------------------

    def _answered(self, view: View, asked: Asked) -> dict[str, Tensor]:
        """The scores of an adversary that asks for each canary once, by itself."""
        x, secret = asked.challenge.x, self._vault.secrets.secret
        for wanted in ("soft", "hard"):
            handle = self._answering.oracle(view.members, wanted)
            if (
                handle is None
                or handle.budget < len(x)
                or (handle.models and asked.client not in handle.models)
            ):
                continue
            of = asked.client if handle.models else None
            noise = SecretStream(secret, "refutation", view.name, asked.client)
            told = [self._answering.reply(wanted, image[None], of, noise) for image in x]
            answers = torch.cat(told).cpu()
            found = {f"oracle, {wanted}": _in_favour(answers, asked.challenge.y)}
            if answers.ndim == 2:
                found["oracle by regression"] = self._of_outputs(asked, x, answers, soft=True)
            return found
        return {}


def _regression(effects: Tensor, seen: Tensor) -> Tensor:
    """The share (n,) of each record's effect (n, d) in what is seen (d,)."""
    size = effects.norm(dim=1, keepdim=True).mean().clamp_min(1e-12)
    scaled = effects / size
    gram = scaled @ scaled.T
    return torch.linalg.solve(gram + 0.03 * torch.eye(len(gram), dtype=gram.dtype), scaled @ seen)


def _in_answer(case: Case, tensors: Mapping[str, Tensor], asked: Asked) -> Tensor:
    """Return how much a message supports each canary's label, where its image is a sample."""
    index = sample_index(tensors)
    values = (tensors["values"] if "values" in tensors else tensors["counts"]).cpu()
    said = torch.zeros(len(case.public), case.dataset.classes, dtype=torch.float64)
    known = (index >= 0) & (index < len(said))
    if values.ndim == 1:
        known &= (values >= 0) & (values < said.shape[1])
        said[index[known], values[known].long()] = 1.0
    else:
        said[index[known]] = values[known].double() - values[known].double().mean(1, keepdim=True)
    return torch.where(asked.rows >= 0, said[asked.rows.clamp_min(0), asked.challenge.y], 0.0)


def _in_favour(told: Tensor, y: Tensor) -> Tensor:
    if told.ndim == 1:
        return (told == y).double()
    return told.double().clamp_min(1e-12).log()[torch.arange(len(y)), y]


def _asked(case: Case, client: str, challenge: Challenge) -> Asked:
    split = case.splits.clients[int(client.partition("/")[2])]
    kept = split.train[~torch.isin(split.train, split.canaries)]
    others = case.dataset.x[kept], case.dataset.y[kept]
    return Asked(client=client, challenge=challenge, others=others, rows=_rows(case, challenge.x))


def _rows(case: Case, x: Tensor) -> Tensor:
    """The public sample that is each image; -1 where none is."""
    if not len(case.public):
        return torch.full((len(x),), -1)
    same = torch.cdist(x.flatten(1).double(), case.public.flatten(1).double()) < 1e-6
    return torch.where(same.any(1), same.float().argmax(1), -1)
