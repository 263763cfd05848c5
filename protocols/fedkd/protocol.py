"""FedKD (Gong et al. 2022): one-shot distillation from a quantised and noisy ensemble on public samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.errors import SpecError
from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import CURIOUS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.public_answers import SAMPLES_KNOWN, ballot, count, targets
from fdaudit.federation.state import basis_of, copies_of, keep_basis, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Job, Parameters, draw_batches
from fdaudit.transcript.messages import DATA
from fdaudit.transcript.samples import sample_index
from fdaudit.transcript.wire import Delivery

from .._uploads import shares_of_clients
from .config import FedKDConfig

__all__ = ["FedKD", "FedKDConfig", "class_weights", "ensemble"]


def class_weights(counts: Tensor) -> Tensor:
    """Return ω (K, C), each client's share of each class, from the counts N (K, C): Eq. 1.

    For a class without records Eq. 1 is 0/0. Its weights are then 1/K, the same for every client. Negative counts,
    which only noise can produce, count as zero.
    """
    return shares_of_clients(counts.double().clamp_min(0))


def ensemble(logits: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return ẑ (n, C), the sum over clients of Q(z) (n, C) by weights (K, C), in float32: Eq. 2 before its noise.

    For segmentation logits and ẑ are (n, C, h, w); a class has one weight for all pixels.
    """
    z = torch.zeros(logits[0].shape, dtype=torch.float64, device=logits[0].device)
    for w_k, z_k in zip(weights.to(z.device), logits, strict=True):
        z += w_k.view(-1, *[1] * (z.dim() - 2)) * z_k
    return z.float()


class FedKD:
    """One-shot, one-way distillation: clients answer once on public samples, a central model learns from the ensemble.

    Each client trains its own model to completion; its network may differ from the others'. It then sends its logits
    for every public sample once, quantised to S levels. An aggregator weights them, for each class, by each client's
    number of records of the class. It adds Laplace noise and sends the ensemble to the server, which distils its
    central model from it. No model and no gradient leaves a client. The aggregator, however, sees the class counts and
    the clean quantised logits of every client.

    With `ensemble: votes` clients answer with their predicted classes, and the aggregator counts one vote a client. A
    PATE aggregator attached to the counts then publishes noisy labels in their place. The server distils from the
    message that it receives.

    In the multi-label task, local models are fitted by binary cross-entropy on the known labels. A client's count of a
    class is the number of records in which it occurs.

    In segmentation, local models are fitted by cross-entropy and soft Dice. A client's count of a class is its number
    of pixels, and the central model matches the ensemble by soft Dice (Eq. 10).
    """

    card = ProtocolCard(
        name="fedkd",
        source=(
            "Gong, Sharma, Karanam, Wu, Chen, Doermann & Innanje 2022, Algorithm 1 and Eq. 1-7 and 10 (AAAI 2022)"
        ),
        roles=("server", "aggregator", "client"),
        messages=(
            {
                "kind": "class_counts",
                "from": "client",
                "to": "aggregator",
                "what": "counts (C,): N_k^c of Eq. 1, once (weights: class-counts)",
                "when": {"weights": "class-counts"},
            },
            {
                "kind": "logit_range",
                "from": "client",
                "to": "aggregator",
                "what": "max_abs (): its largest absolute logit, once (where z_max is not a constant)",
                "when": {"ranged": True},
            },
            {
                "kind": "logit_range",
                "from": "aggregator",
                "to": "client",
                "what": "max_abs (): z_max of Eq. 3, the largest of all clients",
                "when": {"ranged": True},
            },
            {
                "kind": "logits",
                "from": "client",
                "to": "aggregator",
                "what": "Q(z_k; S) (n, C) for all n public samples in order, once",
                "when": {"ensemble": "logits"},
                "index": "public",
            },
            {
                "kind": "ensemble_labels",
                "from": "aggregator",
                "to": "server",
                "what": "ẑ (n, C) of Eq. 2 for the same samples: weighted logits and noise",
                "when": {"ensemble": "logits"},
                "index": "public",
            },
            {
                "kind": "hard_labels",
                "from": "client",
                "to": "aggregator",
                "what": "values (n,): one vote for each of all n public samples in order, once",
                # Not logits in another form: an average of logits cannot use votes.
                "when": {"ensemble": "votes", "weights": "uniform"},
                "index": "public",
            },
            {
                "kind": "vote_counts",
                "from": "aggregator",
                "to": "server",
                "what": "counts (n, C): votes of all clients on the same samples",
                "when": {"ensemble": "votes"},
                "index": "public",
            },
            {
                "kind": "hard_labels",
                "from": "aggregator",
                "to": "server",
                "what": "values (m,): noisy plurality of the votes, and index (m,) where not all are answered, m ≤ n",
                "when": {"ensemble": "votes"},
                "made_of": "vote_counts",
            },
            {"kind": "model_parameters", "from": "server", "to": "world", "what": "the final central model"},
        ),
        trust=(
            (
                "The aggregator is trusted: it sees every client's class counts and clean quantised logits, and adds "
                "the noise once, after aggregation, as in Eq. 2. It does not collude with the server. With `noise_at: "
                "client` it need not be trusted with more than noised logits, the ranges and the counts."
            ),
            (
                "With `ensemble: votes` the aggregator sees every client's vote on every sample, and the server sees "
                "how many clients agree, unless a PATE aggregator puts noisy labels in the place of the counts."
            ),
            SAMPLES_KNOWN,
            "The final model is published: clients get it from `world` like anybody else.",
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            (
                "Eq. 3 describes S points at a distance of 2 z_max/(S-1), Eq. 4 a grid of S + 1 points at a distance "
                "of 2 z_max/S. The text concludes with Eq. 4, which is the default; `grid: eq3` is the other."
            ),
            (
                "The paper lets the server aggregate. Noise that is added after aggregation protects from nobody who "
                "aggregates, so `aggregator` is a party of its own here, and the server sees the noised ensemble only."
            ),
            (
                "The paper claims a privacy guarantee from quantisation and noise. No finite ε follows: z_max depends "
                "on the data and is sent back to the clients, class counts are sent in clear, and the logits have no "
                "bound that was fixed beforehand. `z_max`, `clip` and `withhold: [class_counts]` are ours, for whoever "
                "wants one."
            ),
            "`noise_at: client` is ours too: noise after quantisation, of scale 1/γ on each client's every logit.",
            (
                "`ensemble: votes` is ours too: it makes FedKD an ensemble to which PATE (Papernot et al. 2018) "
                "applies. The central model learns from noisy labels, or without noise from the shares of the votes."
            ),
            (
                "Eq. 7 prints a norm; the limit that it is taken from (Hinton et al. 2015) is of its square, which is "
                "used."
            ),
            "A class that nobody has, of which Eq. 1 says nothing, is averaged plainly.",
            "The algorithm box's step is plain gradient descent; the experiments use Adam, which is the default.",
            (
                "Multi-label: Eq. 5 with the paper's sigmoid leaves out the classes that do not occur; at finite τ the "
                "divergence is that of the two answers, occurs or not, of each class. At τ = ∞ it is Eq. 7 unchanged."
            ),
            (
                "Segmentation: the paper distils by Eq. 7 pixel by pixel from models that cross-entropy fitted, and by "
                "Eq. 10 from models that the Dice loss fitted. Here both losses fit the models together. Without "
                "`temperature` the central model learns by Eq. 10, with one by the divergence of each pixel. "
                "Probabilities are a softmax over the classes, of which background is one; sums over pixels are those "
                "of one image."
            ),
            "Predictions on augmented public samples (Table 2) are `public_copies: 50` of the spec, with shifts alone.",
        ),
        settings={
            "paper": {
                "local_epochs": 500,
                "batch_size": 16,
                "lr": 0.0025,
                "final_lr": 0.001,
                "weight_decay": 0.0003,
                "distill_batch_size": 512,
                "distill_lr": 0.001,
                "distill_optimizer": "adam",
            },
            "authors-code": {
                "local_epochs": 500,
                "batch_size": 16,
                "lr": 0.0025,
                "final_lr": 0.001,
                "momentum": 0.9,
                "weight_decay": 0.0003,
                "augmentation": {"shift": 4, "flip": True, "cutout": 16},
                "levels": 200,
                "gamma": 1.0,
                "distance": "absolute",
                "distill_batch_size": 512,
                "distill_lr": 0.001,
                "distill_optimizer": "adam",
                "distill_augmentation": {"shift": 4, "flip": True, "cutout": 16},
            },
        },
        withholdable=("class_counts",),
        privacy={
            "claims": (
                "Quantisation and Laplace noise on the ensemble, after PATE, for a stronger privacy guarantee; no ε is "
                "derived. z_max follows from the data, counts are sent in clear, and nothing bounds the logits "
                "beforehand."
            ),
            "finds": {"server": "class_counts", "aggregator": "class_counts", "world": "class_counts"},
            "private": {
                "params": {"weights": "uniform"},
                "withhold": [],
                "training": ["model"],
                "tuned": {"local_steps": 100, "lr": 1.0},
            },
            "clients": {
                "params": {"weights": "uniform", "ensemble": "votes"},
                "kind": "vote_counts",
                "sender": "aggregator",
                "name": "gnmax",
                "settings": {"public_index": True},
                "clipped": False,
                "releases": ["public"],
            },
        },
        starts={
            "weights": "own",
            "source": "Gong et al. 2022, Algorithm 1: nodes train models θ^k, which may differ; none is sent.",
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        trains={"model": "batch_size"},
        copies={"client": ("hard_labels",), "aggregator": ("vote_counts",)},
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
    )
    Config: ClassVar[type[FedKDConfig]] = FedKDConfig

    def __init__(self, config: FedKDConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainers, self._local, self._clients = setting.trainers, setting.local, dict(setting.clients)
        self._public, self._classes, self._task = setting.public, setting.classes, setting.task
        if config.ensemble == "votes" and not self._task.labels.one_class:
            problem = "needs one class a record: a vote names one"
            raise SpecError("protocol.params.ensemble", "votes", problem, "Set ensemble to 'logits'.")
        self.state: dict[str, Tensor] = {}
        for party in ("server", *self._clients):
            put(self.state, f"{party}/w/", copies_of(setting.initial[party]))

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1, phase by phase."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            if t == 0:  # Local Training: train each local model θ^k with D^k
                yield Round(index=t, losses=self._train_locally(), models=self._models())
            elif t == 1:  # Logits Ensemble: ẑ_i <- aggregate {z_i^k; S, γ}, Eq. 2
                if self.config.ensemble == "votes":
                    answers = self._cast()
                    z = self._count(answers)
                else:
                    answers, counts = self._answer()
                    z = self._aggregate(answers, counts)
                self._receive(z)
                batches = {z_k.seq: torch.arange(len(self._clients[k])) for k, z_k in answers.items()}
                yield Round(index=t, models={"server": self.released()}, batches=batches)
            else:  # Distillation: steps t = 1, ..., T on θ^s
                losses = self._distill(t)
                models = {"server": self.released()}
                if t == self.config.rounds - 1:
                    inputs = [int(seq) for seq in self.state.get("server/basis", ())]
                    self._wire.send("server", ["world"], "model_parameters", self.released(), inputs=inputs)
                    models |= self._models()
                yield Round(index=t, models=models, losses=losses)

    def released(self) -> Parameters:
        """Return the central model θ^s."""
        return take(self.state, "server/w/")

    # -- the clients ----------------------------------------------------------------------------------------

    def _models(self) -> dict[str, Parameters]:
        return {k: take(self.state, f"{k}/w/") for k in self._clients}

    def _train_locally(self) -> dict[str, float]:
        jobs = []
        for k, data in self._clients.items():
            generator = child(self._seed, "fedkd", "local", k)
            batches = draw_batches(
                len(data), self.config.batch_size, generator=generator, **self.config.steps
            )
            seed = child_seed(self._seed, "fedkd", "dropout", k)
            start = take(self.state, f"{k}/w/")
            jobs.append(Job(party=k, parameters=start, x=data.x, targets=data.y, batches=batches, seed=seed))
        fit, nothing = self.config.fit(task=self._task), dict.fromkeys(self._clients, ())
        fitted, basis = self._local.fit(jobs, fit, length=self.config.steps, inputs=nothing)
        for job, result in zip(jobs, fitted, strict=True):
            put(self.state, f"{job.party}/w/", result.parameters)
            keep_basis(self.state, job.party, basis[job.party])
        return mean_losses(jobs, fitted)

    def _answer(self) -> tuple[dict[str, Delivery], dict[str, Delivery]]:
        """Send each client's logits for every public sample, z_i^k <- f(x_i^0, θ^k), and its class counts.

        A message that does not arrive is left out.
        """
        counts = {}
        if self.config.weights == "class-counts":
            for k, data in self._clients.items():
                N_k = class_counts(data.y.cpu(), self._classes)
                message = self._wire.send(k, ["aggregator"], "class_counts", {"counts": N_k}, inputs=[DATA])
                if message is not None:
                    counts[k] = message
        z = self._trainers.predict(self._models(), self._public)
        z_max = self._agree_on_range(z) if self.config.ranged else None
        if self.config.ranged and z_max is None:
            return {}, counts
        logits = {}
        for k, z_k in z.items():
            tensors, inputs = {"values": z_k}, basis_of(self.state, k)
            if z_max is not None:  # for the quantiser, which takes it out of the message
                tensors["z_max"] = z_max["max_abs"].cpu()
                inputs = joined(inputs, (z_max.seq,))
            message = self._wire.send(k, ["aggregator"], "logits", tensors, inputs=inputs)
            if message is not None:
                logits[k] = message
        return logits, counts

    def _cast(self) -> dict[str, Delivery]:
        """Send each client's predicted class of every public sample."""
        ballots = {}
        for k, z_k in self._trainers.predict(self._models(), self._public).items():
            inputs = basis_of(self.state, k)
            message = self._wire.send(
                k, ["aggregator"], "hard_labels", {"values": ballot(z_k)}, inputs=inputs
            )
            if message is not None:
                ballots[k] = message
        return ballots

    def _agree_on_range(self, z: Mapping[str, Tensor]) -> Delivery | None:
        """Return z_max = max |z_i^ck| over samples, classes and clients; None if no client's range arrived."""
        ranges = []
        for k, z_k in z.items():
            tensors = {"max_abs": z_k.abs().max()}
            inputs = basis_of(self.state, k)
            message = self._wire.send(k, ["aggregator"], "logit_range", tensors, inputs=inputs)
            if message is not None:
                ranges.append(message)
        if not ranges:
            return None
        z_max = torch.stack([message["max_abs"] for message in ranges]).max()
        behind = [message.seq for message in ranges]
        receivers = list(self._clients)
        largest = self._wire.send("aggregator", receivers, "logit_range", {"max_abs": z_max}, inputs=behind)
        return arrived(largest, "fedkd: the aggregator's z_max")

    # -- the aggregator -------------------------------------------------------------------------------------

    def _aggregate(self, logits: Mapping[str, Delivery], counts: Mapping[str, Delivery]) -> Delivery | None:
        """Compute Eq. 2 over the clients that answered; with Eq. 1's weights if all sent counts, else equal weights."""
        if not logits:
            return None
        used = [counts[k] for k in logits if k in counts]
        z, inputs = [z_k["values"] for z_k in logits.values()], [z_k.seq for z_k in logits.values()]
        K, B = len(z), self.config.bounded
        stated = dict[str, Tensor]()
        if len(used) == K:
            weights = class_weights(torch.stack([c["counts"] for c in used]))
            inputs += [c.seq for c in used]
        else:
            weights = torch.full((K, self._classes), 1 / K, dtype=torch.float64)
            if B is not None:
                z = [z_k.nan_to_num().clamp(-B, B) for z_k in z]
                # For the noise, which takes them out of the message. Eq. 1's shares follow from data.
                stated["client_share"] = torch.tensor(1 / K, dtype=torch.float64)
                stated["client_bound"] = torch.tensor(B, dtype=torch.float64)
        tensors = {"values": ensemble(z, weights), **stated}
        return self._wire.send("aggregator", ["server"], "ensemble_labels", tensors, inputs=inputs)

    def _count(self, ballots: Mapping[str, Delivery]) -> Delivery | None:
        """Send the votes on every public sample, including samples without votes.

        Leaving these out would reveal which they are, and that depends on private data.
        """
        if not ballots:
            return None
        votes = count(ballots.values(), torch.arange(len(self._public)), self._classes)
        inputs = [cast.seq for cast in ballots.values()]
        return self._wire.send("aggregator", ["server"], "vote_counts", {"counts": votes}, inputs=inputs)

    # -- the server -----------------------------------------------------------------------------------------

    def _receive(self, z: Delivery | None) -> None:
        if z is None:
            return
        if self.config.ensemble == "votes":
            answers = targets(z, len(self._public), self._classes)
        else:
            answers = {"index": sample_index(z), "values": z["values"].cpu()}
        if len(answers["index"]):
            put(self.state, "server/z/", answers)
        self.state["server/basis"] = torch.tensor([z.seq])

    def _distill(self, t: int) -> dict[str, float]:
        """Take steps of ∇L on θ^s, Eq. 7, 5 or 10; the optimiser's state continues from the round before.

        Shares of votes are used directly as probabilities. Without an ensemble the central model stays the same.
        """
        answers = take(self.state, "server/z/")
        if not answers:
            return {}
        tau, x = self.config.temperature, self._public[answers["index"]]
        target = answers["values"]
        if tau is None and self._task.labels.distance == "dice":
            tau = 1.0  # p of Eq. 10
        if tau is not None and self.config.ensemble == "logits":
            # softmax (Eq. 6), or for several labels a sigmoid of each class
            target = self._task.labels.probabilities(target / tau)
        job = Job(
            party="server",
            parameters=self.released(),
            x=x,
            targets=target,
            batches=draw_batches(
                len(x),
                self.config.distill_batch_size,
                steps=self.config.distill_steps,
                generator=child(self._seed, "fedkd", "distill", t),
            ),
            seed=child_seed(self._seed, "fedkd", "dropout", "server", t),
            moments=take(self.state, "server/m/"),
        )
        (fitted,) = self._trainers.fit([job], self.config.distillation(self._task))
        put(self.state, "server/w/", fitted.parameters)
        put(self.state, "server/m/", fitted.moments)
        return {"server": float(fitted.losses.mean())}
