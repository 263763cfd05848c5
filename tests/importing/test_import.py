"""A record of another system becomes a run: its figures, its refusals, and what nobody answers for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fdaudit
from fdaudit import api
from fdaudit.audit.run import Run
from fdaudit.errors import DataError, IntegrityError, RunError, SpecError, UsageError
from fdaudit.importing.records import check
from fdaudit.models import architecture
from fdaudit.recording.recorder import Recorder
from fdaudit.spec.schema import ModelSpec
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import read_manifest, verify
from fdaudit.transcript.messages import SUM
from fdaudit.transcript.transcript import read_messages
from tests.helpers.cli_cases import Shell
from tests.helpers.rerecorded import audit_of, bring, card_of, rerecord, with_coins
from tests.helpers.run_cases import tree

Import = Callable[..., Run]
Damage = Callable[[Path], object]

CLIENTS = ("client/0", "client/1")
UPDATES = {"rounds": 2, "batch_size": 2, "local_steps": 1, "upload": "model_update", "weighting": "uniform"}
OWN = {"protocol": {"name": "acme-avg"}, "training": {"lr": 0.1, "batch_size": 2, "local_steps": 1}}
"""What a system of its own would say of the same federation."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its messages recorded again, and what an auditor brings; tests that alter it alter a copy."""
    folder = tmp_path_factory.mktemp("rerecorded")
    run = api.run(small_spec(protocol={"name": "fedavg", "params": UPDATES}), folder / "run")
    rerecord(run, folder)
    with_coins(folder / "truth")
    return folder


@pytest.fixture
def here(source: Path, tmp_path: Path) -> Path:
    """A copy of the record and the truth."""
    for name in ("record", "truth"):
        shutil.copytree(source / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def imported(source: Path, here: Path) -> Import:
    """Imports the copy; keyword arguments alter the card."""
    run = Run(source / "run")

    def made(truth: bool = True, audit: dict[str, Any] | None = None, **changes: Any) -> Run:
        return fdaudit.import_record(
            here / "record",
            here / "imported",
            card=card_of(run, **changes),
            truth=[here / "truth"] if truth else [],
            audit={**audit_of(run), **(audit or {})},
            seed_from=source / "run",
        )

    return made


def refused(here: Path, kind: type[Exception], do: Callable[[], object]) -> str:
    """Return what a refusal says; it has left nothing behind."""
    before = sorted(p.name for p in here.iterdir())
    with pytest.raises(kind) as caught:
        do()
    assert sorted(p.name for p in here.iterdir()) == before
    return str(caught.value)


def recording(here: Path, *more: str, truth: Path | None = None) -> Recorder:
    """Begin another record in place of the one that is there."""
    shutil.rmtree(here / "record")
    return Recorder(here / "record", ["server", *CLIENTS, *more], truth=truth)


def lists_of(here: Path) -> dict[str, Any]:
    """Return the lists of records that the auditor brings."""
    lists: dict[str, Any] = json.loads((here / "truth" / "records.json").read_bytes())
    return lists


def write_lists(here: Path, lists: dict[str, Any]) -> None:
    (here / "truth" / "records.json").write_bytes(canonical(lists) + b"\n")


def without_images(here: Path) -> None:
    """Bring labels alone."""
    (here / "truth" / "uses.jsonl").unlink()
    np.savez(here / "truth" / "records.npz", y=np.load(here / "truth" / "records.npz")["y"])
    write_lists(here, {**lists_of(here), "design": None})


def exchange_sites(here: Path) -> None:
    """Name each client's records as the other's."""
    first, second = (lists_of(here)["clients"][party] for party in CLIENTS)
    write_lists(here, {**lists_of(here), "clients": {"client/0": second, "client/1": first}, "design": None})


def noted(run: Run, words: str) -> bool:
    """Return whether a note of the import has these words."""
    return any(words in note for note in run.result.plain()["run"]["recording"]["notes"])


# -- the same figures ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_recording_has_the_figures_of_its_run(source: Path, imported: Import) -> None:
    names = ("inverting-gradients", "label-updates", "gap", "update-projection", "lira-offline")
    run, again = Run(source / "run"), imported()
    for name in names:
        params = {"iterations": 20, "restarts": 1} if name == "inverting-gradients" else {}
        one, other = (api.attack(name, each, **params) for each in (run, again))
        assert one.figures
        assert one.plain() == other.plain()


def test_an_imported_run_says_what_it_is(source: Path, imported: Import) -> None:
    run = imported()
    assert verify(run.directory) == []
    manifest = read_manifest(run.directory)
    assert manifest["origin"] == "recording"
    assert set(manifest["files"]) == {"spec.yaml", "card.yaml"}
    assert not (run.directory / "utility.csv").exists()
    card = run.result.plain()["run"]
    assert card["origin"] == "recording"
    assert card["recording"]["asserted_by"] == "the tests"
    assert any("never recorded" in line for line in card["recording"]["asserted"])
    missing = [rung["bring"] for rung in card["recording"]["ladder"] if not rung["there"]]
    assert missing == ["public samples"]
    assert run.result.plain()["class_table"] == Run(source / "run").result.plain()["class_table"]


def test_nothing_of_the_truth_lies_outside_the_vault(imported: Import) -> None:
    run = imported()
    names = {p.name for p in run.directory.rglob("*") if "vault" not in p.relative_to(run.directory).parts}
    assert not names & {"records.npz", "records.json", "uses.jsonl"}
    assert (run.directory / "vault").stat().st_mode & 0o077 == 0


# -- what was not brought -----------------------------------------------------------------------------------------


def test_without_truth_each_attack_says_what_to_bring(imported: Import) -> None:
    run = imported(truth=False)
    cells = {cell.attack: cell for cell in api.attack_all(run) if cell.adversary == "server"}
    assert {c.status for c in cells.values()} == {"not-applicable"}
    assert "uses.jsonl" in cells["inverting-gradients"].reason
    assert "fdaudit design" in cells["lira-offline"].reason
    assert "records.npz" in cells["label-updates"].reason
    assert run.result.plain()["class_table"] is None
    assert len(run.result.plain()["exposure"]) > 4


@pytest.mark.thorough
def test_without_a_network_nothing_that_needs_one_applies(imported: Import) -> None:
    run = imported(model=None, **OWN)
    cells = {cell.attack: cell for cell in api.attack_all(run) if cell.adversary == "server"}
    assert all(
        "under `model`" in cells[name].reason for name in ("gap", "dlg", "label-updates", "lira-online")
    )
    assert run.result.plain()["run"]["model"] == "not stated"


@pytest.mark.thorough
def test_without_auxiliary_records_gradients_are_inverted_all_the_same(here: Path, imported: Import) -> None:
    write_lists(here, {**lists_of(here), "auxiliary": []})
    run = imported()
    cell = api.attack("inverting-gradients", run, iterations=20, restarts=1)
    assert cell.status == "run"
    assert cell.controls is None  # so that silence is never "no leak measured"
    assert "auxiliary" in api.attack("label-updates", run).reason


def test_members_without_coins_have_no_p_value_and_a_blind_baseline(
    here: Path, source: Path, imported: Import
) -> None:
    bring(Run(source / "run"), here / "truth")
    run = imported(claims=[{"epsilon": 1.0, "source": "their page"}])
    cell = api.attack("update-projection", run)
    figures = {f.name: f for f in cell.figures}
    assert figures["auc_blind"].value is not None
    assert all(f.p is None for f in cell.figures)
    assert "no p-value" in figures["auc"].note.lower()
    assert all(check["bound"] is None for check in run.result.plain()["checks"])
    assert "no coins" in " ".join(run.result.plain()["limits"])


# -- ε ------------------------------------------------------------------------------------------------------------


def test_no_declaration_in_a_record_lowers_epsilon(here: Path, imported: Import) -> None:
    with recording(here, "world") as recorder:
        recorder.round(0)
        for client in CLIENTS:
            recorder.send(client, "server", "acme/statistics", {"v": np.ones(3)}, inputs=[])
    run = imported(truth=False, **OWN)
    assert all(
        entry["epsilon"] is None for entry in run.result.plain()["ledger"] if entry["adversary"] == "server"
    )


def test_no_epsilon_is_stated_for_a_world_that_the_record_does_not_name(here: Path, imported: Import) -> None:
    """A model may be published outside the record: that nothing reached the world there is no claim."""
    with recording(here) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "acme/statistics", {"v": np.ones(3)})
    run = imported(truth=False, audit={"adversaries": ["server"]}, **OWN)
    assert {entry["adversary"] for entry in run.result.plain()["ledger"]} == {"server"}
    assert any("is on record" in line for line in run.result.plain()["ledger"][0]["assumptions"])


def test_an_encrypted_transport_lowers_no_epsilon_unless_someone_answers_for_it(
    here: Path, imported: Import
) -> None:
    def eavesdropper(**card: Any) -> float | None:
        shutil.rmtree(here / "imported", ignore_errors=True)
        entries = imported(truth=False, transport="encrypted", **card, **OWN).result.plain()["ledger"]
        [entry] = [e for e in entries if e["adversary"] == "eavesdropper"]
        return entry["epsilon"]

    with recording(here) as recorder:
        recorder.round(0)
        for client in CLIENTS:
            recorder.send(client, "server", "model_update", {"extractor.1.bias": np.ones(4, np.float32)})
    audit = {"adversaries": ["eavesdropper"]}
    assert eavesdropper(audit=audit) is None
    assert eavesdropper(audit=audit, transport_attested_by="Acme's operators") == 0


ATTESTED = {
    "event": "Gaussian",
    "unit": "record",
    "relation": "add-or-remove",
    "covers": ["data"],
    "count": 1,
    "sensitivity": 1.0,
    "scale": 2.0,
    "drawn_from": 1,
}


def test_an_attested_defence_gives_a_finite_epsilon_that_names_who_answers(imported: Import) -> None:
    kinds = [{"kind": "model_update", "sender": "client", "event": ATTESTED, "by": "Acme's auditors"}]
    run = imported(
        attested=kinds, messages=[{"kind": "model_update", "sender": "client", "fixed_size": True}], **OWN
    )
    ledger = {entry["adversary"]: entry for entry in run.result.plain()["ledger"]}
    assert ledger["server"]["epsilon"] is not None
    assert any("Acme's auditors" in line for line in run.result.plain()["run"]["recording"]["asserted"])


def test_updates_of_adam_are_not_inverted_as_sums_of_gradients(imported: Import) -> None:
    training = {**OWN["training"], "optimizer": "adam"}  # type: ignore[dict-item]
    cell = api.attack("dlg", imported(**{**OWN, "training": training}))
    assert cell.status == "not-applicable"
    assert "Adam" in cell.reason


def test_a_claimed_history_is_the_accountants_epsilon(imported: Import) -> None:
    run = imported(claims=[{"history": [[1.1, 0.01, 1000]], "source": "Opacus", "delta": 1e-5}])
    (claim,) = [check for check in run.result.plain()["checks"] if check["source"]]
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(1.1, 0.01, 1000)]
    assert 0 < claim["claimed"] <= accountant.get_epsilon(1e-5) * 1.001
    assert claim["source"] == "Opacus"


# -- refusals -----------------------------------------------------------------------------------------------------

WRONG = [
    ({"classes": 9}, "card.classes"),
    ({"classes": 11, "model": {"name": "mlp", "params": {"widths": [4]}}}, "card.model"),
    ({"input_shape": [1, 16, 16]}, "card.input_shape"),
    ({"input_shape": [0, 8, 8]}, "input_shape"),
    ({"model": {"name": "mlp", "params": {"widths": [5]}}}, "card.model"),
    ({"model": {"name": "cnn-strided", "params": {}}}, "card.model"),
    ({"model": {"name": "no-such", "params": {}}}, "card.model.name"),
    ({"clients": 3}, "card.clients"),
    ({"task": "multi-label"}, "card.task"),
    ({"protocol": {"name": "fedkd"}}, "card.protocol.name"),
    ({"protocol": {"name": "fedavg", "params": {"roundz": 3}}}, "card.protocol.params.roundz"),
    ({"protocol": {"name": "acme", "params": {"lr": 1.0}}}, "card.protocol.params"),
    ({"training": {"lr": 0.1}}, "card.training"),
    ({**OWN, "training": {"rounds": 1}}, "card.training.rounds"),
    ({**OWN, "training": {"lr": 0.1, "local_steps": 1, "local_epochs": 1}}, "training.local_steps"),
    ({**OWN, "stand_in": {"name": "no-such"}}, "card.stand_in.name"),
    ({**OWN, "messages": [{"kind": "logits", "sender": "client"}]}, "card.messages"),
    ({"claims": [{"epsilon": 1.0, "source": "x", "adversary": "client/9"}]}, "card.claims.0.adversary"),
    ({"claims": [{"source": "x"}]}, "claims.epsilon"),
    ({"attested": [{"kind": "logits", "event": {"event": "Magic"}, "by": "x"}]}, "attested.event"),
    ({"attested": [{"kind": "logits", "event": ATTESTED, "by": "x"}], **OWN}, "card.attested.0.kind"),
    ({"attested": [{"kind": "model_update", "event": ATTESTED, "by": "x"}] * 2, **OWN}, "attested"),
    (
        {"attested": [{"kind": "model_update", "event": {**ATTESTED, "drawn_from": 3}, "by": "x"}], **OWN},
        "card.attested.0.event.drawn_from",
    ),
    ({"messages": [{"kind": "model_update", "sender": "client"}] * 2, **OWN}, "messages"),
    ({"design": "0" * 63}, "card.design"),
    ({"colour": "red"}, "card.colour"),
    ({"asserted_by": ""}, "card.asserted_by"),
    ({"audit": {"clients": 5}}, "clients"),  # which the record decides
    ({"audit": {"adversaries": ["client/7"]}}, "adversaries"),
]


@pytest.mark.parametrize(("change", "field"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_a_wrong_card_or_audit_is_one_error_that_names_its_field(
    here: Path, imported: Import, change: dict[str, Any], field: str
) -> None:
    said = refused(here, SpecError, lambda: imported(**change))
    assert said.startswith(f"{field}:")


def test_labels_without_images_take_the_memory_of_labels(here: Path, imported: Import) -> None:
    without_images(here)
    with recording(here) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "class_counts", {"counts": np.ones(10)})
    run = imported(model=None, input_shape=[1, 3000, 3000], **OWN)  # gigabytes of zeros, were they made
    assert run.result.plain()["class_table"] is not None
    assert api.attack("label-counts", run).status == "run"


def test_what_was_not_brought_is_absent_and_cannot_be_used(imported: Import) -> None:
    case = imported(truth=False, model=None).case
    assert case.networks is None
    assert "under `model`" in case.missing("architecture")
    assert case.missing("architecture", "images").count(";") == 1
    with pytest.raises(RunError, match="names no network"):
        case.trainer()


def test_images_that_were_not_brought_have_a_shape_and_no_values(here: Path, imported: Import) -> None:
    without_images(here)
    run = imported()
    assert run.case.dataset.input_shape == (1, 8, 8)
    assert run.case.missing("images")
    assert not len(run.case.public)
    assert not run.view("client/0").own_data
    x, y = run.case.records("client/0")
    assert x.is_meta
    assert len(x) == len(y) > 0


def test_a_simulation_lacks_nothing(source: Path) -> None:
    case = Run(source / "run").case
    assert not case.not_brought
    with pytest.raises(RunError, match="is a simulation"):
        _ = case.system


@pytest.mark.parametrize("field", ["model", "client_models"])
def test_a_card_that_came_with_a_record_runs_no_code(
    here: Path, source: Path, imported: Import, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.spec.trust._named", set())
    code = {"name": "import:os:system", "params": {"command": f"touch {here / 'ran'}"}}
    named: dict[str, Any] = {"model": code} if field == "model" else {"client_models": [code, code]}
    (here / "record" / "card.yaml").write_text(yaml.safe_dump(card_of(Run(source / "run"), **named)))
    for do in (
        lambda: check(here / "record"),
        lambda: fdaudit.import_record(here / "record", here / "imported", truth=[here / "truth"]),
    ):
        assert "--trust-code" in refused(here, SpecError, do)


def test_a_card_in_a_record_is_no_link(here: Path, source: Path) -> None:
    (here / "elsewhere.yaml").write_text(yaml.safe_dump(card_of(Run(source / "run"))))
    (here / "record" / "card.yaml").symlink_to(here / "elsewhere.yaml")
    assert "a link" in refused(
        here, IntegrityError, lambda: fdaudit.import_record(here / "record", here / "imported")
    )
    ((finding,), _) = check(here / "record")
    assert "card.yaml" in finding
    assert "a link" in finding


def test_a_learning_rate_that_the_updates_refute_is_found(here: Path, imported: Import) -> None:
    """Only beside a stated loss: otherwise another loss may explain the updates, and the import notes it."""
    training = {**OWN["training"], "lr": 0.05, "loss": {"name": "cross-entropy"}}  # type: ignore[dict-item]
    wrong = {**OWN, "training": training}
    said = refused(here, IntegrityError, lambda: imported(**wrong))
    assert "rate of 0.1" in said
    assert "states 0.05" in said


@pytest.mark.parametrize("wrong", ["scale", "classes", "sites", "numbers"])
def test_records_that_the_updates_do_not_follow_from_are_noted(
    here: Path, imported: Import, wrong: str
) -> None:
    assert not noted(imported(**OWN), "does not follow")
    shutil.rmtree(here / "imported")
    arrays = here / "truth" / "records.npz"
    value, held = lists_of(here), dict(np.load(arrays))
    if wrong == "scale":
        held["x"] = held["x"] / 255
    elif wrong == "classes":
        held["y"] = (held["y"] + 1) % 10
    elif wrong == "sites":
        clients = value["clients"]
        clients["client/0"], clients["client/1"] = clients["client/1"], clients["client/0"]
    else:
        value["clients"]["client/0"]["records"].reverse()
    np.savez(arrays, **held)
    for client in value["clients"].values():
        del client["members"], client["non_members"]
    write_lists(here, {**value, "design": None})
    assert noted(imported(**OWN), "does not follow")


def test_a_model_that_knows_none_of_the_records_is_noted(here: Path, imported: Import) -> None:
    (here / "truth" / "uses.jsonl").unlink()
    x, y = (dict(np.load(here / "truth" / "records.npz"))[name] for name in ("x", "y"))
    means = np.stack([x[y == c].reshape(-1, 64).mean(0) for c in range(10)])
    means -= means.mean(0)
    for shift, named in ((0, False), (1, True)):
        # Shifted, a class has the weights of another: the records' classes count otherwise.
        weight = np.roll(means, shift, 0).astype(np.float32)
        with recording(here, "world") as recorder:
            recorder.round(0)
            recorder.send("client/0", "server", "acme/x", {"v": np.ones(2)})
            model = {"head.0.weight": weight, "head.0.bias": np.zeros(10, np.float32)}
            recorder.send("server", "world", "model_parameters", model)
        run = imported(model={"name": "mlp", "params": {"widths": []}}, **OWN)
        assert noted(run, "naming one class") == named
        assert noted(run, "reads acme/x")
        shutil.rmtree(here / "imported")


@pytest.mark.parametrize(
    "value", [np.nan, *(pytest.param(v, marks=pytest.mark.thorough) for v in (np.inf, 1e38))]
)
def test_a_federation_that_diverged_is_imported(
    here: Path, source: Path, imported: Import, value: float
) -> None:
    (here / "truth" / "uses.jsonl").unlink()
    network = Run(source / "run").case.initial()
    tensors = {name: np.full(tuple(t.shape), value, np.float32) for name, t in network.items()}
    with recording(here, truth=here / "more") as recorder:
        recorder.round(0)
        sent = recorder.send("server", CLIENTS, "model_parameters", tensors)
        recorder.send("client/0", "server", "model_update", tensors, ["data", sent.seq], [0, 1])
    shutil.move(here / "more" / "uses.jsonl", here / "truth" / "uses.jsonl")
    run = imported(**OWN)
    assert noted(run, "does not follow" if np.isfinite(value) else "is not finite")
    assert api.attack("inverting-gradients", run, iterations=5, restarts=1).status != "run"


@pytest.mark.thorough
def test_counters_of_batches_are_left_aside(here: Path, source: Path, imported: Import) -> None:
    """A model with BatchNorm as `state_dict` gives it: its counters are on record, and no attack needs them."""
    model = {"name": "resnet8", "params": {"norm": "batch"}}
    network = architecture(ModelSpec(**model), (1, 8, 8), 10).build(torch.Generator().manual_seed(0))
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    state |= {"extractor.1.num_batches_tracked": np.int64(3)} if not counters else {}
    with recording(here, "world") as recorder:
        recorder.round(0)
        recorder.send("server", [*CLIENTS, "world"], "model_parameters", state)
    (here / "truth" / "uses.jsonl").unlink()
    run = imported(**{**OWN, "model": model, "initial_seed": None})
    for name in ("gap", "loss-threshold"):
        cell = api.attack(name, run, "world")
        assert cell.status in ("run", "inconclusive"), cell.reason
        assert cell.figures


def test_fewer_rounds_than_planned_are_noted(imported: Import) -> None:
    card = {**OWN, "training": {**OWN["training"], "rounds": 9}}  # type: ignore[dict-item]
    assert noted(imported(**card), "plans 9 rounds")


def test_coins_are_asserted_to_come_first(here: Path, imported: Import) -> None:
    made = with_coins(here / "truth")
    told = imported().result.plain()["run"]["recording"]["asserted"]
    assert any("before the training" in line and made[:12] in line for line in told)


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("silence", {"v": 3}),
        ("sample_count", {"n": 3}),
        ("sample_count", {"n": 1, "v": 5}),
        ("class_counts", {"counts": 9}),
        ("logits", {"values": 10}),
        ("hard_labels", {"values": 10, "index": 9}),
        ("class_prototypes", {"values": 10}),
        ("generated_samples", {"samples": 10}),
        ("proxy_indices", {"values": 10}),
    ],
)
def test_tensors_of_another_kind_are_refused(
    here: Path, imported: Import, kind: str, tensors: dict[str, int]
) -> None:
    with recording(here) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", kind, {name: np.ones(size) for name, size in tensors.items()})
    said = refused(here, SpecError, lambda: imported(truth=False, **OWN))
    assert said.startswith(f"record.kind: {kind!r} ")
    assert "message 0" in said


@pytest.mark.parametrize("stated", [True, False])
def test_a_fixed_size_that_the_record_refutes_is_refused(here: Path, imported: Import, stated: bool) -> None:
    kind = "acme/top-k" if stated else "model_update"
    with recording(here) as recorder:
        for t, size in enumerate((3, 5)):
            recorder.round(t)
            recorder.send("client/0", "server", kind, {"v": np.ones(size)})
    card = {"messages": [{"kind": kind, "sender": "client", "fixed_size": stated}], "model": None, **OWN}
    said = refused(here, SpecError, lambda: imported(truth=False, transport="encrypted", **card))
    assert said.startswith("card.messages:")
    assert "fixed size" in said


def test_a_field_of_a_record_lowers_no_epsilon(imported: Import) -> None:
    run = imported(inputs_attested_by="Acme's auditors")
    assert all(
        not m.fields
        for m in run.case.charged(
            [replace(m, fields={SUM: True}) for m in read_messages(run.directory / "transcript")]
        )
    )


def without(name: str) -> Damage:
    return lambda here: (here / "truth" / name).unlink()


def truth_file(name: str, content: bytes) -> Damage:
    return lambda here: (here / "truth" / name).write_bytes(content)


def use(**line: Any) -> Damage:
    """Leave one line in the list of uses."""
    return truth_file("uses.jsonl", canonical(line) + b"\n")


def log_of(order: slice, *more: slice) -> Damage:
    """Leave these lines in the log of the record."""

    def write(here: Path) -> None:
        log = here / "record" / "transcript" / "messages.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(line for part in (order, *more) for line in lines[part]))

    return write


DAMAGED: list[tuple[Damage, type[Exception], str]] = [
    (log_of(slice(2), slice(3, None)), IntegrityError, ""),  # a message is dropped
    (log_of(slice(4, None), slice(4)), IntegrityError, ""),  # rounds are reordered
    (use(seq=99, records=[0]), IntegrityError, "the record has"),
    (use(seq=0, records=[0]), IntegrityError, "which server sent"),
    (use(seq=1, records=[10_000]), IntegrityError, "used record 10000"),
    (use(seq=1, records=[0, 1, 2]), IntegrityError, "use at most 2"),
    (truth_file("uses.jsonl", b"{"), UsageError, "uses.jsonl line 1"),
    (truth_file("uses.jsonl", b"[]\n"), UsageError, "uses.jsonl line 1"),
    (use(seq=1), UsageError, "uses.jsonl line 1"),
    (use(seq=-1, records=[]), UsageError, "uses.jsonl line 1"),
    (use(seq=1, records=["a"]), UsageError, "uses.jsonl line 1"),
    (truth_file("uses.jsonl", b"\xff\n"), UsageError, "uses.jsonl line 1"),
    (without("records.npz"), RunError, "records.npz"),
    (truth_file("records.json", b"{}\n"), DataError, ""),
]


@pytest.mark.parametrize(("damage", "kind", "said"), DAMAGED)
def test_a_damaged_record_or_truth_is_refused(
    here: Path, imported: Import, damage: Damage, kind: type[Exception], said: str
) -> None:
    damage(here)
    assert said in refused(here, kind, imported)


def test_inputs_that_the_truth_refutes_are_found(here: Path, imported: Import) -> None:
    shutil.rmtree(here / "truth")
    with recording(here, truth=here / "truth") as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "acme/sums", {"v": np.ones(3)}, inputs=[], records=[1, 2])
    said = refused(here, IntegrityError, lambda: imported(**OWN))
    assert "declared too narrow" in said


def test_many_contradictions_are_told_in_short(here: Path, imported: Import) -> None:
    lines = [canonical({"seq": n, "records": [0]}) + b"\n" for n in range(1000, 3000)]
    (here / "truth" / "uses.jsonl").write_bytes(b"".join(lines))
    said = refused(here, IntegrityError, imported)
    assert "and 1980 more" in said
    assert len(said) < 3000


def test_a_record_that_was_left_out_and_used_is_found(here: Path, imported: Import) -> None:
    own = lists_of(here)["clients"]["client/0"]
    unused = own["records"].index(own["non_members"][0])
    uses = (here / "truth" / "uses.jsonl").read_bytes().splitlines()
    use(seq=json.loads(uses[0])["seq"], records=[unused])(here)
    assert "left out" in refused(here, IntegrityError, imported)


def test_other_coins_than_the_card_committed_to_are_found(here: Path, imported: Import) -> None:
    assert "another design" in refused(here, IntegrityError, lambda: imported(design="0" * 64))
    made = with_coins(here / "truth")
    assert imported(design=made).case.design == "matched-pairs"


def test_a_file_in_two_truths_is_refused(here: Path, source: Path, imported: Import) -> None:
    def twice() -> None:
        fdaudit.import_record(
            here / "record", here / "imported", card=card_of(Run(source / "run")), truth=[here / "truth"] * 2
        )

    assert "holds uses.jsonl" in refused(here, RunError, twice)


def test_an_occupied_directory_is_refused(here: Path, imported: Import) -> None:
    imported()
    before = tree(here / "imported")
    with pytest.raises(RunError, match="exists already"):
        imported()
    assert tree(here / "imported") == before


# -- records that ended early -------------------------------------------------------------------------------------


def test_a_killed_recording_is_imported_up_to_its_last_whole_round(here: Path, imported: Import) -> None:
    shutil.rmtree(here / "record")
    with Recorder(here / "open", ["server", *CLIENTS, "world"]) as recorder:
        for t in range(2):
            recorder.round(t)
            recorder.send("server", CLIENTS, "acme/hello", {"v": np.ones(2)})
            recorder.send("client/0", "server", "acme/answer", {"v": np.ones(2)})
        shutil.copytree(here / "open", here / "record")  # what a kill leaves: round 1 is open
    run = imported(truth=False, **OWN)
    card = run.result.run
    assert card.recording is not None
    assert not card.recording.closed
    assert (card.rounds, card.recording.left_out) == (1, 2)
    assert any("never closed" in note for note in card.recording.notes)


def test_a_missing_answer_is_noted(here: Path, imported: Import) -> None:
    with recording(here) as recorder:
        for t in range(3):
            recorder.round(t)
            for client in CLIENTS:
                if (t, client) != (1, "client/1"):
                    recorder.send(client, "server", "acme/answer", {"v": np.ones(2)})
    assert noted(imported(truth=False, **OWN), "no acme/answer in round 1,")


def test_a_client_that_was_not_asked_owes_no_answer(here: Path, imported: Import) -> None:
    with recording(here) as recorder:
        for t, asked in enumerate((CLIENTS, ["client/0"], CLIENTS)):
            recorder.round(t)
            recorder.send("server", asked, "acme/question", {"v": np.ones(2)})
            for client in asked:
                if (t, client) != (2, "client/1"):
                    recorder.send(client, "server", "acme/answer", {"v": np.ones(2)})
    notes = imported(truth=False, **OWN).result.plain()["run"]["recording"]["notes"]
    (note,) = (note for note in notes if "client/1 sends no acme/answer" in note)
    assert "in round 2," in note


def test_a_changed_card_in_the_run_is_found(imported: Import) -> None:
    run = imported()
    card = yaml.safe_load((run.directory / "card.yaml").read_text())
    (run.directory / "card.yaml").write_text(yaml.safe_dump({**card, "name": "another"}))
    assert any("card.yaml" in finding for finding in verify(run.directory))
    with pytest.raises(IntegrityError):
        api.attack("gap", Run(run.directory))


# -- the commands that read runs ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_commands_read_an_imported_run(imported: Import, source: Path, shell: Shell) -> None:
    run = imported(claims=[{"epsilon": 1.0, "source": "their page"}]).directory
    assert "intact" in shell.told("verify", run)[0]
    assert "∞" in shell.told("ledger", run)[0]
    assert "ROC curve 0." in shell.told("attack", run, "gap")[0]
    shell.told("report", run)
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    for said in ("did not run", "Asserted by the recorder", "their page", "What more would buy"):
        assert said in page
    shell.told("report", run, "--public")
    shell.told("compare", run, source / "run", "--out", "both")
    assert "recordings of systems" in (shell.home / "both" / "index.html").read_text(encoding="utf-8")
    shell.told("evidence", run, "--out", "evidence")
    assert "intact" in shell.told("verify", "evidence")[0]
    shell.told("export-view", run, "server", "--out", "view")
    assert json.loads((shell.home / "view" / "card.json").read_bytes())["origin"] == "recording"
    assert "is a recording" in shell.refused("run", "--resume", "--out", run)


def test_a_card_is_written_from_a_record(here: Path, shell: Shell) -> None:
    shell.told("card", "new", here / "record")
    text = (here / "record" / "card.yaml").read_text(encoding="utf-8")
    assert "clients: 2" in text
    assert "kind: model_update" in text
    filled = text.replace("classes: FILL IN", "classes: 10")
    filled = filled.replace("input_shape: FILL IN", "input_shape: [1, 8, 8]").replace("FILL IN", "acme-avg")
    (here / "record" / "card.yaml").write_text(filled, encoding="utf-8")
    out, _ = shell.told("import", here / "record", "--check", "--truth", here / "truth")
    assert "nothing contradicts" in out
    assert "under `model`" in out
    shell.told("import", here / "record", "--truth", here / "truth", "--out", "RUN")
    assert "exists already" in shell.refused("card", "new", here / "record")


# -- which party is which site ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        lambda k: f"client/{k}",
        *(pytest.param(named, marks=pytest.mark.thorough) for named in (str, int)),
    ],
)
def test_a_site_map_undoes_another_numbering_of_the_clients(
    here: Path, source: Path, imported: Import, name: Callable[[int], str | int]
) -> None:
    """The records count the sites in another order than the record does; the site map says which is which."""
    exchange_sites(here)
    with_coins(here / "truth")
    sites = {"client/0": name(1), "client/1": name(0)}
    truth_file("sites.json", canonical(sites) + b"\n")(here)
    run = imported()
    again = Run(run.directory)  # opened from its files
    labels = Run(source / "run").case.records("client/0")[1].tolist()
    for case in (run.case, again.case):
        assert case.records("client/0")[1].tolist() == labels
    assert not noted(run, "does not follow")


def test_without_a_site_map_exchanged_sites_are_noted(here: Path, imported: Import) -> None:
    exchange_sites(here)
    notes = imported().result.plain()["run"]["recording"]["notes"]
    assert any("does not follow" in note and "which site" in note for note in notes)
