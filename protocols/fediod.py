"""FedIOD (Gong et al. 2023): distillation on samples that a generator learns from the clients' own feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fdaudit.errors import ProtocolError
from fdaudit.federation import Round, Setting
from fdaudit.local import joined
from fdaudit.messages import DATA
from fdaudit.optimizers import annealed
from fdaudit.parallel import side_by_side
from fdaudit.training import Parameters
from fdaudit.types import Trained
from fdaudit.wire import Delivery

from ._fediod_parties import Answer, Client, Server
from ._local import LocalSteps
from ._state import take

__all__ = ["FedIOD", "FedIODConfig"]

Result = TypeVar("Result")


class FedIODConfig(LocalSteps):
    """FedIOD's settings; symbols follow Gong et al. 2023."""

    rounds: int = Field(11, ge=2)
    """Round 0 is stage 1, local training; each later round is `steps_per_round` steps of stage 2."""
    local_steps: int | None = Field(None, ge=1)
    """SGD steps of stage 1; give this or `local_epochs`. Neither means 50 epochs."""
    local_epochs: int | None = Field(None, ge=1)
    """Passes over a client's data in stage 1."""
    batch_size: int = Field(16, ge=1)
    """Records a step of stage 1."""
    lr: float = Field(0.05, gt=0)
    """Learning rate of stage 1's SGD."""
    steps_per_round: int = Field(40, ge=1)
    """Distillation steps a round: each is five kinds of messages."""
    samples: int = Field(32, ge=1)
    """Generated samples a step, and real records that each discriminator sees beside them."""
    adam_lr: float = Field(0.001, gt=0)
    """Adam's learning rate for G, D_k and S, annealed to 0 along a cosine."""
    latent: int = Field(64, ge=1)
    """Length of the noise w."""
    generator_width: int = Field(16, ge=1)
    """Channels of the generator's last stage; earlier ones have up to eight times as many."""
    discriminator_width: int = Field(16, ge=1)
    """Channels of the discriminator's first convolution; the second has twice as many."""
    gan: float = Field(1.0, ge=0)
    """Weight of L_gan in what the generator descends; 0 leaves it out. The paper adds all terms up unweighted."""
    conf: float = Field(0.1, ge=0)
    """Weight of L_conf; 0 leaves it out."""
    unique: float = Field(0.1, ge=0)
    """Weight of L_unique; 0 leaves it out."""
    mimic: float = Field(0.01, ge=0)
    """Weight of L_mimic in what the generator climbs; 0 leaves it out. The student always descends it."""
    temperature: float | None = Field(None, gt=0)
    """τ of L_mimic: KL at this temperature; none is τ → ∞, squared distance of logits."""
    weights: Literal["eq8", "samples", "uniform"] = "eq8"
    """How clients are weighed in the ensemble: by class and sample (Eq. 8), by their records, or all alike."""
    shares: Literal["samples", "uniform"] = "samples"
    """π_k of Eq. 2-4: by the clients' numbers of records, or all alike."""
    student_steps: int = Field(5, ge=1)
    """Steps of the student for each of the generator's; those after the first are on replayed samples."""
    replay: int = Field(100, ge=0)
    """Batches kept for that; 0: further steps are on the current batch again."""

    @model_validator(mode="after")
    def _generator_learns(self) -> Self:
        if not (self.gan or self.conf or self.unique or self.mimic):
            raise ValueError(
                "leaves the generator nothing to learn: gan, conf, unique and mimic are 0. Raise one."
            )
        return self

    @property
    def steps(self) -> dict[str, int | None]:
        """`steps` and `epochs` as the training core takes them."""
        return {"steps": self.local_steps, "epochs": self.local_epochs or (None if self.local_steps else 50)}

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Stage 1; and one step of each discriminator for each of the generator's."""
        if of == "discriminator":
            return ({"steps": 1},) * ((self.rounds - 1) * self.steps_per_round)
        return (self.steps,)

    def rate(self, t: int) -> float:
        """Adam's learning rate at step t, annealed from `adam_lr` to 0 along a cosine."""
        return annealed(self.adam_lr, 0.0, t, (self.rounds - 1) * self.steps_per_round)

    def alone(self) -> dict[str, Any]:
        """Stage 1 by itself."""
        length = {"local_steps": self.steps["steps"], "local_epochs": self.steps["epochs"]}
        return {**super().alone(), **length}


class FedIOD:
    """Input-output collaborative distillation: no parameters of clients, no auxiliary data.

    Clients train task models to completion. Then the server draws samples from its generator, clients answer
    with logits and discriminator scores, the server says how it wants the logits changed, and clients answer
    with the gradient at the samples, from which the generator learns; a student learns the weighted ensemble
    of the logits. Parameters stay where they are, but what crosses is a dialogue: the server chooses every sample
    that the private models and discriminators answer to, and receives their gradients at it.
    """

    name: ClassVar[str] = "fediod"
    source: ClassVar[str] = (
        "Gong, Li, Bao, Yao, Huang, Wu, Zhang, Zheng & Doermann 2023 (AAAI 2024), Algorithm 1"
    )
    roles: ClassVar[tuple[str, ...]] = ("server", "client")
    messages: ClassVar[tuple[dict[str, Any], ...]] = (
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
            "kind": "generated_samples",
            "from": "server",
            "to": "client",
            "what": "x = G(w), every step, one message to all",
        },
        {"kind": "logits", "from": "client", "to": "server", "what": "z_k = T_k(x), every step"},
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
            "what": "∂L/∂z_k and the weight of L_gan, every step",
        },
        {
            "kind": "sample_gradients",
            "from": "client",
            "to": "server",
            "what": "∂L/∂x through T_k plus that of L_gan, every step",
        },
        {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "the final student"},
    )
    trust: ClassVar[tuple[str, ...]] = (
        "The server chooses every sample that the clients' models answer to: nothing holds it to its generator.",
        "The server sees each client's logits, scores and gradients by themselves; no secure aggregation is assumed.",
        "Parties follow the protocol and are curious (honest-but-curious).",
    )
    oracles: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "released-model", "available_to": ("world",), "answers": ("soft", "hard")},
        {"name": "chosen-samples", "available_to": ("server",), "answers": ("soft",)},
    )
    deviations: ClassVar[tuple[str, ...]] = (
        "Eq. 2 as printed makes D_k small on real records, Eq. 8 wants it large: here it learns that real is 1.",
        "The generator descends -log D_k(x), not the linear term of Eq. 2: its gradient lasts where D_k is not fooled.",
        "π_k of Eq. 2 weighs what a client's whole L_gan counts for the generator, as Table 6 speaks of it.",
        "D_k's step, its scores and L_gan's gradient are all taken at D_k as it stood when the samples arrived.",
        "Eq. 6 as printed subtracts H(q̂); the relative entropy, which is meant, subtracts H(q̄).",
        "Eq. 8's first factor is the number of records of a class, as its text says, not their share of the client's.",
        "Eq. 8's weights are constants to the generator: a gradient through D_k(x) would take a message of its own.",
        "The algorithm box has S descend the gradient with respect to G, a misprint for S.",
        "The generator's terms are weighted; gan, conf, unique and mimic at 1 are the paper's plain sum.",
        "The student also learns from replayed samples; student_steps: 1 is the paper's box.",
        "Generator and discriminators do without BatchNorm, whose statistics would couple the samples of a batch.",
        "A client whose counts or scores did not arrive counts as the mean of the others; without any, as all alike.",
        "Under DP-SGD of discriminators, noise covers L_gan's real half; that on generated samples is public given x.",
    )
    withholdable: ClassVar[tuple[str, ...]] = ("class_counts", "discriminator_scores")
    privacy: ClassVar[dict[str, Any]] = {
        "claims": (
            "Parameters stay where they are. With PATE on the outputs and DP generator gradients, ε of 3.5 to 10 "
            "(Table 5); class counts and discriminator scores are not in that sum."
        ),
        "finds": {"server": "class_counts", "world": "class_counts"},
        "private": {
            "params": {"weights": "uniform", "shares": "uniform"},
            "withhold": [],
            "training": ["model", "discriminator"],
        },
    }
    pools_data: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = True
    needs_public: ClassVar[bool] = False
    many_messages: ClassVar[bool] = True
    trains: ClassVar[dict[str, str]] = {"model": "batch_size", "discriminator": "samples"}
    Config: ClassVar[type[FedIODConfig]] = FedIODConfig

    def __init__(self, config: FedIODConfig, setting: Setting) -> None:
        self.config, self._wire, self._trainers = config, setting.wire, setting.trainers
        self._local = setting.local
        self._classes = setting.classes
        self._clients = {k: Client(k, data, config, setting) for k, data in setting.clients.items()}
        self._server = Server(config, setting)
        self.state: dict[str, Tensor] = {}
        self._save()

    def rounds(self, start: int) -> Iterator[Round]:
        """Algorithm 1."""
        self._restore()
        for r in range(start, self.config.rounds):
            self._wire.begin(r)
            done = self._stage_1() if r == 0 else self._stage_2(r)
            self._save()
            if r == self.config.rounds - 1:
                receivers = [*self._clients, "world"]
                self._wire.send("server", receivers, "model_parameters", self.released())
            yield done

    def released(self) -> Parameters:
        """The student's parameters."""
        return take(self.state, "server/S/w/")

    def _stage_1(self) -> Round:
        """Lines 103-105: local training to completion; then the class counts, where they are needed."""
        jobs = [client.job() for client in self._clients.values()]
        fit, nothing = self.config.fit(), dict.fromkeys(self._clients, ())
        fitted, basis = self._local.fit(jobs, fit, length=self.config.steps, inputs=nothing)
        for job, result in zip(jobs, fitted, strict=True):
            self._clients[job.party].adopt(result.parameters, basis[job.party])
        if self.config.weights != "uniform" or self.config.shares != "uniform":
            for k, client in self._clients.items():
                counts = {"counts": client.class_counts(self._classes)}
                told = self._wire.send(k, ["server"], "class_counts", counts, inputs=[DATA])
                if told is not None:
                    self._server.hear_counts(k, told["counts"])
        models = {k: client.T for k, client in self._clients.items()}
        losses = {j.party: float(f.losses.mean()) for j, f in zip(jobs, fitted, strict=True)}
        return Round(index=0, models={"server": self._server.student(), **models}, losses=losses)

    def _stage_2(self, r: int) -> Round:
        """Lines 106-123, as many steps as a round has."""
        N = self.config.steps_per_round
        batches: dict[int, Tensor] = {}
        losses: dict[str, list[float]] = {}
        for s in range(N):
            self._wire.begin(r, s)
            for party, loss in self._step((r - 1) * N + s, batches).items():
                losses.setdefault(party, []).append(loss)
        models = {"server": self._server.student()}
        if r == self.config.rounds - 1:
            models |= {k: client.T for k, client in self._clients.items()}
        means = {party: sum(values) / len(values) for party, values in losses.items()}
        return Round(index=r, models=models, batches=batches, losses=means)

    def _step(self, t: int, batches: dict[int, Tensor]) -> dict[str, float]:
        """One distillation step; returns the losses by party and adds the truth behind its messages."""
        x = self._sent(
            "server", list(self._clients), "generated_samples", {"samples": self._server.generate(t)}
        )
        guards = {k: self._local.guard(k, {"steps": 1}, "discriminator") for k in self._clients}
        answers = self._each(self._clients, lambda k: self._clients[k].answer(t, x["samples"], guards[k]))
        losses = {k: answer.loss for k, answer in answers.items()}
        behind = {k: self._clients[k].made_from() for k in answers}
        for k, guard in guards.items():
            if guard is not None:
                inputs = joined(self._clients[k].D_basis, (x.seq,))
                made = self._local.release(k, guard, inputs=inputs, of="discriminator")
                self._clients[k].D_basis = made
        logits, scores = self._collect(x, answers, batches)
        if not logits:  # nobody answered: everything stays as it is
            return losses
        wanted = self._server.judge(t, x["samples"], logits, scores)
        told = {k: self._sent("server", [k], "logit_cotangents", tensors) for k, tensors in wanted.items()}
        pulled = self._each(told, lambda k: self._clients[k].pull_back(**told[k]))
        gradients = {}
        for k, values in pulled.items():
            inputs = joined(behind[k], (x.seq, told[k].seq))
            back = self._wire.send(k, ["server"], "sample_gradients", {"values": values}, inputs=inputs)
            if back is not None:
                gradients[k] = back["values"]
        return losses | {"server": self._server.update(t, gradients)}

    def _collect(
        self, x: Delivery, answers: Mapping[str, Answer], batches: dict[int, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Sends the clients' logits and scores; returns what of each arrived."""
        logits, scores = {}, {}
        for k, answer in answers.items():
            index = torch.arange(len(answer.logits))
            tensors = {"index": index, "values": answer.logits}
            inputs = joined(self._clients[k].T_basis, (x.seq,))
            z_k = self._wire.send(k, ["server"], "logits", tensors, inputs=inputs)
            if z_k is not None:
                logits[k] = z_k["values"]
            if self.config.weights == "eq8":
                told = self._wire.send(k, ["server"], "discriminator_scores", {"values": answer.scores})
                if told is not None:
                    scores[k] = told["values"]
                    batches[told.seq] = answer.batch
        return logits, scores

    def _sent(self, sender: str, receivers: list[str], kind: str, tensors: Mapping[str, Tensor]) -> Delivery:
        """A message of the server's, which the wire either delivers or refuses to withhold."""
        sent = self._wire.send(sender, receivers, kind, tensors)
        if sent is None:
            raise ProtocolError(f"fediod cannot do without {kind}. Do not withhold it.")
        return sent

    def _each(self, names: Iterable[str], do: Callable[[str], Result]) -> dict[str, Result]:
        """What each client does by itself; on a CPU as many at a time as there are threads."""
        execution, clients = self._trainers["server"].execution, list(names)
        workers = execution.threads if execution.device == "cpu" else 1
        if workers == 1:
            return {k: do(k) for k in clients}

        def one(_: None, k: str) -> Result:
            return do(k)

        return dict(zip(clients, side_by_side(one, clients, [None] * workers), strict=True))

    # -- what outlives a round ------------------------------------------------------------------------------

    def _save(self) -> None:
        for client in self._clients.values():
            client.save(self.state)
        self._server.save(self.state)

    def _restore(self) -> None:
        for client in self._clients.values():
            client.restore(self.state)
        self._server.restore(self.state)
