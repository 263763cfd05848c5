"""Records of federations as people train them: other losses, clipping, precisions and names, and damaged uploads."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import fdaudit
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.adversary.view import View, export_view, open_view
from fdaudit.errors import DataError, IntegrityError, SpecError
from fdaudit.evaluation.controls import _case, controls
from fdaudit.importing.new_card import new_card
from fdaudit.importing.records import check
from fdaudit.isolation.schema import Trial
from fdaudit.models import architecture
from fdaudit.models.network import matches
from fdaudit.planning.attacks import plan_attack
from fdaudit.recording.recorder import Recorder
from fdaudit.spec.card import load_card
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.objectives import ClientStep

from . import federation_cases
from .federation_cases import CLASSES, MODEL, ROWS, SHAPE, drawn, network, write_truth

BATCH = 4
CARD = {"name": "a", "asserted_by": "b", "classes": 4, "input_shape": [1, 6, 6], "protocol": {"name": "own"}}
Loss = Callable[[Tensor, Tensor], Tensor]
Sent = Callable[[Mapping[str, Tensor], int], dict[str, Tensor]]


def unchanged(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    return dict(tensors)


def recorded(
    folder: Path,
    *,
    loss: Loss = F.cross_entropy,
    clip: Callable[[nn.Module], object] = lambda module: None,
    sent: Sent = unchanged,
    lr: Callable[[int], float] = lambda number: 0.1,
    batch: int = BATCH,
    shape: tuple[int, int, int] = SHAPE,
    inputs: Callable[[Tensor], Tensor] = lambda x: x,
    stored: Callable[[NDArray[Any]], NDArray[Any]] = lambda x: x,
    micro: int | None = None,
    own_loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    frozen: tuple[str, ...] = (),
) -> Path:
    """Two rounds of FedAvg between two clients, one step a round, in a loop that knows nothing of fdaudit.

    Clients feed `inputs` of images in [0, 1] to the network. The truth holds the images as `stored` makes them. A step
    takes the mean gradient of batches of `micro` records. Parameters `frozen` do not move.
    """
    x, y = drawn(shape)
    model = network(shape)
    record = Recorder(folder / "record", ["server", "world", *ROWS], truth=folder / "truth")
    shared = {n: t.clone() for n, t in model.state_dict().items()}
    for number in range(2):
        record.round(number)
        start = record.send("server", list(ROWS), "model_parameters", sent(shared, number))
        for party, mine in ROWS.items():
            model.load_state_dict(shared)
            used = list(range(batch * number, batch * number + batch))
            optimizer = torch.optim.SGD(model.parameters(), lr=lr(number))
            optimizer.zero_grad()
            parts = mine[used].split(micro or batch)
            for part in parts:
                if own_loss is None:
                    (loss(model(inputs(x[part])), y[part]) / len(parts)).backward()
                else:
                    own_loss(model, inputs(x[part]), y[part]).backward()
            for name, parameter in model.named_parameters():
                parameter.grad = None if name in frozen else parameter.grad
            clip(model)
            optimizer.step()
            update = {n: t - shared[n] for n, t in model.state_dict().items()}
            record.send(party, "server", "model_update", sent(update, number), ["data", start.seq], used)
        shared = {n: t + update[n] for n, t in shared.items()}
    record.close()
    write_truth(folder, stored(x.permute(0, 2, 3, 1).numpy()), y)
    return folder


def imported(
    folder: Path, training: dict[str, Any] | None = None, own_loss: str | None = None, **card: Any
) -> fdaudit.Run:
    stated = {"lr": 0.1, "batch_size": BATCH, "optimizer": "sgd", **(training or {})}
    return federation_cases.imported(folder, stated, own_loss, **card)


def notes(run: fdaudit.Run) -> str:
    return " ".join(run.result.plain()["run"]["recording"]["notes"])


def clip_norm(module: nn.Module) -> object:
    return nn.utils.clip_grad_norm_(module.parameters(), 0.2)


def clip_value(module: nn.Module) -> object:
    return nn.utils.clip_grad_value_(module.parameters(), 0.05)


TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "label smoothing": (
        {"loss": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2)},
        {"loss": {"label_smoothing": 0.2}},
    ),
    "class weights": (
        {"loss": lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))},
        {"loss": {"class_weights": [1, 2, 3, 4]}},
    ),
    "summed loss": (
        {"loss": lambda z, y: F.cross_entropy(z, y, reduction="sum")},
        {"loss": {"reduction": "sum"}},
    ),
    "clipped norm": ({"clip": clip_norm}, {"loss": {}, "clip": {"norm": 0.2}}),
    "clipped values": ({"clip": clip_value}, {"loss": {}, "clip": {"value": 0.05}}),
    "falling rate": ({"lr": lambda number: 0.1 * 0.5**number}, {"loss": {}, "lr_decay": 0.5}),
    "accumulated gradients of weighted classes": (
        {
            "loss": lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([1.0, 20.0, 30.0, 4.0])),
            "micro": 2,
        },
        {"loss": {"class_weights": [1, 20, 30, 4]}, "batch_size": 2, "accumulate": 2},
    ),
    "accumulated sums": (
        {"loss": lambda z, y: F.cross_entropy(z, y, reduction="sum"), "micro": 2},
        {"loss": {"reduction": "sum"}, "batch_size": 2, "accumulate": 2},
    ),
    "accumulated gradients of an uneven end": (
        {"micro": 3, "loss": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.3)},
        {"loss": {"label_smoothing": 0.3}, "batch_size": 3, "accumulate": 2},
    ),
    "listed rates": ({"lr": lambda number: (0.1, 0.02)[number]}, {"loss": {}, "lr": [0.1, 0.02]}),
}
"""How clients train, and what a card says of it."""


@pytest.mark.parametrize("how", TRAININGS)
def test_an_honest_record_is_imported_whatever_its_loss(how: str, tmp_path: Path) -> None:
    """Unsaid it is a note, never a contradiction; stated it is checked, and nothing is noted."""
    training, stated = TRAININGS[how]
    folder = recorded(tmp_path, **training)
    said = notes(imported(folder))
    assert "do not follow" in said or "does not follow" in said
    (folder / "run").rename(folder / "first")
    run = imported(folder, stated)
    assert "not follow" not in notes(run)
    assert_attacked(run)


def test_a_stated_loss_that_is_false_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, loss=lambda z, y: F.cross_entropy(z, y, reduction="sum"))
    with pytest.raises(IntegrityError, match=r"rate of 0\.4"):
        imported(folder, {"loss": {"name": "cross-entropy"}})
    assert not (folder / "run").exists()


ATTACKS: dict[str, dict[str, Any]] = {
    "label-updates": {},
    "analytic": {},
    "inverting-gradients": {"iterations": 5, "tune": False},
    "loss-threshold": {},
}


def assert_attacked(run: fdaudit.Run, names: Iterable[str] = ("label-updates", "analytic")) -> None:
    """No attack fails, and labels are counted."""
    for name in names:
        cell = fdaudit.attack(name, run, **ATTACKS[name])
        assert cell.status != "failed", cell.reason
        if name == "label-updates":
            assert cell.status in ("run", "inconclusive"), cell.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_attacked(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = recorded(tmp_path, sent=lambda tensors, _: {n: t.to(dtype) for n, t in tensors.items()})
    assert_attacked(imported(folder), ATTACKS)


PREFIXES = ("module.", "_module.", "_orig_mod.", "net.backbone.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_of_names_is_stated_in_the_card(prefix: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path, sent=lambda tensors, _: {prefix + n: t for n, t in tensors.items()})
    with pytest.raises(SpecError, match=f"state `prefix: {prefix}`"):
        imported(folder)
    assert not (folder / "run").exists()
    run = imported(folder, prefix=prefix)
    assert "not follow" not in notes(run)
    assert_attacked(run)


@pytest.mark.parametrize("prefix", ["module.", "_module.", "_orig_mod."])
def test_a_new_card_offers_the_prefix(prefix: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path, sent=lambda tensors, _: {prefix + n: t for n, t in tensors.items()})
    assert yaml.safe_load(new_card(folder / "record", folder / "card.yaml").read_text())["prefix"] == prefix


def renamed(names: Mapping[str, str]) -> Sent:
    return lambda tensors, _: {names[n]: t for n, t in tensors.items()}


OWN_NAMES = ("layer.weight", "layer.bias", "head/kernel:0", "intercept_")
"""Names of no network of fdaudit's, for its four tensors in their order."""


def tensor_names() -> list[str]:
    return list(architecture(ModelSpec(**MODEL), SHAPE, CLASSES).tensor_shapes)


def test_numbers_in_place_of_names_are_positions_in_the_network(tmp_path: Path) -> None:
    numbers = {name: str(i) for i, name in enumerate(tensor_names())}
    folder = recorded(tmp_path, sent=renamed(numbers))
    with pytest.raises(SpecError, match="state `names: by-position`"):
        imported(folder)
    offered = new_card(folder / "record", folder / "card.yaml").read_text()
    assert "# names: by-position" in offered
    assert "`state_dict()` or `parameters()`" in offered
    run = imported(folder, names="by-position")
    assert "not follow" not in notes(run)
    assert_attacked(run)


def test_names_of_a_systems_own_are_stated_one_by_one(tmp_path: Path) -> None:
    own = dict(zip(tensor_names(), OWN_NAMES, strict=True))
    folder = recorded(tmp_path, sent=renamed(own))
    run = imported(folder, names={sent: name for name, sent in own.items()})
    assert "not follow" not in notes(run)
    assert_attacked(run)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("by-position", "needs models of 4 tensors"),
        ({}, "has 0 entries"),
        ({"layer.weight": "1.weight", "layer.bias": "1.weight"}, "names '1.weight' twice"),
        ({"layer.weight": "1.weight"}, "has no tensor 'head/kernel:0'"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: Any, said: str, tmp_path: Path) -> None:
    own = dict(zip(tensor_names(), OWN_NAMES, strict=True))
    folder = recorded(tmp_path, sent=renamed(own))
    with pytest.raises(SpecError, match=said):
        imported(folder, names=names)
    assert not (folder / "run").exists()


def test_names_need_one_network(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    with pytest.raises(SpecError, match=r"names: 'by-position' .*without model"):
        imported(folder, names="by-position", model=None)


def damaged(value: float, only: str = "") -> Sent:
    def sent(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        found = {n: t.clone() for n, t in tensors.items()}
        for name, tensor in found.items():
            if number == 1 and only in name:
                tensor.view(-1)[:2] = value
        return found

    return sent


@pytest.mark.parametrize(
    ("value", "only"), [(float("nan"), ""), (float("inf"), "bias"), (float("-inf"), "1.weight")]
)
def test_messages_that_are_not_finite_are_named_and_left_out(value: float, only: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path, sent=damaged(value, only))
    run = imported(folder)
    said = notes(run)
    for number in (3, 4, 5):
        assert f"Message {number} of " in said
    assert "2 of " in said
    (_, listed) = check(folder / "record", card=run.directory / "card.yaml", truth=[folder / "truth"])
    assert any("Message 4 of" in note and "not finite" in note for note in listed)
    assert_attacked(run)


COLOUR = (3, 6, 6)
MEANS, STDS = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def by_channel(x: Tensor) -> Tensor:
    return (x - torch.tensor(MEANS)[:, None, None]) / torch.tensor(STDS)[:, None, None]


PREPROCESSING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one mean": (
        {"inputs": lambda x: (x - 0.1307) / 0.3081},
        {"mean": 0.1307, "std": 0.3081},
    ),
    "a mean for each channel": (
        {"inputs": by_channel, "shape": COLOUR},
        {"mean": list(MEANS), "std": list(STDS)},
    ),
    "from -1 to 1": (
        {"inputs": lambda x: 2 * x - 1, "stored": lambda x: 2 * x - 1},
        {"range": [-1, 1]},
    ),
    "bytes": (
        {"inputs": lambda x: 255 * x, "stored": lambda x: (255 * x).round().astype(np.uint8)},
        {"range": [0, 255]},
    ),
    "floats up to 255, less their mean": (
        {"inputs": lambda x: 255 * x - 120, "stored": lambda x: 255 * x},
        {"range": [0, 255], "mean": 120, "std": 1},
    ),
}
"""What clients do to images, and what a card says of it."""


@pytest.mark.parametrize("how", PREPROCESSING)
def test_images_are_found_on_the_scale_of_the_truth(how: str, tmp_path: Path) -> None:
    """One record behind an update of a fully connected layer is exact, once the card says what was done to it."""
    training, stated = PREPROCESSING[how]
    folder = recorded(tmp_path, batch=1, **training)
    shape = list(training.get("shape", SHAPE))
    run = imported(folder, {"batch_size": 1, "loss": {}}, preprocess=stated, input_shape=shape)
    assert "not follow" not in notes(run)
    assert figures_of(run, "analytic")["psnr"].value > 50


def figures_of(run: fdaudit.Run, attack: str) -> dict[str, Any]:
    return {figure.name: figure for figure in fdaudit.attack(attack, run).figures}


def test_an_unsaid_normalisation_is_named_where_nothing_was_found(tmp_path: Path) -> None:
    folder = recorded(tmp_path, batch=1, inputs=lambda x: (x - 0.9) / 0.05)
    run = imported(folder, {"batch_size": 1})
    assert "`preprocess`" in notes(run)
    assert "`preprocess`" in figures_of(run, "analytic")["psnr_gain"].note
    (folder / "run").rename(folder / "first")
    run = imported(folder, {"batch_size": 1}, preprocess={})
    assert "preprocess" not in notes(run) + figures_of(run, "analytic")["psnr_gain"].note


@pytest.mark.parametrize("preprocess", [None, {}, {"mean": 0.5, "std": 0.25}, {"range": [0, 2]}])
def test_records_outside_their_range_are_refused_with_a_remedy(
    preprocess: dict[str, Any] | None, tmp_path: Path
) -> None:
    folder = recorded(tmp_path, stored=lambda x: (x - 0.5) / 0.2)
    with pytest.raises(DataError, match=r"\[-2\.5, 2\.5\].*`Normalize`"):
        imported(folder, preprocess=preprocess)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("preprocess", "said"),
    [
        ({"mean": 0.5}, "preprocess.std"),
        ({"std": [0.5]}, "preprocess.mean"),
        ({"mean": [0.5, 0.5], "std": [1.0, 1.0]}, "2 entries for 1 channels"),
        ({"mean": 0.5, "std": 0}, "std"),
        ({"range": [1, -1]}, "preprocess.range"),
        ({"range": [0, 1, 2]}, "range"),
        ({"range": [0, 1e-9]}, "preprocess.range"),
        ({"range": [0, 1e300]}, "range"),
        ({"mean": "imagenet", "std": "imagenet"}, "mean"),
    ],
)
def test_a_wrong_preprocess_is_refused(preprocess: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load_card({**CARD, "preprocess": preprocess})


WEIGHTS = architecture(ModelSpec(**MODEL), SHAPE, CLASSES).trained_parameters
FROZEN: dict[str, tuple[str, ...]] = {
    "a bias": ("head.0.bias",),
    "a layer": ("head",),
    "a pattern": ("*.bias",),
}


def matching(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in WEIGHTS if any(matches(name, pattern) for pattern in patterns))


@pytest.mark.parametrize("how", FROZEN)
def test_frozen_parts_are_a_note_if_unsaid_and_checked_if_stated(how: str, tmp_path: Path) -> None:
    names = matching(FROZEN[how])
    assert names
    folder = recorded(tmp_path, frozen=names)
    said = notes(imported(folder))
    assert "state `training.frozen`" in said
    assert sorted(names)[0] in said
    (folder / "run").rename(folder / "first")
    run = imported(folder, {"frozen": list(FROZEN[how]), "loss": {}})
    assert "frozen" not in notes(run)
    assert "not follow" not in notes(run)
    assert fdaudit.attack("inverting-gradients", run, iterations=2, tune=False).status != "failed"


@pytest.mark.parametrize("how", FROZEN)
def test_a_frozen_part_that_moves_is_a_contradiction(how: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    with pytest.raises(IntegrityError, match=r"message 1 .*frozen"):
        imported(folder, {"frozen": list(FROZEN[how])})
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("patterns", "said"), [(["features.*"], "no parameter"), (["*"], "nothing to train")]
)
def test_false_patterns_of_frozen_parts_are_refused(patterns: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        imported(recorded(tmp_path), {"frozen": patterns})


def test_a_first_layer_is_read_without_a_rate(tmp_path: Path) -> None:
    run = imported(recorded(tmp_path, batch=1), {"batch_size": 1, "lr": None})
    assert figures_of(run, "analytic")["psnr"].value > 50
    assert "names no lr" in fdaudit.attack("dlg", run).reason


PRECISIONS = {"bfloat16-mixed": torch.bfloat16, "float16-mixed": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_stated_precision_is_listed_and_contradicts_nothing(precision: str, tmp_path: Path) -> None:
    def rounded(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.to(PRECISIONS[precision]).float(), y)

    run = imported(recorded(tmp_path, loss=rounded), {"precision": precision, "loss": {}})
    assert f"precision = {precision}" in " ".join(run.result.plain()["run"]["recording"]["asserted"])


def control_views(run: fdaudit.Run, attack: str) -> list[View]:
    """Return the views that an attack's controls show it: the bare one, and the one drowned in noise."""
    views = list[View]()

    def shown(plan: AttackPlan, view: View, trial: Trial, reply: object) -> str:
        folder = run.directory.parent / f"view-{len(views)}"
        export_view(view, folder)  # the control's own directory is gone when it ends
        views.append(open_view(folder))
        return "only its view was wanted"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_case, "run_attack", shown)
        controls(plan_attack(attack, {}, run.case.spec, "attack", ("server",)), run.case)
    return views


def test_a_control_meets_clipped_gradients_of_the_stated_loss(tmp_path: Path) -> None:
    smoothed, training = {"label_smoothing": 0.2}, TRAININGS["clipped norm"][0]
    run = imported(recorded(tmp_path, **training), {"loss": smoothed, "clip": {"norm": 0.2}})
    bare = control_views(run, "dlg")[0]
    assert bare.hyperparameters["loss"]["label_smoothing"] == 0.2
    updates = [bare.tensors(message) for message in bare.select(kind="model_update")]
    assert updates
    for update in updates:
        norm = torch.cat([t.flatten() for t in update.values()]).norm()
        assert float(norm) == pytest.approx(0.1 * 0.2, rel=1e-3)
    assert ClientStep.of(bare.hyperparameters).clip_norm == 0.2


def test_a_stand_in_trains_with_the_stated_loss(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    stand_in: dict[str, Any] = {"name": "fedavg", "params": {"rounds": 1}}
    run = imported(folder, {"loss": {"label_smoothing": 0.2}, "clip": {"value": 0.1}}, stand_in=stand_in)
    assert run.case.stand_in is not None
    fit = run.case.stand_in[1].fit()
    assert (fit.step.label_smoothing, fit.step.clip_value) == (0.2, 0.1)


LOSSES = """
import torch
from torch.nn import functional as F


def focal(model, x, y):
    likelihood = F.log_softmax(model(x), 1).gather(1, y[:, None])[:, 0]
    return -((1 - likelihood.exp()) ** 2 * likelihood).mean()


def squares(model, x, y):
    return (model(x) - F.one_hot(y, 4)).square().sum(1).mean()


def adversarial(model, x, y):
    z = model(x)
    return F.cross_entropy(z, y) + 0.5 * F.cross_entropy(model(x + 0.1), y) + 0.01 * z.square().mean()


def random(model, x, y):
    return F.cross_entropy(model(x + torch.rand_like(x)), y)


def rows(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def number(model, x, y):
    return float(F.cross_entropy(model(x), y))


def constant(model, x, y):
    return F.cross_entropy(model(x).detach(), y)


def right(model, x, y):
    return (model(x).argmax(1) == y).float().mean()


def logarithm(model, x, y):
    return (model(x).mean() - 1e9).log()


def failing(model, x, y):
    raise ValueError("no luck\\nat all")


class Loss:
    def __call__(self, model, x, y):
        return F.cross_entropy(model(x), y)
"""


@pytest.fixture
def own_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file of losses that a user wrote; its functions, as clients call them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr("fdaudit.spec.trust._named", set())
    (tmp_path / "users_losses.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("users_losses")
    del sys.modules["users_losses"]


@pytest.mark.parametrize("name", ["focal", "squares", "adversarial"])
def test_a_loss_of_the_users_own_is_simulated(name: str, own_losses: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path, own_loss=getattr(own_losses, name))
    assert "not follow" in notes(imported(folder))
    (folder / "run").rename(folder / "first")
    run = imported(folder, own_loss=f"{tmp_path / 'users_losses.py'}:{name}")
    assert "not follow" not in notes(run)
    assert_attacked(run)
    trust = "is code that you have not named yourself"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fdaudit.spec.trust._named", set())
        with pytest.raises(SpecError, match=trust):
            fdaudit.attack("analytic", fdaudit.Run(run.directory))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("random", "differs in two calls"),
        ("rows", "not one number"),
        ("number", "returns float, not one number"),
        ("constant", "has no gradient"),
        ("right", "has no gradient"),
        ("logarithm", "is nan on random records"),
        ("failing", "ValueError: no luck"),
        ("Loss", "is no function"),
        ("missing", "cannot be imported"),
    ],
)
def test_an_unusable_loss_is_refused_before_anything_is_written(
    name: str, said: str, own_losses: Any, tmp_path: Path
) -> None:
    folder = recorded(tmp_path)
    with pytest.raises(SpecError, match=said) as refused:
        imported(folder, own_loss=f"import:users_losses:{name}")
    assert "\n" not in str(refused.value)
    assert not (folder / "run").exists()


@pytest.mark.parametrize("name", ["users_losses:focal", "absent.py:focal", "focal", "import:focal"])
def test_a_name_of_no_loss_is_refused(name: str, own_losses: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^loss: "):
        imported(recorded(tmp_path), own_loss=name)


def test_a_loss_in_a_card_or_in_settings_is_not_run(own_losses: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    named = "import:users_losses:focal"
    with pytest.raises(SpecError):
        imported(folder, {"loss": {"function": named}})
    with pytest.raises(SpecError, match="not named yourself"):
        fdaudit.import_record(
            folder / "record", folder / "run", card={**CARD, "model": MODEL}, audit={"loss": named}
        )
    assert not (folder / "run").exists()
