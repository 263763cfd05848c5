"""Deviations: on record and marked, read by each receiver alone, the same after a resume."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.analytic import between, candidates, imprinted
from fdaudit.attacks.gradient_inversion.fished import fished
from fdaudit.deviations import REGISTRY
from fdaudit.deviations.attached import DeviatingParty
from fdaudit.deviations.class_fishing import ClassFishing, ClassFishingConfig
from fdaudit.deviations.imprint import Imprint, ImprintConfig
from fdaudit.deviations.trap_weights import TrapWeights, TrapWeightsConfig
from fdaudit.protocols import REGISTRY as PROTOCOLS
from fdaudit.reports.judgement.remedies import CHECK
from fdaudit.reports.run.findings import found_by
from fdaudit.reports.run.summary import summarise

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.audit.run import Run
from fdaudit.errors import ProtocolError
from fdaudit.models import Architecture, architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.running import ProtocolRun
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outage, Outgoing

from ..helpers.command import Cli
from ..helpers.protocol_cases import run
from ..helpers.refusals import refused
from ..helpers.run_cases import finished
from .deviation_cases import attacked, check_resume, draft, received, same

IMPRINT = {"party": "server", "name": "imprint", "params": {"rounds": [1]}}
FISHING = {"party": "server", "name": "class-fishing"}
ABLE = [name for name in PROTOCOLS.names() if "server" in PROTOCOLS.describe(name).copies]


class Nudge:
    """Changes what one client is sent, in some rounds."""

    name = "nudge"

    def __init__(self, victim: str, protocol: str, rounds: Sequence[int] = (0, 1, 2)) -> None:
        self.victim, self.rounds = victim, rounds
        self.kinds = PROTOCOLS.describe(protocol).copies["server"]

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        """Return the message, and another one for the victim."""
        if draft.round not in self.rounds or self.victim not in draft.receivers or "world" in draft.receivers:
            return (draft,)
        if draft.kind not in self.kinds:
            return (draft,)
        others = tuple(receiver for receiver in draft.receivers if receiver != self.victim)
        mine = replace(draft, receivers=(self.victim,), tensors=nudged(draft.tensors))
        return (mine, replace(draft, receivers=others)) if others else (mine,)


def nudged(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fewer samples where they are named, and other values."""
    if "index" in tensors:
        return {name: tensor[:-1] for name, tensor in tensors.items()}
    return {name: tensor + 0.5 * (tensor.ndim > 0) for name, tensor in tensors.items()}


def uploads(name: str, ran: ProtocolRun, client: str) -> list[dict[str, torch.Tensor]]:
    """What a client sends after the server's first message to all, until the server is heard again."""
    kinds = PROTOCOLS.describe(name).copies["server"]
    first = next(m.seq for m in ran.messages if m.sender == "server" and m.kind in kinds)
    sent = [m for m in ran.messages if m.seq > first]
    start = next(number for number, m in enumerate(sent) if m.sender != "server")
    heard = itertools.takewhile(lambda m: m.sender != "server", sent[start:])
    return [ran.tensors(m) for m in heard if m.sender == client and "count" not in m.kind]


@pytest.mark.parametrize("name", ABLE)
def test_each_receiver_reads_its_own_copy(name: str, tmp_path: Path) -> None:
    """What one client is sent changes its own upload and no other's; the server goes on from its own model."""
    honest = run(tmp_path / "honest", name, rounds=2)
    active = run(tmp_path / "active", name, rounds=2, deviants={"server": Nudge("client/1", name)})
    assert not same(uploads(name, honest, "client/1"), uploads(name, active, "client/1"))
    assert same(uploads(name, honest, "client/0"), uploads(name, active, "client/0"))
    assert same(uploads(name, honest, "client/2"), uploads(name, active, "client/2"))
    marked = [m for m in active.messages if DEVIATION in m.fields]
    assert {m.receivers for m in marked} >= {("client/1",)}
    assert all(m.inputs == "all" and m.sender == "server" for m in marked)


@pytest.mark.parametrize("name", ABLE)
def test_a_run_resumed_after_any_round_ends_the_same(name: str, tmp_path: Path) -> None:
    check_resume(tmp_path, name, lambda: {"server": Nudge("client/1", name, rounds=(1,))}, rounds=2)


@pytest.mark.parametrize("name", ABLE)
def test_a_silent_client_is_no_hindrance(name: str, tmp_path: Path) -> None:
    outages = [Outage(party="client/1", first=0, last=0)]
    ran = run(tmp_path, name, rounds=2, deviants={"server": Nudge("client/1", name)}, outages=outages)
    assert any(m.kind == "silence" for m in ran.messages)
    assert any(DEVIATION in m.fields for m in ran.messages)


def test_a_deviation_without_rounds_changes_no_bit(tmp_path: Path) -> None:
    honest = finished(tmp_path / "honest")
    active = finished(tmp_path / "active", deviations=[{**IMPRINT, "params": {"rounds": []}}])
    assert list(contents(honest)) == list(contents(active))
    assert list(contents(honest)) != list(contents(finished(tmp_path / "other", deviations=[IMPRINT])))
    assert fdaudit.load_spec(small_spec(deviations=[])).digest() == fdaudit.load_spec(small_spec()).digest()


def contents(run: Path) -> Iterator[Any]:
    """Everything of a record but its salts and digests."""
    for message in read_messages(run / "transcript"):
        body = read_payload(run / "transcript", message)
        yield message.sender, message.receivers, message.kind, message.fields, message.inputs, body


def test_the_record_marks_what_was_crafted_and_the_report_says_so(tmp_path: Path, cli: Cli) -> None:
    out = finished(tmp_path / "run", deviations=[IMPRINT])
    marked = [m for m in read_messages(out / "transcript") if DEVIATION in m.fields]
    assert [(m.sender, m.round, m.kind) for m in marked] == [("server", 1, "model_parameters")]
    code, _, _ = cli("verify", out)
    assert code == 0
    assert "by imprint" in summarise(Run(out).result).standing
    told = json.loads((out / "result.json").read_text())["run"]["departures"]
    assert told == [{"party": "server", "name": "imprint", "messages": 1}]


# -- what they gain ------------------------------------------------------------------------------------------------


def perceptron(*widths: int) -> Architecture:
    return architecture(ModelSpec(name="mlp", params={"widths": list(widths)}), (1, 8, 8), 10)


def at_client(
    deviation: Any, network: Architecture, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The network as a client receives it under a deviation or None, and the gradient of a batch at it."""
    module = network.build(torch.Generator().manual_seed(4))
    if deviation is not None:
        module.load_state_dict(received(deviation, network), strict=False)
    return module, gradient_of(module, x, y)


def gradient_of(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of mean cross-entropy, by parameter."""
    loss = torch.nn.functional.cross_entropy(module(x), y)
    names = [name for name, _ in module.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(module.parameters())), strict=True))


def recovered(deviation: Any, network: Architecture, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Which records (n,) of a batch are read from its gradient at more than 40 dB, under a deviation or None."""
    module, gradient = at_client(deviation, network, x, y)
    model = dict(module.named_parameters())
    weight, bias = list(model)[:2]
    dW, db = gradient[weight], gradient[bias]
    if imprinted(model[weight]):
        dW, db = between(dW, db, model[bias])
    found = candidates(dW, db).inputs[: len(x)].clamp(0, 1)
    error = torch.cdist(x.flatten(1).double(), found.double()).square().min(1).values / x[0].numel()
    return error < 1e-4


def test_crafted_models_give_away_more_records_of_a_batch_than_an_honest_one(
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = digits
    network = perceptron(256, 64)
    knows = Knowledge(architecture=network, auxiliary=(x[:300], y[:300]), classes=10)
    batch = x[400:432], y[400:432]
    honest = recovered(None, network, *batch)
    assert recovered(Imprint(ImprintConfig(), knows), network, *batch).sum() >= 24
    assert recovered(TrapWeights(TrapWeightsConfig(), knows), network, *batch).sum() > honest.sum()


def test_a_fished_batch_gives_away_the_records_of_its_class(
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """On a layer of few neurons, where those of all records mix."""
    x, y = digits[0][400:432], digits[1][400:432]
    network = perceptron(64)
    knows = Knowledge(architecture=network, classes=10)
    honest, fishing = recovered(None, network, x, y), torch.zeros(len(y), dtype=torch.bool)
    for target in range(10):
        crafted = ClassFishing(ClassFishingConfig(target=target), knows)
        fishing |= recovered(crafted, network, x, y) & (y == target)
    assert fishing.sum() >= 2 * honest.sum() + 8


@pytest.mark.parametrize(("share", "count"), [(1.0, None), (0.3, 1)])
def test_the_gradient_of_fished_records_is_exact(
    share: float, count: int | None, digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """It is that of these records alone; of the honest model's gradient nothing of the kind is read."""
    x, y = digits
    network = architecture(ModelSpec(name="cnn-strided"), (1, 8, 8), 10)
    knows = Knowledge(architecture=network, auxiliary=(x[:300], y[:300]), classes=10)
    fishing = ClassFishing(ClassFishingConfig(target=3, share=share), knows)
    exact = 0
    for first in range(400, 560, 32):
        batch = x[first : first + 32], y[first : first + 32]
        module, gradient = at_client(fishing, network, *batch)
        part = fished(dict(module.named_parameters()), gradient, 32)
        if part is None or not part.count or count not in (None, part.count):
            continue
        answered = module(batch[0]).argmax(1) == 3
        rows = (batch[1] == 3) & ~answered
        if bool((answered & (batch[1] != 3)).any()):
            continue
        alone = gradient_of(module, batch[0][rows], batch[1][rows])
        assert part.count == rows.sum()
        for name, value in alone.items():
            torch.testing.assert_close(
                part.gradient[name], value, rtol=1e-3, atol=1e-3 * float(value.abs().max())
            )
        exact += 1
    assert exact
    module, gradient = at_client(None, network, x[400:432], y[400:432])
    assert fished(dict(module.named_parameters()), gradient, 32) is None


@pytest.mark.thorough
def test_an_attack_reads_the_fished_records_of_a_run_alone(tmp_path: Path) -> None:
    """Batches of 32 have about three of them, and DLG tries no more than 16 images."""

    settings: dict[str, Any] = {
        "model": {"name": "cnn-strided"},
        "dataset__limit": 400,
        "splits__auxiliary": 0.3,
        "protocol__params": {"rounds": 1, "batch_size": 32, "local_steps": 1},
    }
    assert attacked(tmp_path / "honest", "dlg", **settings).status == "not-applicable"
    fishing = attacked(tmp_path / "active", "dlg", deviations=[FISHING], **settings)
    assert fishing.targets
    for target in fishing.targets:
        assert 1 <= len(target.images) <= 16


@pytest.mark.thorough
def test_a_model_for_one_client_alone_takes_its_records_out_of_a_secure_sum(tmp_path: Path) -> None:
    """The honest twin has nothing that `analytic` can read, since only the sum is in view."""

    params = {
        "rounds": 3,
        "batch_size": 16,
        "local_steps": 1,
        "aggregation": "secure",
        "weighting": "uniform",
    }
    settings: dict[str, Any] = {
        "model__params__widths": [256, 64],
        "dataset__limit": 600,
        "protocol__params": params,
    }
    active = {"party": "server", "name": "model-inconsistency", "params": {"rounds": [0, 1, 2]}}
    cell = attacked(tmp_path / "active", "analytic", deviations=[active], **settings)
    (found,) = found_by(Run(tmp_path / "active").result)
    assert found.remedy == CHECK
    assert attacked(tmp_path / "honest", "analytic", **settings).status == "not-applicable"
    assert cell.status == "run"
    assert [target.target for target in cell.targets] == ["client/0", "client/1", "client/2"]
    for target in cell.targets:
        exact = sum(image.psnr > 40 for image in target.images or ())
        assert exact >= 8, target.target


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deviations": [{**IMPRINT, "party": "client/9"}]}, "deviations.0.party"),
        ({"deviations": [{**IMPRINT, "party": "client/0"}]}, "deviations.0.party"),
        ({"deviations": [IMPRINT, {**IMPRINT, "name": "trap-weights"}]}, "deviations.1.party"),
        ({"deviations": [{**IMPRINT, "name": "imprnt"}]}, "deviations.0.name"),
        ({"deviations": [{**IMPRINT, "params": {"round": [0]}}]}, "deviations.0.params.round"),
        ({"deviations": [{**IMPRINT, "params": {"rounds": [-1]}}]}, "deviations.0.params.rounds.0"),
        ({"deviations": [IMPRINT], "protocol": {"name": "fedmd"}, "splits__proxy": 0.1}, "deviations.0.name"),
        ({"deviations": [IMPRINT], "model": {"name": "cnn-strided"}}, "model.name"),
        ({"deviations": [IMPRINT], "model__params__widths": []}, "model.name"),
        ({"deviations": [FISHING], "dataset": {"name": "digits-multilabel", "limit": 100}}, "dataset.name"),
        ({"deviations": [{**FISHING, "params": {"target": 10}}]}, "deviations.params.target"),
        (
            {"deviations": [{**FISHING, "params": {"share": 0.5}}], "splits__auxiliary": 0.05},
            "splits.auxiliary",
        ),
        ({"deviations": [IMPRINT], "auxiliary": {"others": "none"}}, "auxiliary.others"),
        ({"deviations": [IMPRINT], "auxiliary": {"others": "shifted"}}, "auxiliary.others"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    refused(lambda: fdaudit.run(small_spec(**changes), tmp_path / "run"), field)
    assert not (tmp_path / "run").exists()


class EndsInConvolution(torch.nn.Sequential):
    """A network whose answers no fully connected layer gives."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten())


def test_fishing_needs_a_fully_connected_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    network = perceptron(4)
    ClassFishing(ClassFishingConfig(), Knowledge(architecture=network, classes=10))
    monkeypatch.setattr(Architecture, "build", lambda self, generator: EndsInConvolution())
    knows = Knowledge(architecture=network, classes=10)
    refused(lambda: ClassFishing(ClassFishingConfig(), knows), "model.name")


def test_a_deviation_may_not_change_the_form_of_a_message_or_forget_a_receiver() -> None:
    class Sends:
        def __init__(self, change: dict[str, Any]) -> None:
            self.change = change

        def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
            return (replace(draft, **self.change),)

    honest = replace(draft("x", {"w": torch.zeros(2)}), receivers=("a", "b"))
    for change in ({"kind": "y"}, {"receivers": ("a",)}, {"receivers": ("a", "a")}, {"tensors": {}}):
        with pytest.raises(ProtocolError):
            DeviatingParty("server", "s", Sends(change), 1, ("x",)).sends(honest, 0)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_a_card_names_attacks_and_kinds_that_there_are(name: str) -> None:
    from fdaudit.attacks import REGISTRY as ATTACKS

    from fdaudit.kinds import KINDS
    from fdaudit.twin.detectors import DETECTORS

    card = REGISTRY.describe(name)
    assert set(card.read_by) <= set(ATTACKS.names())
    assert set(card.changes) <= KINDS.keys()
    assert card.detectors
    assert set(card.detectors) <= DETECTORS.keys()
    assert card.source
    assert card.noticed
