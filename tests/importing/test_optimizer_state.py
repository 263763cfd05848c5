"""Records of federations whose clients send their optimiser's state: gradients are read off it, unless it is false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.recording.recorder import Recorder
from fdaudit.rng import child
from fdaudit.testing.specs import small_spec

from . import federation_cases
from .federation_cases import MODEL, ROWS, drawn, network, write_truth

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "adam": (lambda module: torch.optim.Adam(module.parameters(), lr=0.01), {"optimizer": "adam"}),
    "adam with weight decay": (
        lambda module: torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1),
        {"optimizer": "adam", "weight_decay": 0.1},
    ),
    "adam with other betas": (
        lambda module: torch.optim.Adam(module.parameters(), lr=0.01, betas=(0.8, 0.95)),
        {"optimizer": "adam", "betas": [0.8, 0.95]},
    ),
    "adamw": (
        lambda module: torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1),
        {"optimizer": "adamw", "weight_decay": 0.1},
    ),
    "momentum": (
        lambda module: torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01),
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    ),
}
"""Optimisers of clients, and what a card says of them."""


def as_is(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def state_of(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The state as PyTorch keeps it, by the name of the state and of the parameter."""
    found = {}
    for name, parameter in module.named_parameters():
        for state, value in optimizer.state[parameter].items():
            found[f"{state}/{name}"] = value.clone()
    return found


def recorded(
    folder: Path,
    make: Optimizer,
    *,
    kept: bool = False,
    steps: int = 1,
    batch: int = 1,
    prefix: str = "",
    sent: Callable[[dict[str, Tensor]], dict[str, Tensor]] = as_is,
    upload: Callable[[dict[str, Tensor]], dict[str, Tensor]] = as_is,
    returned: bool = False,
    inside: bool = False,
) -> Path:
    """Two rounds of FedAvg between two clients, in a loop that knows nothing of fdaudit.

    Clients send `sent` of their optimiser's state, after `upload` of their update. If it is `kept`, the second round
    goes on from it. If it is `returned`, the server sends the mean of the states back. If it is `inside`, it is part of
    the update.
    """
    x, y = drawn()
    modules = {party: network() for party in ROWS}
    optimizers = {party: make(module) for party, module in modules.items()}
    shared = {n: t.clone() for n, t in modules["client/0"].state_dict().items()}
    record = Recorder(folder / "record", ["server", "world", *ROWS], truth=folder / "truth")

    def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {prefix + n: t for n, t in tensors.items()}

    def states(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n.replace("/", f"/{prefix}"): t for n, t in tensors.items()}

    mean: dict[str, Tensor] = {}
    for number in range(2):
        record.round(number)
        start = record.send("server", list(ROWS), "model_parameters", named(shared))
        if mean:
            record.send("server", list(ROWS), "optimizer_state", states(mean))
        updates, after = [], []
        for party, mine in ROWS.items():
            module = modules[party]
            module.load_state_dict(shared)
            if not kept:
                optimizers[party] = make(module)
            for state, value in mean.items():
                kind, _, name = state.partition("/")
                optimizers[party].state[module.get_parameter(name)][kind] = value.clone()
            used = [number * batch * steps + i for i in range(batch * steps)]
            for s in range(steps):
                part = mine[used[s * batch : (s + 1) * batch]]
                optimizers[party].zero_grad()
                F.cross_entropy(module(x[part]), y[part]).backward()
                optimizers[party].step()
            update = {n: t - shared[n] for n, t in module.state_dict().items()}
            state = sent(state_of(optimizers[party], module))
            behind: list[Any] = ["data", start.seq]
            message = named(upload(update)) | (state if inside else {})
            record.send(party, "server", "model_update", message, behind, used)
            if not inside:
                record.send(party, "server", "optimizer_state", states(state), behind, used)
            updates.append(update)
            after.append(state)
        shared = {n: t + updates[0][n] / 2 + updates[1][n] / 2 for n, t in shared.items()}
        if returned:
            mean = {n: (t + after[1][n]) / 2 for n, t in after[0].items()}
    record.close()
    write_truth(folder, x.permute(0, 2, 3, 1).numpy(), y)
    return folder


def imported(folder: Path, training: Mapping[str, Any], **card: Any) -> fdaudit.Run:
    return federation_cases.imported(folder, {"lr": 0.01, "batch_size": 1, **training}, **card)


def psnr(run: fdaudit.Run, attack: str, **params: Any) -> tuple[float, str]:
    """Return the mean PSNR of an attack, and its note."""
    cell = fdaudit.attack(attack, run, **params)
    figures = {figure.name: figure for figure in cell.figures}
    assert "psnr" in figures, cell.reason
    value = figures["psnr"].value
    assert value is not None
    return value, figures["psnr"].note


READ = "read off the optimiser's state"


def assert_read_off(run: fdaudit.Run, number: int) -> None:
    """Check that the record behind a round's step is found exactly, from the state."""
    value, note = psnr(run, "analytic", round=number)
    assert value > 50
    assert READ in note


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_record_is_read_off_the_state(name: str, tmp_path: Path) -> None:
    """One record behind a step of a fully connected network is exact, in the first round and in a second one anew."""
    make, stated = OPTIMIZERS[name]
    run = imported(recorded(tmp_path, make), stated)
    for number in range(2):
        assert_read_off(run, number)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_kept_state_is_read_off_its_difference(name: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS[name]
    assert_read_off(imported(recorded(tmp_path, make, kept=True), stated | {"optimizer_kept": True}), 1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adams_states_tell_that_they_were_kept(name: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS[name]
    run = imported(recorded(tmp_path, make, kept=True), stated)
    assert psnr(run, "analytic", round=1)[0] > 50


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_state_that_the_server_sent_is_the_one_before(name: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS[name]
    assert_read_off(imported(recorded(tmp_path, make, returned=True), stated), 1)


@pytest.mark.thorough
def test_search_finds_more_in_the_state_than_in_adams_update(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["adam"]
    search: dict[str, Any] = {"iterations": 300, "restarts": 1, "tune": False}
    run = imported(recorded(tmp_path / "with", make), stated)
    (tmp_path / "without").mkdir()

    def strange(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: torch.zeros_like(t) for n, t in state.items()}

    bare = imported(recorded(tmp_path / "without", make, sent=strange), stated)
    assert psnr(run, "dlg")[0] > 40
    assert psnr(run, "inverting-gradients", **search)[0] > psnr(bare, "inverting-gradients", **search)[0]
    assert "sum of gradients" in fdaudit.attack("dlg", bare).reason


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["adam", "adamw", "momentum"])
def test_labels_are_counted_from_the_state(name: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS[name]
    run = imported(recorded(tmp_path, make, batch=4), stated | {"batch_size": 4})
    cell = fdaudit.attack("label-updates", run)
    assert cell.status in ("run", "inconclusive"), cell.reason
    assert "optimizer_state" in cell.reads


def other(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state of another gradient, which agrees with itself."""
    draws = child(7, "other")
    changed = dict(state)
    for name in state:
        kind, _, parameter = name.partition("/")
        if kind in ("exp_avg", "momentum_buffer"):
            g = torch.randn(state[name].shape, generator=draws)
            changed[name] = 0.1 * g if kind == "exp_avg" else g
            if kind == "exp_avg":
                changed[f"exp_avg_sq/{parameter}"] = 0.001 * g.square()
    return changed


def counting(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t + 4 if n.startswith("step/") else t for n, t in state.items()}


def squared_otherwise(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: 5 * t if n.startswith("exp_avg_sq/") else t for n, t in state.items()}


FALSE = {
    "another gradient of adam": ("adam", other, "is not the step that it makes at a rate of 0.01"),
    "another gradient of adamw": ("adamw", other, "is not the step that it makes at a rate of 0.01"),
    "another gradient of momentum": ("momentum", other, "is not the step that it makes at a rate of 0.01"),
    "five steps": ("adam", counting, "counts 5 steps"),
    "another second moment": ("adam", squared_otherwise, "exp_avg_sq does not follow"),
}


@pytest.mark.parametrize("how", FALSE)
def test_a_false_state_is_named_and_not_believed(how: str, tmp_path: Path) -> None:
    name, sent, said = FALSE[how]
    make, stated = OPTIMIZERS[name]
    run = imported(recorded(tmp_path, make, sent=sent), stated)
    if name == "momentum":
        value, note = psnr(run, "analytic")
        assert value > 50, "the update is read instead"
        assert READ not in note
    else:
        note = fdaudit.attack("analytic", run).reason
        assert "sum of gradients" in note
    assert "was not believed" in note
    assert said in note


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["exp_avg", "exp_avg_sq"])
def test_one_moment_of_adam_may_be_missing(state: str, tmp_path: Path) -> None:
    """The first shows the gradient by itself; the second alone is left out by name."""
    make, stated = OPTIMIZERS["adam"]

    def one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t for n, t in tensors.items() if n.startswith(f"{state}/")}

    run = imported(recorded(tmp_path, make, sent=one, kept=True), stated | {"optimizer_kept": True})
    if state == "exp_avg":
        assert psnr(run, "analytic")[0] > 50
        assert psnr(run, "analytic", round=1)[0] > 50
    else:
        assert "sum of gradients" in fdaudit.attack("analytic", run).reason


def test_a_state_after_several_steps_is_named(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["adam"]
    run = imported(recorded(tmp_path, make, steps=2), stated | {"local_steps": 2})
    note = psnr(run, "inverting-gradients", iterations=2, restarts=1, tune=False)[1]
    assert "after 2 steps" in note


def test_a_buffer_alone_does_not_tell_that_it_was_kept(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["momentum"]
    folder = recorded(tmp_path, make, kept=True)
    run = imported(folder, stated)
    value, note = psnr(run, "analytic", round=1)
    assert value < 50, "the card does not say that the state was kept"
    assert READ in note


def test_an_update_from_a_kept_state_that_is_not_known_is_not_inverted(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["momentum"]
    folder = recorded(tmp_path, make, kept=True, sent=other)
    run = imported(folder, stated | {"optimizer_kept": True})
    assert "is not known" in fdaudit.attack("inverting-gradients", run, round=1, tune=False).reason


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["module.", "net.0."])
def test_states_have_the_prefix_of_their_parameters(prefix: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["adamw"]
    run = imported(recorded(tmp_path, make, prefix=prefix), stated, prefix=prefix)
    assert psnr(run, "analytic")[0] > 50


def noisy(update: dict[str, Tensor]) -> dict[str, Tensor]:
    draws = child(3, "noise")
    return {n: t + 0.1 * torch.randn(t.shape, generator=draws) for n, t in update.items()}


def test_a_defence_of_updates_does_not_cover_the_state(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["momentum"]
    defenses = [
        {"kind": "model_update", "sender": "client", "name": "gaussian-noise", "params": {"sigma": 0.1}}
    ]
    assert_read_off(imported(recorded(tmp_path, make, upload=noisy), stated, defenses=defenses), 0)


def test_a_state_inside_an_update_is_refused_with_its_remedy(tmp_path: Path) -> None:
    make, stated = OPTIMIZERS["adam"]
    with pytest.raises(SpecError, match="kind optimizer_state"):
        imported(recorded(tmp_path, make, inside=True), stated)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_control_reads_states_and_finds_nothing_in_drowned_ones(name: str, tmp_path: Path) -> None:
    make, stated = OPTIMIZERS[name]
    cell = fdaudit.attack("analytic", imported(recorded(tmp_path, make), stated))
    assert cell.controls is not None
    assert cell.controls.positive is not None
    assert cell.controls.positive.passed, cell.controls.positive
    assert cell.controls.negative is not None
    assert cell.controls.negative.passed, cell.controls.negative


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_clients_of_fedavg_send_their_state(optimizer: str, tmp_path: Path) -> None:
    params: dict[str, Any] = {"rounds": 2, "local_steps": 1, "batch_size": 1, "lr": 0.01, "send_state": True}
    params |= {"optimizer": optimizer, "weight_decay": 0.1, "momentum": 0.9 if optimizer == "sgd" else 0.0}
    spec = small_spec(model=MODEL, protocol={"name": "fedavg", "params": params})
    run = fdaudit.run(spec, tmp_path / "run")
    for number in range(2):
        assert_read_off(run, number)
