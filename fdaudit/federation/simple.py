"""The base of a protocol in few lines: sending, local training, state, and a card with defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fdaudit.federation.client_models import client_jobs
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.local_training import Basis
from fdaudit.federation.protocol import ProtocolConfig, Round, Setting, arrived
from fdaudit.federation.state import basis_of, keep_basis, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.messages import ALL
from fdaudit.transcript.wire import Delivery

__all__ = ["Computed", "SimpleProtocol", "mean"]


class Computed(dict[str, Tensor]):
    """Tensors that a party computed, with what they were computed from.

    Attributes:
        basis: their inputs, as a message that carries them declares them; default: all that the party holds.
        batch: the sender's own record numbers behind them, in the order used; None without records.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], basis: Basis = ALL, batch: Tensor | None = None
    ) -> None:
        super().__init__(tensors)
        self.basis, self.batch = basis, batch


def mean(sent: Sequence[Delivery | None], otherwise: Computed) -> Computed:
    """Return the mean of the messages that arrived, or `otherwise` if none did."""
    messages = [message for message in sent if message is not None]
    if not messages:
        return otherwise
    tensors = {}
    for name in messages[0]:
        parts = torch.stack([message[name].cpu() for message in messages])
        tensors[name] = parts.mean(0)
    return Computed(tensors, tuple(message.seq for message in messages))


class SimpleProtocol:
    """A protocol of a server and clients with one network, written as one method `round`.

    A subclass gives its `card`, a `SimpleProtocolCard` with a name, and `round`. Everything else has a default:
    settings of local SGD, the card's other fields, state that resumes, the final model as the released one. Without
    `messages` the kinds, senders and receivers are taken from a short rehearsal with random records, before each run.

    Attributes:
        config: the settings.
        setting: the protocol's inputs.
        clients: the clients' names.
        state: the tensors that outlive a round, by name. Add your own; names under `server/` are taken.
    """

    card: ClassVar[ProtocolCard]
    Config: ClassVar[type[ProtocolConfig]] = LocalTraining

    def __init__(self, config: Any, setting: Setting) -> None:
        self.config, self.setting = config, setting
        self.clients = list(setting.clients)
        self.state: dict[str, Tensor] = {}
        self._batches: dict[int, Tensor] = {}
        self._models: dict[str, Parameters] = {}
        self._losses: dict[str, float] = {}
        self.model = Computed(setting.initial["server"], ())

    def round(self, t: int) -> None:
        """Run round `t`: send messages, and set `self.model` to the server's new model."""
        raise NotImplementedError(f"{type(self).__name__} has no method round(self, t).")

    def rounds(self, start: int) -> Iterator[Round]:
        """Run from round `start` to the end."""
        for t in range(start, self.config.rounds):
            self.setting.wire.begin(t)
            self._batches, self._models, self._losses = {}, {}, {}
            self.round(t)
            models = {**self._models, "server": dict(self.model)}
            yield Round(index=t, models=models, batches=self._batches, losses=self._losses)

    def released(self) -> Parameters | None:
        """Return the server's model."""
        return dict(self.model)

    # -- for `round` ----------------------------------------------------------------------------------------

    @property
    def model(self) -> Computed:
        """The server's model, with what it was computed from; it outlives the round."""
        return Computed(take(self.state, "server/w/"), basis_of(self.state, "server"))

    @model.setter
    def model(self, new: Mapping[str, Tensor]) -> None:
        copies: dict[str, Tensor] = {}
        for name, tensor in new.items():
            copies[name] = tensor.detach().cpu().clone()
        put(self.state, "server/w/", copies)
        keep_basis(self.state, "server", getattr(new, "basis", ALL))

    @property
    def last(self) -> int:
        """Return the number of the last round."""
        return int(self.config.rounds) - 1

    def send(
        self, sender: str, receivers: Sequence[str], kind: str, tensors: Mapping[str, Tensor]
    ) -> Delivery | None:
        """Send a message and return what arrives; None if it does not.

        A `Computed` declares its own inputs. Other tensors count as computed from all that the sender holds.
        """
        basis: Basis = getattr(tensors, "basis", ALL)
        payload = self.setting.wire.send(sender, receivers, kind, tensors, inputs=basis)
        batch = getattr(tensors, "batch", None)
        if payload is not None and batch is not None:
            self._batches[payload.seq] = batch
        return payload

    def fit(
        self, t: int, start: Delivery | None, clients: Sequence[str] | None = None
    ) -> dict[str, Computed]:
        """Fit the model `start` to each client's own records; return the new models by client.

        The spec's training defences act here. Batches follow the settings of `LocalTraining`.

        Raises:
            ProtocolError: `start` did not arrive.
        """
        start = arrived(start, f"{self.card.name}: the model to start from")
        config, setting = self.config, self.setting
        starts = {k: start.of(k) for k in (self.clients if clients is None else clients)}
        jobs = client_jobs(starts, setting.clients, config, setting.seed, self.card.name, "local", t)
        inputs: dict[str, Basis] = {k: (received.seq,) for k, received in starts.items()}
        fit = config.fit(task=setting.task)
        fitted, basis = setting.local.fit(jobs, fit, length=config.steps, inputs=inputs)
        results = {}
        for k, result in zip(starts, fitted, strict=True):
            batch = torch.cat(list(result.batches))
            results[k] = Computed(result.parameters, basis[k], batch)
            self.keep(k, result.parameters, float(result.losses.mean()))
        return results

    def keep(self, client: str, parameters: Parameters, loss: float) -> None:
        """Hand the auditor a client's new model and its mean loss; no party sees them."""
        self._models[client], self._losses[client] = parameters, loss
