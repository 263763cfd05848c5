"""A model that is sent again: from the party's own record, after a resume too, and read as a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.trials import auxiliary_trial
from fdaudit.attacks.gradient_inversion.updates import ClientSteps
from fdaudit.attacks.gradient_inversion.uploads import Upload, find_upload
from fdaudit.deviations.attached import DeviatingParty
from fdaudit.deviations.repeated_model import RepeatedModel, RepeatedModelConfig
from torch import nn
from torch.nn import functional as F

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.audit.run import Run
from fdaudit.errors import ProtocolError
from fdaudit.storage.files import decode
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outgoing
from fdaudit.twin import make_twin

from ..helpers.protocol_cases import run
from ..helpers.refusals import refused
from ..helpers.run_cases import finished
from .deviation_cases import check_resume, draft

REPEATED = {"party": "server", "name": "repeated-model"}
SIGMA, RATE, ROUNDS = 0.005, 0.1, 16


def server(of: int = 0) -> dict[str, DeviatingParty]:
    deviation = RepeatedModel(RepeatedModelConfig(of=of), Knowledge())
    return {"server": DeviatingParty("server", "repeated-model", deviation, 1, ("model_parameters",))}


class Reader:
    """A party that notes what it is given of earlier rounds, and sends what it should."""

    name = "reader"

    def __init__(self) -> None:
        self.given: list[tuple[int, Sequence[Outgoing]]] = []

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        self.given.append((draft.round, draft.earlier[:]))
        return (draft,)


# -- a party's own record --------------------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["server", "client/1"])
def test_a_party_is_given_the_messages_of_earlier_rounds_that_it_sent_or_received(
    party: str, tmp_path: Path
) -> None:
    reader = Reader()
    ran = run(tmp_path, "fedavg", {"weighting": "samples"}, rounds=3, deviants={party: reader})
    assert {round for round, _ in reader.given} == {0, 1, 2}
    for round, given in reader.given:
        own = [m for m in ran.messages if m.round < round and party in m.parties()]
        assert [(m.round, m.sender, m.receivers, m.kind) for m in given] == [
            (m.round, m.sender, m.receivers, m.kind) for m in own
        ]
        for message, record in zip(given, own, strict=True):
            tensors = decode(read_payload(tmp_path, record))
            assert all(torch.equal(message.tensors[name], tensors[name]) for name in tensors)


def test_messages_of_others_silences_and_marks_are_not_given(tmp_path: Path) -> None:
    reader = Reader()
    deviants = {**server(), "client/1": reader}
    ran = run(tmp_path, "fedavg", rounds=3, deviants=deviants)
    assert any("client/1" not in m.parties() for m in ran.messages)
    given = reader.given[-1][1]
    assert all("client/1" in (m.sender, *m.receivers) for m in given)
    assert any(m.sender == "server" and m.round == 1 for m in given)
    assert not any(DEVIATION in m.fields for m in given)


def test_a_resumed_run_repeats_the_model_from_its_record(tmp_path: Path) -> None:
    check_resume(tmp_path, "fedavg", server, rounds=3)


def test_a_model_that_is_on_record_by_its_digest_cannot_be_sent_again(tmp_path: Path) -> None:
    spec = small_spec(deviations=[REPEATED], record={"rounds": [1]})
    refused(lambda: fdaudit.run(spec, tmp_path / "run"), "record", 0, ["record to 'full'"])


def test_a_model_that_was_never_sent_cannot_be_sent_again() -> None:
    with pytest.raises(ProtocolError, match="in round 0"):
        server()["server"].sends(draft("model_parameters", {}, round=1), 0)


# -- what it sends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [0, 1])
def test_clients_get_one_model_again_and_the_world_gets_the_server_s_own(of: int, tmp_path: Path) -> None:
    ran = run(tmp_path, "fedavg", rounds=4, deviants=server(of))
    models = [m for m in ran.messages if m.kind == "model_parameters" and m.sender == "server"]
    sent = {(m.round, "world" in m.receivers): decode(read_payload(tmp_path, m)) for m in models}
    first = sent[of, False]
    for t in range(of + 1, 4):
        assert all(torch.equal(sent[t, False][name], first[name]) for name in first)
    assert not all(torch.equal(sent[3, True][name], first[name]) for name in first)
    assert [m.round for m in models if DEVIATION in m.fields] == list(range(of + 1, 4))


# -- what it gains ---------------------------------------------------------------------------------------------


def spec(**changes: Any) -> dict[str, Any]:
    """FedAvg of clients that take one step on one or two records, under noise on what they send."""
    noise = {
        "kind": "model_update",
        "sender": "client",
        "name": "gaussian-noise",
        "params": {"sigma": SIGMA, "clip": 1.0},
    }
    params = {"rounds": ROUNDS, "local_steps": 1, "batch_size": 64, "lr": RATE}
    return small_spec(
        clients=3,
        victims=3,
        dataset={"name": "digits", "limit": 120},
        model={"name": "mlp", "params": {"widths": [64]}},
        splits={"test": 0.1, "proxy": 0.0, "auxiliary": 0.86, "candidates": 0},
        protocol={"name": "fedavg", "params": params},
        references=[],
        adversaries=["server"],
        defenses=[noise],
        attacks=[],
        deviations=[REPEATED],
        **changes,
    )


def upload_of(run: Run, client: str) -> Upload:
    upload = find_upload(run.view("server"), client, 0, 64)
    assert isinstance(upload, Upload)
    return upload


def error(run: Run, upload: Upload) -> float:
    """Root-mean-square difference of an upload's gradient from the client's own on all its records."""
    case = run.case
    network = case.named_networks.of("server")
    assert network is not None
    module = network.build(torch.Generator().manual_seed(0))
    module.load_state_dict(dict(upload.start))
    x, y = case.records(upload.target)
    gradients = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    own = dict(zip(dict(module.named_parameters()), gradients, strict=True))
    return float(torch.cat([(upload.gradient[n] - own[n]).flatten() for n in own]).square().mean().sqrt())


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run and its honest twin."""
    folder = tmp_path_factory.mktemp("repeated")
    active = fdaudit.run(spec() | {"attacks": [{"name": "inverting-gradients"}]}, folder / "run")
    make_twin(active, folder / "twin")
    return active, fdaudit.load(folder / "twin")


@pytest.mark.thorough
def test_the_mean_of_m_uploads_has_noise_less_by_the_root_of_m(noisy: tuple[Run, Run]) -> None:
    active, honest = noisy
    for client in ("client/0", "client/1", "client/2"):
        mean, single = upload_of(active, client), upload_of(honest, client)
        assert (mean.repeats, single.repeats) == (ROUNDS, 1)
        assert error(honest, single) == pytest.approx(SIGMA / RATE, rel=0.1)
        assert error(honest, single) / error(active, mean) == pytest.approx(ROUNDS**0.5, rel=0.1)


@pytest.mark.thorough
def test_pictures_from_the_mean_are_sharper_than_from_one_upload(noisy: tuple[Run, Run]) -> None:
    psnr = []
    for one in noisy:
        (cell,) = [c for c in one.result.cells if c.attack == "inverting-gradients"]
        figures = [f.value for target in cell.targets for f in target.figures if f.name == "psnr"]
        psnr.append(sum(value for value in figures if value is not None) / len(figures))
    assert psnr[0] > psnr[1] + 4


@pytest.mark.thorough
def test_clients_notice_a_model_that_is_sent_again(noisy: tuple[Run, Run]) -> None:
    twin = noisy[0].result.twin
    assert twin is not None
    (noticed,) = twin.noticed
    assert (noticed.detector, noticed.caught, noticed.of_crafted) == ("nothing-new", ROUNDS - 1, ROUNDS - 1)
    assert noticed.alarms <= noticed.of_honest // 4


def test_uploads_of_other_batches_are_not_averaged(tmp_path: Path) -> None:
    folder = finished(
        tmp_path / "run",
        deviations=[REPEATED],
        protocol__params={"rounds": 3, "local_steps": 1, "batch_size": 4},
    )
    upload = find_upload(Run(folder).view("server"), "client/0", 0, 64)
    assert isinstance(upload, Upload)
    assert upload.repeats == 1


def test_a_view_without_the_deviating_party_averages_nothing(tmp_path: Path) -> None:
    folder = finished(
        tmp_path / "run",
        deviations=[REPEATED],
        adversaries=["eavesdropper"],
        protocol__params={"rounds": 3, "local_steps": 1, "batch_size": 1000},
    )
    views = [Run(folder).view(name) for name in ("server", "eavesdropper")]
    uploads = [find_upload(view, "client/0", 0, 1000) for view in views]
    assert [u.repeats for u in uploads if isinstance(u, Upload)] == [3, 1]


def test_only_rounds_that_are_named_repeat(tmp_path: Path) -> None:
    out = finished(
        tmp_path / "run", deviations=[{**REPEATED, "params": {"rounds": []}}], protocol__params__rounds=2
    )
    assert not any(DEVIATION in m.fields for m in read_messages(out / "transcript"))


def test_settings_are_tried_under_the_noise_of_a_mean() -> None:
    """An auxiliary upload stands in for the mean of m uploads: its noise is less by the root of m."""
    module = nn.Linear(4, 3)
    start = {name: tensor.detach() for name, tensor in module.named_parameters()}
    described = {"name": "gaussian-noise", "sigma": 2.0}
    upload = Upload(
        target="client/0",
        seq=1,
        start_seq=0,
        start=start,
        training=ClientSteps(lr=1.0, batches=((0,),)),
        gradient=start,
        update=None,
        defenses=(described,),
        repeats=100,
    )
    auxiliary = (torch.rand(1, 4), torch.tensor([1]))

    def noise(repeats: int) -> float:
        targets = []
        for defenses in ((), (described,)):
            one = replace(upload, repeats=repeats, defenses=defenses)
            draws = torch.Generator().manual_seed(1)
            targets.append(auxiliary_trial(one, torch.tensor([[1]] * 200), module, auxiliary, draws).target)
        return float((targets[1] - targets[0]).std())

    assert noise(1) == pytest.approx(2.0, rel=0.1)
    assert noise(100) == pytest.approx(0.2, rel=0.1)
