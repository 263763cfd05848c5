"""A protocol from outside: FedGEN's own files as a package of another name, kinds of its own, declared generators."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.protocols import REGISTRY

import fdaudit
from fdaudit import attacks
from fdaudit.adversary.forms import Forms, left_out, legible
from fdaudit.adversary.view import View
from fdaudit.cli.explain import explained, text
from fdaudit.errors import SpecError
from fdaudit.models import Architecture, zoo
from fdaudit.models.declared import generator_card
from fdaudit.planning import simulated
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.training.trainer import parameters_of
from fdaudit.transcript import messages
from fdaudit.transcript.messages import Message
from fdaudit.types import TensorInfo

from ..helpers.run_cases import known

FEDGEN = "import:outside_fedgen.protocol:FedGEN"
_BANKS = Path(__file__).parent.parent / "fixtures" / "banks_package"
_SHIPPED = Path(__file__).parents[2] / "protocols" / "fedgen"
NETWORK = Architecture("mlp", {"widths": [4]}, (1, 8, 8), 10)


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """FedGEN as a stranger would bring it: its files in a package of another name, below another public name."""
    site = tmp_path_factory.mktemp("site")
    (site / "outside_fedgen").mkdir()
    renamed = {
        "fdaudit.protocols.fedgen.generator:": "outside_fedgen.generator:",
        'name="fedgen"': 'name="outside-fedgen"',
    }
    for file in _SHIPPED.glob("*.py"):
        text_ = file.read_text(encoding="utf-8")
        for ours, theirs in renamed.items():
            assert text_.count(ours) == (file.name == "protocol.py")
            text_ = text_.replace(ours, theirs)
        (site / "outside_fedgen" / file.name).write_text(text_, encoding="utf-8")
    sys.path[:0] = [str(site), str(_BANKS)]
    yield site / "outside_fedgen"
    for folder in (site, _BANKS):
        sys.path.remove(str(folder))
    for name in [n for n in sys.modules if n.partition(".")[0] in ("outside_fedgen", "banks")]:
        del sys.modules[name]


def fedgen(share: str = "all", **changes: Any) -> dict[str, Any]:
    params = {"rounds": 2, "batch_size": 8, "local_steps": 2, "generator_steps": 2, "share": share}
    return small_spec(protocol={"name": FEDGEN, "params": params}, **changes)


BANKS = "import:banks:Banks"


def message(kind: str, shapes: dict[str, tuple[int, ...]], **changes: Any) -> Message:
    tensors = {n: TensorInfo("F32", s) for n, s in shapes.items()}
    sent = Message(
        seq=0, round=0, step=0, sender="client/0", receivers=("server",), kind=kind, tensors=tensors
    )
    return replace(sent, payload={"file": "x", "length": 1}, **changes)


WHOLE = {n: tuple(p.shape) for n, p in NETWORK.build(torch.Generator()).named_parameters()}


# -- the form of messages -------------------------------------------------------------------------------------------


def test_a_whole_model_is_read_and_a_part_is_not() -> None:
    forms = Forms(architecture=NETWORK, classes=10)
    first, *rest = WHOLE
    for kind in ("model_parameters", "model_update", "gradient"):
        assert forms.misfit(message(kind, WHOLE)) == ""
        assert f"{first} missing" in forms.misfit(message(kind, {n: WHOLE[n] for n in rest}))
        assert "has not: generator.weight" in forms.misfit(message(kind, {**WHOLE, "generator.weight": (3,)}))
        assert "(7,)" in forms.misfit(message(kind, {**WHOLE, first: (7,)}))


def test_views_are_checked_again_without_describing_a_message_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial of an attack checks the view: each message has its form once, each network its shapes."""
    described, built = list[Any](), list[Any]()
    for made, module, name in ((described, messages, "_described"), (built, zoo, "_module")):
        real = getattr(module, name)

        def counted(one: Any, made: list[Any] = made, real: Any = real) -> Any:
            made.append(one)
            return real(one)

        monkeypatch.setattr(module, name, counted)
    sent = tuple(message("model_parameters", WHOLE, seq=n) for n in range(3))
    view = View(
        name="server", members=("server",), parties=(), hyperparameters={}, messages=sent, directory=Path()
    )
    for _ in range(4):
        network = Architecture("mlp", {"widths": [4]}, (1, 8, 7), 10)
        assert not legible(view, Forms(architecture=network, classes=10)).messages
    assert len(described) == 3
    assert len(built) == 1


def test_a_quantised_model_is_whole_by_its_names() -> None:
    forms = Forms(architecture=NETWORK, classes=10)
    first, *rest = WHOLE
    coded = {
        f"{first}:codes": (9,),
        f"{first}:grid": (2,),
        f"{first}:layout": (3,),
        **{n: WHOLE[n] for n in rest},
    }
    assert forms.misfit(message("model_update", coded)) == ""


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("logits", {"index": (5,), "values": (5, 10)}, {"index": (5,), "values": (5, 11)}),
        ("soft_labels", {"values": (5, 10)}, {"answers": (5, 10)}),
        ("hard_labels", {"index": (5,), "values": (5,)}, {"index": (5,), "values": (5, 10)}),
        ("ensemble_labels", {"index": (5,), "values": (5,)}, {"index": (5,), "values": (5, 2)}),
        ("class_counts", {"counts": (10,)}, {"counts": (9,)}),
        ("sample_count", {"n": ()}, {"n": (4,)}),
        ("vote_counts", {"index": (5,), "counts": (5, 10)}, {"counts": (5, 9)}),
        ("vote_counts", {"counts": (5, 10)}, {"counts": (5, 10), "samples": (5,)}),
        ("ensemble_labels", {"values": (5, 10), "client_share": ()}, {"values": (5, 10), "i": (5,)}),
        ("proxy_indices", {"index": (5,)}, {"numbers": (5,)}),
        ("generated_samples", {"samples": (5, 1, 8, 8)}, {"samples": (5, 64)}),
        ("discriminator_parameters", {"weight": (1, 4), "bias": (1,)}, {"weight": (1, 9), "bias": (1,)}),
    ],
)
def test_other_kinds_are_read_in_their_form_only(kind: str, good: Any, bad: Any) -> None:
    forms = Forms(architecture=NETWORK, classes=10)
    assert forms.misfit(message(kind, good)) == ""
    assert forms.misfit(message(kind, bad))


def test_a_discriminator_with_an_extractor_of_its_own_is_read_whole_only() -> None:
    forms = Forms(architecture=NETWORK, classes=10)
    own = {n: s for n, s in WHOLE.items() if n.startswith("extractor.")}
    apart = {**own, "head.weight": (1, 4), "head.bias": (1,)}
    assert forms.misfit(message("discriminator_parameters", apart)) == ""
    for without in (*own, "head.bias"):
        part = {n: s for n, s in apart.items() if n != without}
        assert forms.misfit(message("discriminator_parameters", part))


def test_what_cannot_be_read_leaves_the_view_with_a_reason() -> None:
    from types import SimpleNamespace  # stands for a view, whose directory is not read here

    view: Any = SimpleNamespace(
        messages=(message("acme/bank", {"x": (3,)}), message("model_update", {"x": (3,)}))
    )
    forms = Forms(architecture=NETWORK, classes=10)
    said = left_out(view, forms, ("model_update",))
    assert said.startswith("model_update of client/0")
    assert "0 of 4 tensors" in said
    whole: Any = SimpleNamespace(messages=(message("model_update", WHOLE),))
    assert legible(whole, forms) is whole


def test_every_attack_leaves_out_what_it_cannot_read() -> None:
    for name in attacks.REGISTRY.names():
        found = attacks.REGISTRY.load(name)
        assert hasattr(found.applicable, "__wrapped__"), name
        assert hasattr(found.run, "__wrapped__"), name


# -- kinds with a namespace -----------------------------------------------------------------------------------------


def test_a_kind_of_its_own_is_private_untested_and_of_telling_size(tmp_path: Path) -> None:
    run = fdaudit.run(
        small_spec(protocol={"name": BANKS, "params": {"rounds": 2, "local_steps": 1}}), tmp_path / "run"
    )
    assert run.verify() == []
    (row,) = (
        r
        for r in run.result.plain()["exposure"]
        if (r["party"], r["kind"]) == ("server", "acme/prototype-bank")
    )
    assert (row["direction"], row["private"]) == ("received", True)
    assert "no attack knows" in row["unread"]
    assert ("acme/prototype-bank", "client") not in fixed_sizes(run.case)
    (server,) = (e for e in run.result.plain()["ledger"] if e["adversary"] == "server")
    assert server["epsilon"] is None


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("kind", ["bank", "Acme/bank", "acme/", "acme/bank/x"])
def test_a_kind_without_a_namespace_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = f'messages=({{"kind": {kind!r}, "from": "client", "to": "server", "what": "x"}},)'
    text_ = (_BANKS / "banks.py").read_text().replace('name="banks"', f'name="banks", {declared}')
    (tmp_path / "unnamed.py").write_text(text_)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unnamed", raising=False)
    for way in (REGISTRY.describe, REGISTRY.load):
        with pytest.raises(SpecError, match="namespace"):
            way("import:unnamed:Banks")


@pytest.mark.usefixtures("trusting")
def test_messages_of_a_protocol_that_declares_none_are_found_without_reading_the_records_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, load = list[str](), simulated.load_dataset
    monkeypatch.setattr(
        simulated, "load_dataset", lambda spec, stream: read.append(spec.name) or load(spec, stream)
    )
    case = simulated_case(load_spec(small_spec(protocol={"name": BANKS, "params": {"rounds": 1}})), known(7))
    assert all("rehearsal" in m["what"] for m in case.declared_messages)
    assert case.declared_messages
    assert read == ["digits"]


# -- declared generators --------------------------------------------------------------------------------------------


def built(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    spec = load_spec(
        small_spec(protocol={"name": name, "params": {}}, dataset={"name": "digits", "limit": 100})
    )
    case = simulated_case(spec, known(7))
    assert case.generator is not None
    return case, parameters_of(case.generator.module(child(0, "g")))


def test_dafkd_s_declaration_builds_its_generator() -> None:
    case, found = built("dafkd")
    from fdaudit.models.conditional import build_conditional

    cfg, shape = case.protocol_config, case.dataset.input_shape
    own = parameters_of(build_conditional(child(0, "g"), cfg.latent, cfg.generator_width, shape, 10))
    assert found.keys() == own.keys()
    assert all(torch.equal(found[n], own[n]) for n in own)
    assert (
        case.forms.misfit(message("generator_parameters", {n: tuple(t.shape) for n, t in own.items()})) == ""
    )


def test_fediod_s_declaration_builds_its_generator() -> None:
    case, found = built("fediod")
    from fdaudit.models.generative import build_generator

    cfg, shape = case.protocol_config, case.dataset.input_shape
    own = parameters_of(build_generator(child(0, "g"), cfg.latent, cfg.generator_width, shape))
    assert found.keys() == own.keys()
    assert all(torch.equal(found[n], own[n]) for n in own)
    drawn = case.generator.drawn(own, 5, torch.Generator().manual_seed(0), 2)
    assert drawn.shape == (5, *shape)


def test_an_undeclared_or_another_generator_is_not_read() -> None:
    assert "declares no generator" in Forms(architecture=NETWORK).misfit(
        message("generator_parameters", WHOLE)
    )
    case, found = built("dafkd")
    name = next(iter(found))
    shapes = {n: tuple(t.shape) for n, t in found.items()}
    assert "lacks" in case.forms.misfit(
        message("generator_parameters", {n: s for n, s in shapes.items() if n != name})
    )
    assert name in case.forms.misfit(message("generator_parameters", {**shapes, name: (1,)}))


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"build": "x:Y"}, "missing or unknown"),
        ({"build": "x:Y", "arguments": {"n": "nothing"}}, "is no setting"),
        ({"build": "x:Y", "arguments": {}, "takes": ("colour",)}, "is not what a generator takes"),
        ({"build": "x:Y", "arguments": {}, "latent": "none"}, "is no length"),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        generator_card(declared, {"latent": 3}, input_shape=(1, 8, 8), classes=10, features=4)


def test_a_generator_that_cannot_be_built_has_a_reason() -> None:
    card_ = generator_card(
        {"build": "no_such_module:G", "arguments": {}},
        {"latent": 3},
        input_shape=(1, 8, 8),
        classes=2,
        features=0,
    )
    assert card_ is not None
    assert "cannot be made" in card_.misfit({})


# -- FedGEN ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("trusting")
def test_fedgen_imports_public_names_only_and_its_messages_are_found(package: Path) -> None:
    assert len(list(package.glob("*.py"))) == 5
    for file in package.glob("*.py"):
        found = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        names = {a.name for n in found if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in found if isinstance(n, ast.ImportFrom) and not n.level}
        assert {n for n in names if n.partition(".")[0] == "fdaudit"} <= {"fdaudit.federation.kit"}, file.name
    case = simulated_case(load_spec(fedgen()), known(7))
    found = {(m["kind"], m["from"]): set(m["to"].split(", ")) for m in case.declared_messages}
    assert found == {
        ("class_counts", "client"): {"server"},
        ("model_parameters", "server"): {"client", "world"},
        ("generator_parameters", "server"): {"client"},
        ("model_parameters", "client"): {"server"},
    }
    assert "models and class counts" in text(explained(FEDGEN))


def test_the_outside_package_is_the_shipped_protocol(package: Path, tmp_path: Path) -> None:
    """Its messages have the bytes of the shipped one's."""
    heads = []
    for number, name in enumerate((FEDGEN, "fedgen")):
        asked = fedgen()
        asked["protocol"]["name"] = name
        run = fdaudit.run(asked, tmp_path / str(number))
        log = (run.directory / "transcript" / "messages.jsonl").read_text().splitlines()
        heads.append([(m["kind"], m["sender"], m["inputs"]) for m in map(json.loads, log)])
        heads.append([run.view("server").tensors(m) for m in run.view("server").messages])
    assert heads[0] == heads[2]
    for one, other in zip(heads[1], heads[3], strict=True):
        assert all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.mark.thorough
@pytest.mark.parametrize("share", ["all", "head"])
def test_fedgen_s_parts_are_tested_or_said_to_be_untested(share: str, tmp_path: Path) -> None:
    asked = fedgen(share, attacks=[{"name": "update-projection"}, {"name": "generator-leakage"}])
    run = fdaudit.run(asked, tmp_path / "run")
    cells = {c["attack"]: c for c in run.result.plain()["cells"] if c["status"] != "not-requested"}
    unread = {r["kind"] for r in run.result.plain()["exposure"] if r["party"] == "server" and r["unread"]}
    if share == "all":
        assert {c["status"] for c in cells.values()} <= {"run", "inconclusive"}
        assert unread == set()
    else:
        assert {c["status"] for c in cells.values()} == {"not-applicable"}
        assert "extractor.1.weight, extractor.1.bias missing" in cells["update-projection"]["reason"]
        assert unread == {"model_parameters", "generator_parameters"}


@pytest.mark.thorough
@pytest.mark.parametrize("share", ["all", "head"])
def test_fedgen_audits_without_a_failed_cell(share: str, tmp_path: Path) -> None:
    adversaries = ["server", "client/1", "eavesdropper", "world", "server+client/1"]
    run = fdaudit.run(fedgen(share, attacks="all", adversaries=adversaries), tmp_path / "run")
    cells = run.result.plain()["cells"]
    assert {c["adversary"] for c in cells} == set(adversaries)
    assert {c["id"]: c["reason"] for c in cells if c["status"] == "failed"} == {}
    assert all(c["reason"] for c in cells if c["status"] == "not-applicable")
