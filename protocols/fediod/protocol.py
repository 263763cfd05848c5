"""FedIOD (Gong et al. 2023): distillation on samples that a generator learns from the clients' own feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from fdaudit.errors import SpecError
from fdaudit.federation.local_training import Basis, joined
from fdaudit.federation.protocol import CURIOUS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.public_answers import ballot
from fdaudit.federation.state import take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import SecretStream
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.messages import DATA, DRAWN
from fdaudit.transcript.wire import Delivery

from .config import FedIODConfig
from .parties import Answer, FedIODClient
from .server import FedIODServer
from .votes import count_votes, shares_of

__all__ = ["FedIOD", "FedIODConfig"]

Result = TypeVar("Result")


class FedIOD:
    """Input-output collaborative distillation: no parameters of clients, no auxiliary data.

    Clients train task models to completion. The server then draws samples from its generator. Clients answer with
    logits and discriminator scores. The server sends its gradient at the logits. Clients answer with the gradient at
    the samples, from which the generator learns. A student learns the weighted ensemble of the logits. Parameters are
    never sent. But the server chooses every sample that the private models and discriminators answer, and receives
    their gradients there.

    With `outputs: votes` no logits are sent. Each client sends its predicted class to an aggregator. The aggregator
    counts one vote a client and sends the server the counts, or a PATE defence's result from them. The student learns
    these labels. The server computes the student's term of the generator's loss itself, and clients add only L_gan's
    gradient.
    """

    card = ProtocolCard(
        name="fediod",
        source="Gong, Li, Bao, Yao, Huang, Wu, Zhang, Zheng & Doermann 2023 (AAAI 2024), Algorithm 1",
        roles=("server", "aggregator", "client"),
        roles_when={"aggregator": {"outputs": "votes"}},
        messages=(
            {
                "kind": "class_counts",
                "from": "client",
                "to": "server",
                "what": "records of each class, once, for the weights of Eq. 8 or by records",
                "when": {"weights": "eq8"},
            },
            {
                "kind": "class_counts",
                "from": "client",
                "to": "server",
                "what": "the same, for the shares π_k of Eq. 2-4",
                "when": {"shares": "samples"},
            },
            {
                "kind": "class_counts",
                "from": "client",
                "to": "server",
                "what": "the same, for weights by records",
                "when": {"weights": "samples"},
            },
            {
                "kind": "class_counts",
                "from": "client",
                "to": "server",
                "what": "the same, for weights by class",
                "when": {"weights": "class-counts"},
            },
            {
                "kind": "generated_samples",
                "from": "server",
                "to": "client",
                "what": "x = G(w), every step, one message to all",
            },
            {
                "kind": "logits",
                "from": "client",
                "to": "server",
                "what": "z_k = T_k(x), row by row, every step",
                "when": {"outputs": "logits"},
                "index": "public",
            },
            {
                "kind": "hard_labels",
                "from": "client",
                "to": "aggregator",
                "what": "the class that T_k predicts for each sample of x in order, every step",
                "when": {"outputs": "votes"},
                "index": "public",
            },
            {
                "kind": "vote_counts",
                "from": "aggregator",
                "to": "server",
                "what": "how many clients voted for each class, every step",
                "when": {"outputs": "votes"},
                "index": "public",
            },
            {
                "kind": "hard_labels",
                "from": "aggregator",
                "to": "server",
                "what": "in place of the counts, what a PATE defence on them makes of them",
                "when": {"outputs": "votes"},
                "made_of": "vote_counts",
            },
            {
                "kind": "discriminator_scores",
                "from": "client",
                "to": "server",
                "what": "D_k(x) over D_k's mean on real records, every step, for Eq. 8",
                "when": {"weights": "eq8"},
            },
            {
                "kind": "logit_cotangents",
                "from": "server",
                "to": "client",
                "what": "∂L/∂z_k, except with votes, and the weight of L_gan, every step, to who is asked",
                "when": {"asks": True},
            },
            {
                "kind": "sample_gradients",
                "from": "client",
                "to": "server",
                "what": "∂L/∂x through T_k, except with votes, plus that of L_gan, every step, of who is asked",
                "when": {"asks": True},
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final student",
            },
        ),
        trust=(
            "The server chooses every sample that the clients' models answer to: nothing holds it to its generator.",
            (
                "The server sees each client's logits, scores and gradients by themselves; no secure aggregation is "
                "assumed."
            ),
            (
                "With `outputs: votes` the aggregator is trusted: it sees which class each client predicts for every "
                "sample, counts one vote a client, adds the noise of a defence on the counts, and does not collude "
                "with the server."
            ),
            (
                "With `gradients_from: one` who is asked is drawn uniformly by secret coins, without data; the server, "
                "the clients and whoever overhears them know it, whoever sees the published student alone does not."
            ),
            CURIOUS,
        ),
        oracles=(
            RELEASED_MODEL,
            {"name": "chosen-samples", "available_to": ("server",), "answers": ("soft",)},
        ),
        differences=(
            "Eq. 2 as printed makes D_k small on real records, Eq. 8 wants it large: here it learns that real is 1.",
            (
                "The generator descends -log D_k(x), not the linear term of Eq. 2: its gradient lasts where D_k is not "
                "fooled."
            ),
            (
                "With `gan_total: mean`, the default, π_k weighs a client's L_gan for the generator, as Table 6 speaks "
                "of it. Algorithm 1 adds up L_gan of all clients without weights: `gan_total: sum`."
            ),
            (
                "Eq. 2 weighs D_k's term on real records by π_k; here it counts fully: no message tells a client its "
                "share."
            ),
            (
                "L_gan is a mean over samples and over D_k's patches; the paper does not say whether it adds up the "
                "patches."
            ),
            "D_k's step, its scores and L_gan's gradient are all taken at D_k as it stood when the samples arrived.",
            "Eq. 6 as printed subtracts H(q̂); the relative entropy, which is meant, subtracts H(q̄).",
            (
                "Eq. 8's first factor is the number of records of a class, as its text says, not their share of the "
                "client's."
            ),
            (
                "Eq. 8's weights are constants to the generator: a gradient through D_k(x) would take a message of its "
                "own."
            ),
            "The algorithm box has S descend the gradient with respect to G, a misprint for S.",
            (
                "The generator's terms are weighted; gan, conf, unique and mimic at 1 with `gan_total: sum` are the "
                "box's sum."
            ),
            (
                "The student also learns from replayed samples, or with `fresh` from more answers, of which the first "
                "is that of the generator's step; student_steps: 1 is the paper's box."
            ),
            "Generator and discriminators do without BatchNorm, whose statistics would couple the samples of a batch.",
            (
                "A client whose counts or scores did not arrive counts as the mean of the others; without any, as all "
                "alike."
            ),
            (
                "`outputs: votes` is ours: uniform weights, L_mimic is the student's cross-entropy with the labels, "
                "L_conf and L_unique are left out, and clients send L_gan's gradient alone. Samples without a label "
                "teach nothing."
            ),
            (
                "`gradients_from: one` is GS-WGAN's (Chen 2020): K times one client's gradient stands for the sum of "
                "all K."
            ),
            (
                "Segmentation: each pixel counts as a sample in Eq. 3-10, counts are of pixels, and D_k(x) is one "
                "figure an image. The paper gives its generator the clients' masks as a condition, after Chang 2020; "
                "here no client sends a mask, and the generator has noise alone. Its perceptual loss and pretrained "
                "generator are left out."
            ),
            (
                "Under DP-SGD of discriminators, noise covers L_gan's real half; that on generated samples is public "
                "given x."
            ),
        ),
        settings={
            "paper": {
                "local_epochs": 500,
                "batch_size": 16,
                "lr": 0.0025,
                "samples": 64,
                "adam_lr": 0.001,
                "gan_total": "sum",
                "conf": 1.0,
                "unique": 1.0,
                "mimic": 1.0,
                "student_steps": 1,
            },
            "authors-code": {
                "samples": 64,
                "latent": 100,
                "adam_lr": 0.0001,
                "student_optimizer": "sgd",
                "student_lr": 0.005,
                "conf": 1.0,
                "unique": 5.0,
                "mimic": 0.2,
                "balance": 10.0,
                "weights": "class-counts",
                "student_steps": 5,
                "fresh": True,
            },
        },
        withholdable=("class_counts", "discriminator_scores"),
        privacy={
            "claims": (
                "Parameters stay where they are. With PATE on the outputs and DP generator gradients, ε of 3.5 to 10 "
                "(Table 5); class counts and discriminator scores are not in that sum."
            ),
            "finds": {"server": "class_counts", "world": "class_counts"},
            "private": {
                "params": {"weights": "uniform", "shares": "uniform"},
                "withhold": [],
                "training": ["model", "discriminator"],
                "tuned": {"local_steps": 100, "lr": 1.0},
            },
            "clients": {
                "params": {"weights": "uniform", "shares": "uniform", "outputs": "votes"},
                "kind": "vote_counts",
                "sender": "aggregator",
                "name": "gnmax",
                "settings": {"public_index": True},
                "clipped": False,
                "releases": ["rounds", "steps_per_round", "samples"],
            },
        },
        starts={
            "weights": "own",
            "source": "Gong et al. 2023, Algorithm 1: models T_k are trained to completion before the first message.",
        },
        copies={
            "server": ("generated_samples", "logit_cotangents"),
            "client": ("logits", "hard_labels", "sample_gradients"),
            "aggregator": ("vote_counts",),
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=False,
        generator={
            "build": "fdaudit.models.generative:Generator",
            "arguments": {"latent": "latent", "width": "generator_width", "output_shape": "input_shape"},
            "takes": ("noise",),
        },
        trains={"model": "batch_size", "discriminator": "samples"},
        tasks=("single-label", "segmentation"),
    )
    Config: ClassVar[type[FedIODConfig]] = FedIODConfig

    def __init__(self, config: FedIODConfig, setting: Setting) -> None:
        self.config, self._wire, self._trainer = config, setting.wire, setting.trainers["server"]
        self._local, self._seed = setting.local, setting.seed
        self._classes, self._task = setting.classes, setting.task
        if config.outputs == "votes" and not self._task.labels.one_class:
            problem = "needs one class a record: a vote names one"
            raise SpecError("protocol.params.outputs", "votes", problem, "Set outputs to 'logits'.")
        self._clients = {k: FedIODClient(k, data, config, setting) for k, data in setting.clients.items()}
        self._server = FedIODServer(config, setting)
        self.state: dict[str, Tensor] = {}
        self._save()

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1."""
        for client in self._clients.values():
            client.restore(self.state)
        self._server.restore(self.state)
        for r in range(start, self.config.rounds):
            self._wire.begin(r)
            outcome = self._stage_1() if r == 0 else self._stage_2(r)
            self._save()
            if r == self.config.rounds - 1:
                receivers = [*self._clients, "world"]
                self._wire.send("server", receivers, "model_parameters", self.released())
            yield outcome

    def released(self) -> Parameters:
        """Return the student's parameters."""
        return take(self.state, "server/S/w/")

    def _stage_1(self) -> Round:
        """Run the box's first step, local training to completion; then send the class counts, if they are needed."""
        jobs = [client.job() for client in self._clients.values()]
        fit, nothing = self.config.fit(task=self._task), dict.fromkeys(self._clients, ())
        fitted, basis = self._local.fit(jobs, fit, length=self.config.steps, inputs=nothing)
        for job, result in zip(jobs, fitted, strict=True):
            self._clients[job.party].adopt(result.parameters, basis[job.party])
        if self.config.weights != "uniform" or self.config.shares != "uniform":
            for k, client in self._clients.items():
                counts = {"counts": client.class_counts(self._classes)}
                message = self._wire.send(k, ["server"], "class_counts", counts, inputs=[DATA])
                if message is not None:
                    self._server.hear_counts(k, message["counts"])
        models = {"server": self._server.student()}
        for k, client in self._clients.items():
            models[k] = client.T
        return Round(index=0, models=models, losses=mean_losses(jobs, fitted))

    def _stage_2(self, r: int) -> Round:
        """Run the box's loop over adversarial and distillation steps, for those of one round."""
        N = self.config.steps_per_round
        batches: dict[int, Tensor] = {}
        losses: dict[str, list[float]] = {}
        for s in range(N):
            self._wire.begin(r, s * self.config.questions)
            of_step, behind = self._step((r - 1) * N + s)
            batches |= behind
            for party, loss in of_step.items():
                losses.setdefault(party, []).append(loss)
            for extra in range(1, self.config.questions):
                self._wire.begin(r, s * self.config.questions + extra)
                self._step_of_student((r - 1) * N + s, extra)
        models = {"server": self._server.student()}
        if r == self.config.rounds - 1:
            for k, client in self._clients.items():
                models[k] = client.T
        means = {party: sum(values) / len(values) for party, values in losses.items()}
        return Round(index=r, models=models, batches=batches, losses=means)

    def _step(self, t: int) -> tuple[dict[str, float], dict[int, Tensor]]:
        """Run one distillation step.

        Returns:
            the losses by party, and the records behind each message by `seq`.
        """
        x = self._sent(
            "server", list(self._clients), "generated_samples", {"samples": self._server.generate(t)}
        )
        behind = {k: client.made_from() for k, client in self._clients.items()}
        guards = {k: self._local.guard(k, {"steps": 1}, "discriminator") for k in self._clients}
        answers = self._each(
            self._clients, lambda k: self._clients[k].answer(t, x.of(k)["samples"], guards[k])
        )
        for k, guard in guards.items():
            if guard is not None:  # the defence of D_k's step
                inputs = joined(self._clients[k].D_basis, (x.of(k).seq,))
                basis = self._local.release(k, guard, inputs=inputs, of="discriminator")
                self._clients[k].D_basis = basis
        losses, batches = {k: answer.loss for k, answer in answers.items()}, dict[int, Tensor]()
        if self.config.outputs == "votes":
            requests = self._hear_votes(t, x, answers)
        else:
            requests, batches = self._hear_logits(t, x, answers)
        if requests is None:  # no client answered: nothing changes
            return losses, batches
        gradients = self._gradients(x, requests, behind)
        loss = self._server.update(t, gradients)
        if loss is not None:
            losses["server"] = loss
        return losses, batches

    def _step_of_student(self, t: int, s: int) -> None:
        """Have clients answer fresh samples, from which the student alone learns."""
        x = self._sent(
            "server", list(self._clients), "generated_samples", {"samples": self._server.show(t, s)}
        )
        predicted = self._each(self._clients, lambda k: self._clients[k].predict(x.of(k)["samples"]))
        logits = {}
        for k, values in predicted.items():
            inputs = joined(self._clients[k].T_basis, (x.of(k).seq,))
            z_k = self._wire.send(k, ["server"], "logits", {"values": values}, inputs=inputs)
            if z_k is not None:
                logits[k] = z_k["values"]
        if logits:
            self._server.imitate(t, s, x["samples"], logits)

    def _hear_logits(
        self, t: int, x: Delivery, answers: Mapping[str, Answer]
    ) -> tuple[dict[str, dict[str, Tensor]] | None, dict[int, Tensor]]:
        """Send the clients' logits and scores.

        Returns:
            the server's request to each client that it heard, None if it heard none; and the records behind the scores
            by their `seq`.
        """
        logits, scores, batches = {}, {}, dict[int, Tensor]()
        for k, answer in answers.items():
            inputs = joined(self._clients[k].T_basis, (x.of(k).seq,))
            z_k = self._wire.send(k, ["server"], "logits", {"values": answer.logits}, inputs=inputs)
            if z_k is not None:
                logits[k] = z_k["values"]
            if self.config.weights == "eq8":
                message = self._wire.send(k, ["server"], "discriminator_scores", {"values": answer.scores})
                if message is not None:
                    scores[k] = message["values"]
                    batches[message.seq] = answer.batch
        if not logits:
            return None, batches
        return self._server.judge(t, x["samples"], logits, scores), batches

    def _hear_votes(
        self, t: int, x: Delivery, answers: Mapping[str, Answer]
    ) -> dict[str, dict[str, Tensor]] | None:
        """Send each client's predicted classes, then the aggregator's counts; return the server's requests."""
        n, ballots = len(x["samples"]), []
        for k, answer in answers.items():
            tensors = {"values": ballot(answer.logits)}
            inputs = joined(self._clients[k].T_basis, (x.of(k).seq,))
            message = self._wire.send(k, ["aggregator"], "hard_labels", tensors, inputs=inputs)
            if message is not None:
                ballots.append(message)
        if not ballots:
            return None
        counts = {"counts": count_votes(ballots, n, self._classes)}
        behind = [message.seq for message in ballots]
        tally = self._wire.send("aggregator", ["server"], "vote_counts", counts, inputs=behind)
        if tally is None:
            return None
        target = shares_of(tally, n, self._classes).to(x["samples"].device)
        request = self._server.hear_labels(t, x["samples"], target)
        return dict.fromkeys(self._clients, request) if self.config.asks else {}

    def _gradients(
        self, x: Delivery, requests: Mapping[str, dict[str, Tensor]], behind: Mapping[str, Basis]
    ) -> dict[str, Tensor]:
        """Send clients the server's requests; return the gradients that came back."""
        draw: dict[str, Any] = {}
        chosen: str | None = None
        if self.config.gradients_from == "one":
            chosen = self._drawn(self._wire.coins("asked", "server"))
            draw = {DRAWN: len(self._clients)}
        messages: dict[str, Delivery] = {}
        for k, tensors in requests.items():
            if chosen is None or k == chosen:
                messages[k] = self._sent("server", [k], "logit_cotangents", tensors, draw).of(k)
        pulled = self._each(messages, lambda k: self._clients[k].pull_back(**messages[k]))
        gradients = {}
        for k, values in pulled.items():
            inputs = joined(behind[k], (x.of(k).seq, messages[k].seq))
            back = self._wire.send(k, ["server"], "sample_gradients", {"values": values}, inputs=inputs)
            if back is not None:
                gradients[k] = back["values"]
        return gradients

    def _drawn(self, coins: SecretStream) -> str:
        """Draw the client that is asked for gradients in a step: all equally likely, independent of earlier draws."""
        return list(self._clients)[int(float(coins.uniform(1)[0]) * len(self._clients))]

    def _sent(
        self,
        sender: str,
        receivers: list[str],
        kind: str,
        tensors: Mapping[str, Tensor],
        fields: Mapping[str, Any] | None = None,
    ) -> Delivery:
        """Send a message of the server's; the wire refuses to withhold its kind."""
        message = self._wire.send(sender, receivers, kind, tensors, fields=fields)
        return arrived(message, f"fediod: the {sender}'s {kind}")

    def _each(self, names: Iterable[str], do: Callable[[str], Result]) -> dict[str, Result]:
        """Apply a function to each client; on a CPU in as many threads as allowed."""
        clients = list(names)
        return dict(zip(clients, self._trainer.apart(do, clients), strict=True))

    # -- what outlives a round ------------------------------------------------------------------------------

    def _save(self) -> None:
        for client in self._clients.values():
            client.save(self.state)
        self._server.save(self.state)
