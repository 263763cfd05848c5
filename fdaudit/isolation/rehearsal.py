"""Rehearsals that an adversary may run, described by names, settings and public tensors, so that they can be sent."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit import protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import validate
from fdaudit.deviations.attached import DeviatingParty, attach_deviations
from fdaudit.federation.defenses import Attached, attach
from fdaudit.federation.protocol import Common, FederatedProtocol, ProtocolConfig, applies
from fdaudit.federation.rehearsal import parties_of, rehearse, with_messages
from fdaudit.spec.schema import DefenseEntry, DeviationEntry
from fdaudit.storage.cache import digest_of

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

__all__ = ["Rehearsal"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """Runs the protocol on data that the adversary chooses; it holds no weights and no client records.

    A rehearsal on auxiliary records only, which every adversary has, runs once for all adversaries. The adversary's own
    parties deviate in it as they do in the run, by the same draws.

    Attributes:
        setting: the spec's protocol, defences, number of clients and transport, and the adversary's deviations.
        common: networks, training and public samples.
        adversary: the adversary whose view is returned.
        shared: records (x, y) that every adversary has.
        candidates: by client, the candidates (x, y) that a deviating party knows, in the order of the run.
        own: a directory for rehearsals of this adversary only; default: the temporary directory.
        everybody: a directory for rehearsals on shared records; None shares nothing.
    """

    setting: Mapping[str, Any]
    common: Common
    adversary: str
    shared: tuple[Tensor, Tensor]
    candidates: Mapping[str, tuple[Tensor, Tensor]] | None = None
    own: Path | None = None
    everybody: Path | None = None

    def __call__(
        self,
        data: list[tuple[Tensor, Tensor]],
        seed: int,
        models: dict[str, Parameters] | None = None,
    ) -> View:
        """Return the adversary's view of a federation of clients with these records.

        Args:
            data: records (x, y) of each client.
            seed: of the rehearsal.
            models: receives each party's last model; the rehearsal is the adversary's own.
        """
        attached = self._attached
        return rehearse(
            self._folder(data, seed, alone=models is not None),
            protocol=self._protocol,
            config=self._config,
            common=self.common,
            data=data,
            seed=seed,
            adversary=self.adversary,
            defenses=attached.messages,
            training=attached.training,
            withheld=tuple(self.setting.get("withhold", ())),
            transport=self.setting.get("transport", "plain"),
            deviants=self._deviants,
            checks=attached.checks,
            models=models,
        )

    @cached_property
    def _protocol(self) -> type[FederatedProtocol]:
        protocol = protocols.REGISTRY.load(self.setting["protocol"]["name"])
        config = validate(protocol.Config, self.setting["protocol"]["params"])
        return with_messages(protocol, config, self.common, self.setting["clients"])

    @cached_property
    def _config(self) -> ProtocolConfig:
        return validate(self._protocol.Config, self.setting["protocol"]["params"])

    @cached_property
    def _attached(self) -> Attached:
        if not self.setting["defended"]:
            return Attached({}, {}, {})
        entries = [validate(DefenseEntry, entry) for entry in self.setting.get("defenses", ())]
        return attach(entries, self._protocol, self._config, self.setting["clients"])

    @cached_property
    def _deviants(self) -> Mapping[str, DeviatingParty]:
        entries = [validate(DeviationEntry, entry) for entry in self.setting.get("deviations", ())]
        common, config, card = self.common, self._config, self._protocol.card
        messages = []
        for message in card.declared_messages:
            if applies(message.get("when", {}), config):
                messages.append(message)
        knowledge = Knowledge(
            architecture=common.networks.shared,
            auxiliary=self.shared if len(self.shared[1]) else None,
            public=common.public if len(common.public) else None,
            classes=common.networks.shared.classes,
            task=common.task,
            candidates=self.candidates,
        )
        parties = parties_of(self._protocol, config, self.setting["clients"])
        draws = self.setting.get("deviations_seed", 0)
        return attach_deviations(entries, card, messages, parties, knowledge, draws)

    def _folder(self, data: list[tuple[Tensor, Tensor]], seed: int, *, alone: bool) -> Path:
        """Return the transcript's directory: a new one, or if not `alone` one that adversaries share."""
        records, tensors = set[str](), list["Tensor"]()
        for x, y in data:
            records |= _records(x, y)
            tensors += [x, y]
        if alone or self.everybody is None or not records <= self._shared_records:
            return Path(tempfile.mkdtemp(prefix="rehearsal-", dir=self.own)) / "transcript"
        described = {"seed": seed, "setting": dict(self.setting)}
        return self.everybody / digest_of(described, *tensors)

    @cached_property
    def _shared_records(self) -> set[str]:
        return _records(*self.shared)


def _records(x: Tensor, y: Tensor) -> set[str]:
    """Return the digests of single records."""
    pairs = zip(x.detach().cpu().numpy(), y.detach().cpu().numpy(), strict=True)
    return {sha256(one.tobytes() + label.tobytes()).hexdigest() for one, label in pairs}
