"""Grids: what is refused, how many runs there are, and what their keys depend on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.accounting.calibration import Shape, noise_for
from fdaudit.errors import SpecError
from fdaudit.sweeps.grid import Grid, expand, load_grid
from fdaudit.sweeps.levels import UNDEFENDED

from ..helpers.docs_pages import ROOT
from ..helpers.refusals import refused
from ..helpers.sweep_cases import grid

EXAMPLES = sorted((ROOT / "examples").glob("sweep-*.yaml"))

# -- laws of expansion ---------------------------------------------------------------------------------------------

names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)
levels = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0, "inf"]), min_size=1, max_size=4, unique=True)


def of_axes(
    protocols: list[str], defences: list[str], epsilon: list[Any], seeds: list[int]
) -> dict[str, Any]:
    """A grid whose protocols and defences differ in a harmless setting."""
    return grid(
        protocols=[
            {"name": "fedavg", "label": p, "params": {"rounds": 1 + n}} for n, p in enumerate(protocols)
        ],
        defences=[
            {"name": d, "spec": {"clients": 3 + n, "privacy": {"budget": {"epsilon": "{epsilon}"}}}}
            for n, d in enumerate(defences)
        ],
        epsilon=epsilon,
        seeds=seeds,
    )


@settings(max_examples=20, deadline=None)
@given(names, names, levels, st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
def test_every_point_of_the_axes_is_one_run_and_the_undefended_one_is_shared(
    protocols: list[str], defences: list[str], epsilon: list[Any], seeds: list[int]
) -> None:
    if epsilon == ["inf"]:
        epsilon = ["inf", 3.0]
    made = load_grid(of_axes(protocols, defences, epsilon, seeds))
    runs = expand(made)
    finite = [e for e in epsilon if e != "inf"]
    assert len(runs) == made.size
    assert {(c.protocol, c.defence, c.epsilon, c.seed) for c in runs} == {
        *((p, d, e, s) for p in protocols for d in defences for e in finite for s in seeds),
        *((p, UNDEFENDED, math.inf, s) for p in protocols for s in seeds if "inf" in epsilon),
    }
    assert len({c.key for c in runs}) == len(runs)


def test_a_key_depends_on_the_run_and_not_on_what_it_is_called_nor_on_the_other_runs() -> None:
    before = {(c.protocol, c.defence, c.epsilon, c.seed): c.key for c in expand(load_grid(grid()))}
    wider = grid(name="another", epsilon=["inf", 2, 8], seeds=[2, 5, 1])
    wider["defences"][0]["name"] = "renamed"
    wider["base"]["victims"] = 1  # written out, where it was the default before
    after = {(c.protocol, c.defence, c.epsilon, c.seed): c.key for c in expand(load_grid(wider))}
    for (protocol, defence, epsilon, seed), key in before.items():
        assert after[protocol, "renamed" if defence == "clipped" else defence, epsilon, seed] == key
    changed = expand(load_grid(grid(base__evaluate_every=2)))
    assert not {c.key for c in changed} & set(before.values())


def test_fragments_are_merged_and_their_placeholders_filled() -> None:
    made = grid(undefended={"references": ["standalone"]}, base__privacy={"delta": 1e-4})
    made["protocols"][0]["spec"] = {"splits": {"auxiliary": 0.2}}
    runs = {(c.protocol, c.epsilon): c.spec for c in expand(load_grid(made)) if c.seed == 1}
    plain, noised = runs["fedavg", math.inf], runs["fedavg", 8.0]
    assert plain is not None
    assert noised is not None
    assert (plain.splits.auxiliary, plain.splits.test) == (0.2, 0.2), "merged over the base, field by field"
    assert runs["standalone", math.inf].splits.auxiliary == 0.1  # type: ignore[union-attr]
    assert (plain.references, noised.references) == (("standalone",), ())
    assert (plain.defenses, len(noised.defenses)) == ((), 1)
    expected, reached = noise_for("gaussian-noise", Shape(releases=2, sensitivity=2.0), 8.0, 1e-4)
    assert noised.defenses[0].params["sigma"] == expected
    assert reached <= 8
    assert (plain.threads, plain.seed) == (1, 1)


def test_a_share_of_epsilon_is_one_of_delta_too() -> None:
    made = grid()
    sigma = made["defences"][0]["spec"]["defenses"][0]["params"]["sigma"]
    sigma["share"] = 0.25
    (spec,) = [c.spec for c in expand(load_grid(made)) if c.spec and c.spec.defenses and c.seed == 1][:1]
    assert (
        spec.defenses[0].params["sigma"]
        == noise_for("gaussian-noise", Shape(releases=2, sensitivity=2.0), 2.0, 2.5e-6)[0]
    )


# -- what is refused -----------------------------------------------------------------------------------------------

DEFENCE = {"name": "d", "spec": {"preset": {"name": "private", "epsilon": "{epsilon}"}}}


def defended(**spec: Any) -> dict[str, Any]:
    return {"defences": [{"name": "d", "spec": spec}]}


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"sweep": 2}, "sweep", "is not a valid choice"),
    ({"protocols": []}, "protocols", "is refused"),
    ({"seeds": []}, "seeds", "is refused"),
    ({"seeds": [1, 1]}, "seeds", "is given twice"),
    ({"seeds": [-1]}, "seeds.0", "is refused"),
    ({"epsilon": [0, "inf"]}, "epsilon.0", "is no ε"),
    ({"epsilon": [4, 4.0]}, "epsilon", "is given twice"),
    ({"epsilon": ["inf", "none"]}, "epsilon.1", "is no ε"),
    ({"epsilon": [float("nan")]}, "epsilon.0", "is no ε"),
    ({"epsilon": ["inf"]}, "defences", "are never used"),
    ({"defences": []}, "epsilon", "needs a defence"),
    ({"defences": [DEFENCE, DEFENCE]}, "defences", "is given twice"),
    ({"defences": [{**DEFENCE, "name": "none"}]}, "defences.0.name", "names the run without a defence"),
    ({"defences": [{"name": "d"}]}, "defences.0.protocols", "is left open"),
    ({"defences": [{**DEFENCE, "protocols": {"fedkd": {}}}]}, "defences.0.protocols", "is no protocol"),
    (
        {"defences": [{**DEFENCE, "protocols": {"fedavg": {}}, "not_applicable": {"fedavg": "no"}}]},
        "defences.0.not_applicable",
        "has a spec and a reason",
    ),
    ({**defended(references=["standalone"]), "epsilon": [1, 2]}, "grid", "is the same run"),
    (defended(seed=3), "defences.d.spec.seed", "is an axis"),
    *(
        (defended(clients=calibrated), f"defences.d.spec.clients.{field}", problem)
        for calibrated, field, problem in (
            ({"calibrate": "salt"}, "calibrate", "cannot be calibrated"),
            ({"calibrate": "gnmax", "share": 2}, "share", "is no share"),
            ({"calibrate": "gnmax", "relases": 2}, "relases", "is an unknown key"),
        )
    ),
    ({"base__seed": 1}, "base.seed", "is an axis"),
    ({"base__protocol": {"name": "fedkd"}}, "base.protocol", "is an axis"),
    ({"base__clinets": 3}, "clinets", "is an unknown key (in fedavg, no defence, seed 1)"),
    ({"base__adversaries": ["servr"]}, "adversaries", "names 'servr', not a party of fedavg (in fedavg, no"),
    ({"base": [1]}, "base", "is refused"),
    ({"keep": "all"}, "keep", "is not a valid choice"),
    ({"grids": 1}, "grids", "is an unknown key"),
    ({"seeds": list(range(6000))}, "sweep", "is more than 10,000 runs"),
]


@pytest.mark.parametrize(
    ("changes", "field", "problem"), BAD, ids=[f"{f}-{n}" for n, (_, f, _) in enumerate(BAD)]
)
def test_a_wrong_grid_names_the_field(changes: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(load_grid(grid(**changes)))
    assert caught.value.field == field
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("text", "field"),
    [("- 1", "grid"), ("a: 1\na: 2", "a"), ("a: [", "spec"), ("x: &a [*a]", "spec")],
)
def test_a_file_that_is_no_grid_is_refused(text: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(text)
    refused(lambda: load_grid(tmp_path / "grid.yaml"), field)


@pytest.mark.parametrize("name", ["../base.yaml", "/etc/passwd", "link/base.yaml", "absent.yaml"])
def test_a_base_lies_beside_its_grid(name: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("clients: 2")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    (tmp_path / "in" / "grid.yaml").write_text(yaml.safe_dump(grid(base=name)))
    refused(lambda: load_grid(tmp_path / "in" / "grid.yaml"), "base")


def test_a_base_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    whole = grid()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(whole["base"]))
    (tmp_path / "grid.yaml").write_text(
        yaml.safe_dump({**whole, "base": "base.yaml", "epsilon": [8, math.inf]})
    )
    made = load_grid(tmp_path / "grid.yaml")
    assert made == load_grid(whole)
    assert isinstance(made, Grid)
    assert [c.key for c in expand(made)] == [c.key for c in expand(load_grid(whole))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_grids_expand(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fdaudit.sweeps.levels._calibrated", lambda defence, shape, epsilon, delta: 1 / epsilon
    )
    made = load_grid(path)
    runs = expand(made)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert len(runs) == made.size
    assert all(c.spec.profile == "quick" for c in runs if c.spec)
