"""Compare guesses with the truth: look up the attack's target in the vault and score the guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.errors import FdauditError
from fdaudit.handout.auxiliary import Assumption, others
from fdaudit.metrics import (
    OWN_IMAGES,
    AuxiliaryPool,
    WeightsUnavailableError,
    kl_divergence,
    load_lpips,
    match,
    score_generated,
    score_label_distribution,
    score_membership,
    score_reconstruction,
)
from fdaudit.rng import child_numpy
from fdaudit.scoring.class_truth import class_priors, evaluate_classes, score_classes
from fdaudit.scoring.galleries import Identified, bystanders_of, gallery_tests
from fdaudit.transcript.messages import role
from fdaudit.types import Challenge, Figure, Guess, LabelDistribution, Membership, Reconstruction, task_of

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.metrics import MembershipScore, ReconstructionScore
    from fdaudit.planning.plan import Plan
    from fdaudit.storage.vault import Vault

__all__ = ["Truth", "check_guesses"]

_SUM_TOLERANCE = 1e-4
"""Tolerance for guessed shares' sum of 1: float32 rounding over thousands of classes."""


def check_guesses(
    guesses: Sequence[Guess],
    victims: Sequence[str],
    candidates: Mapping[str, int],
    view: View,
    classes: int,
) -> None:
    """Refuse guesses that do not match their target or challenge.

    Membership needs one finite score for every candidate of every challenged victim. Class shares must be a
    distribution over the classes. A reconstruction is about messages or about classes. It must name a message of its
    target that is in the view, and none of another client. A class may occur only once. A victim has at most one guess.

    Args:
        guesses: what the attack returned.
        victims: the attacked parties.
        candidates: number of candidates, by challenged victim.
        view: what the attack was given.
        classes: number of classes.

    Raises:
        ValueError: a guess breaks one of these rules.
    """
    answered = sorted(g.target for g in guesses)
    if isinstance(guesses[0], LabelDistribution) and answered != sorted(victims):
        raise ValueError(f"the attack answered for {answered}; the victims are {sorted(victims)}")
    if isinstance(guesses[0], Membership) and answered != sorted(candidates):
        raise ValueError(f"the attack answered for {answered}; challenged were {sorted(candidates)}")
    senders = {m.seq: m.sender for m in view.messages}
    for guess in guesses:
        if type(guess) is not type(guesses[0]):
            raise ValueError("the attack returned guesses of more than one kind")
        if guess.target not in victims:
            raise ValueError(f"the attack answered for {guess.target}, who is no victim")
        if isinstance(guess, Membership):
            n = candidates[guess.target]
            if guess.scores.shape != (n,) or not bool(torch.isfinite(guess.scores).all()):
                got = tuple(guess.scores.shape)
                raise ValueError(
                    f"{guess.target}: needs one finite score for each of {n} candidates, got {got}"
                )
            made = guess.generated
            if made is not None and (made.ndim != 4 or not len(made) or not bool(torch.isfinite(made).all())):
                got = tuple(made.shape)
                raise ValueError(f"{guess.target}: needs finite generated images (k, c, h, w), got {got}")
        elif isinstance(guess, LabelDistribution):
            _check_shares(guess, classes)
        elif isinstance(guess, Reconstruction) and guess.by_class:
            first = guesses[0]
            if not (isinstance(first, Reconstruction) and first.by_class):
                raise ValueError("the attack returned reconstructions of messages and of classes")
            if guess.labels is None or guess.labels.shape != (len(guess.images),) or not len(guess.images):
                raise ValueError(f"{guess.target}: needs one class for each of {len(guess.images)} images")
            if len(guess.labels.unique()) < len(guess.labels):
                raise ValueError(
                    f"{guess.target}: shows a class more than once. Give one image a class at most"
                )
        elif isinstance(guess, Reconstruction):
            first = guesses[0]
            if isinstance(first, Reconstruction) and first.by_class:
                raise ValueError("the attack returned reconstructions of messages and of classes")
            sent_by = {senders.get(seq, "nobody in this view") for seq in guess.messages}
            others = sorted(s for s in sent_by - {guess.target} if role(s) != "server")
            if others or guess.target not in sent_by:
                named = others or "the server alone"
                raise ValueError(f"{guess.target}: its reconstruction names messages of {named}, not its own")
    if isinstance(guesses[0], Reconstruction) and len(set(answered)) < len(answered):
        raise ValueError(f"the attack answered for {answered}: give one reconstruction a victim")


def _check_shares(guess: LabelDistribution, classes: int) -> None:
    shares = guess.distribution
    if shares.shape != (classes,) or not bool(torch.isfinite(shares).all()):
        got = tuple(shares.shape)
        raise ValueError(f"{guess.target}: needs one finite share for each of {classes} classes, got {got}")
    if bool((shares < 0).any()) or abs(float(shares.double().sum()) - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{guess.target}: its shares are negative or do not sum to 1")


_MOST_IMAGES = 1000
"""Largest number of images a victim, because they are matched with its records one to one."""


class Truth:
    """The auditor's side of every challenge.

    Args:
        plan: the run's plan, data and splits included.
        vault: the run's vault.
    """

    def __init__(self, plan: Plan, vault: Vault) -> None:
        self._plan, self._vault = plan, vault
        self._known_behind: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        try:
            self._lpips: torch.nn.Module | None = load_lpips()
        except WeightsUnavailableError:
            self._lpips = None  # the metric then says itself what is missing

    def challenge(self, client: str) -> tuple[Challenge, Tensor]:
        """Return a client's candidates in random order and, for the auditor, which of them are members (n,)."""
        return self.challenge_on(client, self._plan.splits.clients[int(client.partition("/")[2])].train)

    def challenge_on(self, client: str, train: Tensor) -> tuple[Challenge, Tensor]:
        """Return the same candidates, and which of them (n,) are in another set of training records."""
        split = self._plan.splits.clients[int(client.partition("/")[2])]
        index = torch.cat([split.members, split.non_members])
        member = torch.isin(index, train)
        return self._shuffled(client, index, member, "matched-pairs", "challenge")

    def canaries(self, client: str) -> tuple[Challenge, Tensor]:
        """Return a client's canaries, if any, in random order, and which of them were trained on (m,)."""
        split, asked = self._plan.splits.clients[int(client.partition("/")[2])], self._plan.spec.canaries
        member = torch.isin(split.canaries, split.train)
        design = "coin-flips" if asked is None else asked.design
        return self._shuffled(client, split.canaries, member, design, "canary-challenge")

    @property
    def with_canaries(self) -> tuple[str, ...]:
        """Return the clients that have canaries."""
        splits = self._plan.splits.clients
        return tuple(k for k, split in zip(self._plan.clients, splits, strict=True) if len(split.canaries))

    def _shuffled(
        self,
        client: str,
        index: Tensor,
        member: Tensor,
        design: Literal["matched-pairs", "coin-flips"],
        purpose: str,
    ) -> tuple[Challenge, Tensor]:
        """Return a challenge with shuffled candidates and renumbered coins, so that order and number reveal nothing.

        In a challenge of matched pairs the second halves follow the first.
        """
        halves = 2 if design == "matched-pairs" else 1
        coins = len(index) // halves
        stream, data = self._plan.secrets.truth(purpose, client), self._plan.dataset
        order = torch.from_numpy(stream.permutation(len(index)))
        renamed = torch.from_numpy(stream.permutation(coins))[torch.arange(coins).repeat(halves)][order]
        rows = index[order]
        return Challenge(target=client, x=data.x[rows], y=data.y[rows], pair=renamed, design=design), member[
            order
        ]

    def membership(self, guesses: Sequence[Membership], cell: str) -> MembershipScore:
        """Score membership guesses against the coins, with the candidates of all victims pooled."""
        members, pairs, offset = [], [], 0
        for guess in guesses:
            challenge, member = self.challenge(guess.target)
            members.append(member)
            pairs.append(challenge.pair + offset)
            offset += len(member) // 2
        return score_membership(
            torch.cat([g.scores for g in guesses]),
            torch.cat(members),
            generator=child_numpy(self._plan.seed, "score", cell, *(g.target for g in guesses)),
            pair=torch.cat(pairs),
        )

    def label_shares(self, client: str) -> Tensor:
        """Return a client's class shares (C,), float64: of its training records or, multi-label, of all occurrences.

        Raises:
            FdauditError: no class occurs in its records.
        """
        return _shares(self._plan.records(client)[1], self._plan.dataset.classes, client)

    def label_prior(self, clients: Sequence[str]) -> tuple[str, Tensor]:
        """Return the better guess without a view, by mean KL divergence: equal shares or the auxiliary records' shares.

        The attack thus gets no credit for what auxiliary data reveals.

        Returns:
            Its name, and the shares (C,).
        """
        C = self._plan.dataset.classes
        uniform = torch.full((C,), 1 / C, dtype=torch.float64)
        priors = {"uniform prior": uniform}
        held = others(self._plan).records
        y = None if held is None else held[1]
        if y is not None and int(class_counts(y, C).sum()):
            priors["prior: class shares of auxiliary records"] = _shares(y, C, "auxiliary")
        truths = [self.label_shares(k) for k in clients]
        name = min(priors, key=lambda p: sum(kl_divergence(t, priors[p]) for t in truths))
        return name, priors[name]

    def labels(self, guess: LabelDistribution, name: str, prior: Tensor) -> Mapping[str, Figure]:
        """Return the distances of one guess from the client's class shares, each with the prior's distance."""
        figures = score_label_distribution(self.label_shares(guess.target), guess.distribution, prior)
        return {n: replace(f, note=f.note.replace("prior as given", name)) for n, f in figures.items()}

    def generated(
        self, guesses: Sequence[Membership], cell: str, encode: Callable[[Tensor], Tensor]
    ) -> tuple[Figure, ...]:
        """Measure how much nearer generated samples are to members than to non-members; pool victims that have samples.

        The result is empty if no guess uses generated samples. Samples that several victims share count once.
        """
        with_samples = [g for g in guesses if g.generated is not None]
        if not with_samples:
            return ()
        inside, outside = list[Tensor](), list[Tensor]()
        for guess in with_samples:
            challenge, member = self.challenge(guess.target)
            order = challenge.pair.argsort(stable=True)  # both halves in the order of their pairs
            x, member = challenge.x[order], member[order]
            inside.append(x[member])
            outside.append(x[~member])
        made = list[Tensor]()
        for guess in with_samples:
            if guess.generated is not None and not any(
                m.shape == guess.generated.shape and torch.equal(m, guess.generated) for m in made
            ):
                made.append(guess.generated)
        return score_generated(
            torch.cat(made),
            torch.cat(inside),
            torch.cat(outside),
            encode,
            child_numpy(self._plan.seed, "score-generated", cell, *(g.target for g in with_samples)),
        )

    def behind(self, client: str, messages: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) behind some messages of one client, each once, in order of first use."""
        rows = self._behind(client, tuple(messages))
        return self._plan.dataset.x[rows], self._plan.dataset.y[rows]

    def _behind(self, client: str, messages: tuple[int, ...]) -> Tensor:
        if (key := (client, messages)) not in self._known_behind:
            self._known_behind[key] = self._find_behind(*key)
        return self._known_behind[key]

    def _rows(self, guess: Reconstruction) -> Tensor:
        """Return the dataset numbers of the records that a guess is about."""
        if not guess.by_class:
            return self._behind(guess.target, guess.messages)
        return self._plan.splits.clients[int(guess.target.partition("/")[2])].train

    def refuse_too_many(self, guesses: Sequence[Guess], view: View) -> None:
        """Refuse more reconstructed images than records behind the messages that the guess names.

        An adversary may not know this number, so it may always guess one batch. If secret coins draw the records of a
        step, it may guess as many as the victim has.

        Raises:
            ValueError: a guess has more.
        """
        batch = int(view.hyperparameters.get("batch_size") or 1)
        for guess in guesses:
            if not isinstance(guess, Reconstruction) or guess.by_class:
                continue
            behind = len(self.behind(guess.target, guess.messages)[0])
            secret = len(self._plan.records(guess.target)[1]) if self._plan.training else 0
            most = min(max(behind, batch, secret), _MOST_IMAGES)
            if len(guess.images) > most:
                shown = f"{guess.target}: has {len(guess.images)} images, more than the {most} records"
                raise ValueError(
                    f"{shown} that its messages can come from. Give the {most} likeliest, or fewer"
                )

    def _find_behind(self, client: str, messages: Sequence[int]) -> Tensor:
        local: list[int] = []
        wanted = set(messages)
        for name in self._vault.names("truth"):
            batches = self._vault.load(name)
            for seq in sorted(wanted & {int(key) for key in batches}):
                local += batches[str(seq)].tolist()
                wanted.discard(seq)
            if not wanted:
                break
        own = self._plan.splits.clients[int(client.partition("/")[2])].train
        return own[torch.tensor(list(dict.fromkeys(local)), dtype=torch.int64)]

    def reconstruction(
        self, guesses: Sequence[Reconstruction], cell: str, assumed: Sequence[Assumption] = ()
    ) -> ReconstructionScore:
        """Score reconstructions, one batch a guess, against the prior baseline from what the adversaries hold.

        In the multi-label task the baseline knows no labels.

        Raises:
            FdauditError: no record stands behind a victim's messages; Poisson sampling can draw empty batches.
        """
        if guesses[0].by_class:
            beside = bystanders_of(self._plan, [g.target for g in guesses])
            return score_classes(self._plan, guesses, cell, assumed, beside, self._lpips)
        truths = [self.behind(g.target, g.messages) for g in guesses]
        for guess, (x, _) in zip(guesses, truths, strict=True):
            if not len(x):
                raise FdauditError(
                    f"{guess.target}: no record stands behind its messages {list(guess.messages)}: the steps of its "
                    "training drew nobody. There is nothing to be reconstructed; raise the defence's sample_rate."
                )
        auxiliary_x, auxiliary_y = others(self._plan).prior
        labelled = self._plan.dataset.task == "single-label"
        labels = [g.labels for g in guesses if g.labels is not None]
        return score_reconstruction(
            [g.images for g in guesses],
            [x for x, _ in truths],
            auxiliary_x,
            child_numpy(self._plan.seed, "score", cell),
            guess_labels=labels if len(labels) == len(guesses) else None,
            true_labels=[y for _, y in truths] if labelled else None,
            auxiliary_labels=auxiliary_y if labelled else None,
            bystanders=bystanders_of(self._plan, [g.target for g in guesses]),
            targets=[g.target for g in guesses],
            lpips_network=self._lpips,
        )

    def evaluation(
        self, guesses: Sequence[Reconstruction], cell: str, assumed: Sequence[Assumption], together: bool
    ) -> tuple[Figure, ...]:
        """Return figures of guesses of classes by the auditor's evaluator, for all victims or for one."""
        by_class = guesses[0].by_class
        return evaluate_classes(self._plan, guesses, cell, assumed, together) if by_class else ()

    def identification(self, guesses: Sequence[Reconstruction], cell: str) -> Identified:
        """Test whether a cell's guesses identify records among others of their class."""
        return gallery_tests(self._plan, guesses, [self._rows(g) for g in guesses], cell)

    def records(self, guess: Reconstruction) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that a guess is about: behind its messages, or all of its target's."""
        rows = self._rows(guess)
        return self._plan.dataset.x[rows], self._plan.dataset.y[rows]

    def prior_images(
        self,
        guess: Reconstruction,
        score: ReconstructionScore,
        cell: str,
        assumed: Sequence[Assumption] = (),
    ) -> Tensor | None:
        """Return the prior baseline's images for a score's true images, (rows, c, h, w) in the order of `score.images`.

        They are one draw of the baseline's best PSNR strategy. They are matched to the truth as guesses are, or belong
        to the class of the guess.
        """
        played = score.strategies.get("psnr", ())
        if not played or played[0] == OWN_IMAGES:
            return None
        x, y = self.records(guess)
        generator = child_numpy(self._plan.seed, "prior-images", cell, guess.target)
        rows = [r.truth for r in score.images]
        if guess.by_class:
            of = y[rows].numpy()  # a guess is of the class of its nearest record
            priors = class_priors(self._plan, assumed)
            return None if priors is None else priors.guess(played[0], of, generator).float()
        auxiliary, labels = others(self._plan).prior
        if auxiliary is None:
            return None
        labelled = task_of(y) == "single-label"
        pool = AuxiliaryPool(auxiliary, labels if labelled else None)
        shown = pool.guess(played[0], len(x), y.numpy() if labelled else None, generator)
        return shown[match(shown, x)].float()[rows]


def _shares(y: Tensor, classes: int, whose: str) -> Tensor:
    counts = class_counts(y, classes).double()
    if not counts.sum():
        raise FdauditError(
            f"{whose}: no class occurs in its records, so they have no class shares to be guessed."
        )
    return counts / counts.sum()
