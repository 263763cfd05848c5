"""What decides the truth is drawn from the vault's secret, exactly by its law, and no guess of a seed finds it."""

from __future__ import annotations

import ast
import csv
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chisquare, kstest

import fdaudit
from fdaudit import rng
from fdaudit.data import insert_canaries, load_dataset, make_splits
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import SecretStream, child, child_seed
from fdaudit.scoring.ground_truth import Truth
from fdaudit.spec.privacy import CanarySpec
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec, load_spec
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import known
from ..helpers.seed_attacker import (
    former_sets,
    guessed_seeds,
    members,
    near_seeds,
    rows_of,
    seed_of_sets,
    seeds_of,
)
from .draws import RAW, ROOT, draws

SECRET = bytes(range(32))


def stream(*path: str | int) -> SecretStream:
    return SecretStream(SECRET, "laws", *path)


# -- laws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high", [1, 2, 3, 7, 10, 1000])
def test_integers_are_equally_likely(high):
    drawn = stream(high).integers(high, 200, 300)
    assert drawn.shape == (200, 300)
    assert drawn.dtype == np.int64
    counts = np.bincount(drawn.ravel(), minlength=high)
    assert len(counts) == high
    assert chisquare(counts).pvalue > 1e-3 or high == 1


def test_large_integers_are_not_favoured_by_the_last_words():
    """Of 3 * 2^61 numbers two in three lie below 2^62; without rejection it would be three in four."""
    drawn = stream("large").integers(3 * 2**61, 20_000)
    low = int((drawn < 2**62).sum())
    assert chisquare([low, 20_000 - low], [20_000 * 2 / 3, 20_000 / 3]).pvalue > 1e-3


def test_words_beyond_the_last_multiple_are_drawn_again(monkeypatch):
    blocks = iter([[2**64 - 1, 5, 2**64 - 1], [2**64 - 1, 8], [4]])
    monkeypatch.setattr(SecretStream, "_words", lambda self, n: np.array(next(blocks), dtype=np.uint64))
    assert stream().integers(10, 3).tolist() == [4, 5, 8]


@pytest.mark.parametrize("high", [0, -1, 2**63 + 1])
def test_a_range_that_is_none_is_refused(high):
    with pytest.raises(ValueError, match=str(high)):
        stream().integers(high, 1)


@pytest.mark.parametrize("n", [3, 4])
def test_every_order_is_equally_likely(n):
    drawn, orders = stream("orders", n), list(itertools.permutations(range(n)))
    found = [tuple(drawn.permutation(n).tolist()) for _ in range(600 * len(orders))]
    assert chisquare([found.count(order) for order in orders]).pvalue > 1e-3


def test_orders_of_words_that_tie_are_drawn_again(monkeypatch):
    blocks = iter([[7, 7, 1], [3, 2, 1]])
    monkeypatch.setattr(SecretStream, "_words", lambda self, n: np.array(next(blocks), dtype=np.uint64))
    assert stream().permutation(3).tolist() == [2, 1, 0]


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_an_order_has_every_place_once(n):
    assert sorted(stream("places", n).permutation(n).tolist()) == list(range(n))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0])
def test_dirichlet_shares_have_the_laws_moments_and_margins(alpha):
    n, times = 4, 4000
    drawn = stream("dirichlet", str(alpha))
    shares = np.stack([drawn.dirichlet(alpha, n) for _ in range(times)])
    assert np.allclose(shares.sum(1), 1)
    variance = (n - 1) / (n**2 * (n * alpha + 1))
    assert abs(shares[:, 0].mean() - 1 / n) < 5 * (variance / times) ** 0.5
    assert shares[:, 0].var() == pytest.approx(variance, rel=0.1)
    assert kstest(shares[:, 1], "beta", (alpha, (n - 1) * alpha)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 1e6])
def test_extreme_concentrations_give_shares_still(alpha):
    shares = stream("extreme", str(alpha)).dirichlet(alpha, 10)
    assert np.isfinite(shares).all()
    assert shares.sum() == pytest.approx(1)
    assert (shares.max() > 0.99) == (alpha < 1)


# -- the same truth under the same secret, another under another ------------------------------------------------------


def differs(a: Case, b: Case) -> bool:
    ours, theirs = a.splits.to_dict(), b.splits.to_dict()
    return any(not torch.equal(ours[n], theirs[n]) for n in ours if n.endswith("members"))


def test_a_seed_alone_decides_nothing():
    spec = load_spec(small_spec())
    case = simulated_case(spec, Secrets(7, SECRET))
    again = simulated_case(spec, Secrets(7, SECRET))
    other = simulated_case(spec, Secrets(7, SECRET[::-1]))
    assert not differs(case, again)
    assert case.seed == again.seed
    assert differs(case, other)
    assert case.seed != other.seed
    assert not torch.equal(case.dataset.x, other.dataset.x)
    assert any(
        not torch.equal(a, b) for a, b in zip(case.initial().values(), other.initial().values(), strict=True)
    )
    one, two = (Truth(p, Vault(Path("none"))).challenge("client/0")[0] for p in (case, other))
    assert not torch.equal(one.x, two.x)


def test_runs_that_share_a_secret_and_a_seed_have_the_same_records_whatever_else_they_do():
    case = simulated_case(load_spec(small_spec()), Secrets(7, SECRET))
    changed = simulated_case(
        load_spec(small_spec(protocol__params__rounds=5, model__params__widths=[8])), Secrets(7, SECRET)
    )
    assert case.identity != changed.identity
    assert not differs(case, changed)
    assert differs(case, simulated_case(load_spec(small_spec()), Secrets(8, SECRET)))


def test_secrets_and_working_seeds_are_drawn_afresh() -> None:
    seeds = {Secrets(seed, SECRET).working_seed for seed in range(200)}
    assert len(seeds) == 200
    assert max(seeds) < 2**63
    assert sum(seed.bit_length() == 63 for seed in seeds) in range(70, 131)
    assert not seeds & set(range(200))
    one, two = Secrets.draw(), Secrets.draw()
    assert len(one.secret) == 32
    assert one.secret != two.secret
    assert one.seed != two.seed


# -- nothing with a small state is reachable --------------------------------------------------------------------------

DECIDES = {
    "fdaudit/data/canaries.py": None,
    "fdaudit/data/datasets.py": None,
    "fdaudit/data/partition.py": None,
    "fdaudit/data/splits.py": None,
    "fdaudit/data/stratify.py": None,
    "fdaudit/audit/red_team.py": None,
    "fdaudit/storage/vault.py": None,
    "fdaudit/adversary/view.py": None,
    "fdaudit/planning/simulated.py": {"_records", "simulated_case"},
    "fdaudit/scoring/ground_truth.py": {"challenge", "canaries", "_shuffled"},
}
"""Modules that decide truth or hand it out, and of two of them the functions that do."""
SMALL = {
    *("child", "child_numpy", "child_seed", "manual_seed", "Generator", "default_rng", "RandomState"),
    *("seed", "initial_seed", "rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "shuffle"),
}


def _names(path: str, functions: set[str] | None) -> set[str]:
    whole = ast.parse((ROOT / path).read_text("utf-8"))
    parts: Iterable[ast.AST] = [whole]
    if functions is not None:
        parts = [n for n in ast.walk(whole) if isinstance(n, ast.FunctionDef) and n.name in functions]
        assert {p.name for p in parts} == functions
    called = set()
    for node in itertools.chain.from_iterable(ast.walk(p) for p in parts):
        if isinstance(node, ast.Call):
            called.add(
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
        if isinstance(node, ast.ImportFrom) and functions is None:
            called |= {a.name for a in node.names}
    return called


@pytest.mark.parametrize("path", DECIDES)
def test_no_module_that_decides_truth_calls_a_generator_with_a_seed(path):
    assert not _names(path, DECIDES[path]) & SMALL


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("a generator with a small state was used")


@pytest.mark.parametrize("name", ["iid", "by-class", "dirichlet"])
def test_dataset_splits_canaries_and_challenges_are_made_where_every_other_generator_raises(
    monkeypatch, name
):
    case = simulated_case(load_spec(small_spec()), known(1))
    for module, attribute in (
        *((rng, n) for n in ("child", "child_numpy", "child_seed")),
        *(
            (torch, n)
            for n in ("Generator", "manual_seed", "rand", "randn", "randint", "randperm", "bernoulli")
        ),
        *((np.random, n) for n in ("default_rng", "RandomState", "rand", "permutation", "Generator")),
    ):
        monkeypatch.setattr(module, attribute, _refuse)
    with pytest.raises(AssertionError, match="small state"):
        torch.randperm(3)
    secrets = known(1)
    dataset = load_dataset(DatasetSpec(limit=300), secrets.truth("dataset"))
    shared = {"dirichlet": {"alpha": 1.0}, "by-class": {"classes_per_client": 4}}.get(name, {})
    splits = make_splits(
        dataset, 3, PartitionSpec(name=name, **shared), SplitSpec(candidates=5), secrets.truth("splits")
    )
    for kind in ("noise", "mislabelled"):
        asked = CanarySpec(count=4, kind=kind, clients=(0,))
        larger, within = insert_canaries(dataset, splits, asked, lambda k: secrets.truth("canaries", k))
        truth = Truth(replace(case, dataset=larger, splits=within, secrets=secrets), Vault(Path("none")))
        assert len(truth.challenge("client/0")[1]) == 10
        assert len(truth.canaries("client/0")[1]) == 4


# -- an attacker with a handout -----------------------------------------------------------------------------------

LOW = 7
"""A seed that anybody tries."""
SPEC = small_spec(
    seed=LOW, dataset__limit=None, splits={"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 20}
)


def former_challenge(x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Candidates as they once were ordered: members first, then shuffled by a seeded generator."""
    order = torch.randperm(len(y), generator=generator)
    renamed = torch.randperm(len(y) // 2, generator=generator)[torch.arange(len(y) // 2).repeat(2)][order]
    return {"x": x[order], "y": y[order], "pair": renamed}


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> tuple[fdaudit.Run, Path]:
    """A run of a small seed, and what its server is handed."""
    home = tmp_path_factory.mktemp("handed")
    run = fdaudit.run(SPEC, home / "run")
    return run, fdaudit.export_view(run, "server", home / "out", challenges=True)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [12, pytest.param(18, marks=pytest.mark.slow)])
def test_a_sweep_of_seeds_finds_members_by_the_former_method_and_nothing_by_this_one(handed, bits):
    run, out = handed
    case = run.case
    own = case.splits.clients[0]
    index = torch.cat([own.members.sort().values, own.non_members.sort().values])
    x, y = case.dataset.x[index], case.dataset.y[index]
    former = former_challenge(x, y, child(LOW, "challenge", "client/0"))
    rows = rows_of(former["x"], case.dataset.x)
    true, no_rows = torch.isin(torch.tensor(rows), own.members), [0] * len(rows)
    for pair, order in ((former["pair"], no_rows), (torch.zeros_like(former["pair"]), rows)):
        found = members(pair, order, guessed_seeds())
        assert found is not None
        assert torch.equal(found, true)
    assert (
        members(former["pair"], no_rows, near_seeds(LOW, bits)) is not None
    )  # by 32 bits, whatever the seed was

    issued = load_file(out / "challenges" / "client-0.safetensors")
    rows = rows_of(issued["x"], case.dataset.x)
    assert members(issued["pair"], rows, guessed_seeds()) is None
    assert members(issued["pair"], rows, near_seeds(LOW, bits)) is None
    assert (
        members(issued["pair"], rows, seeds_of(case.seed)) is None
    )  # nor if an attacker had the working seed


def test_a_sweep_of_seeds_finds_splits_by_the_former_method_and_nothing_by_this_one(handed):
    run, out = handed
    case = run.case
    y = case.dataset.y
    seeds = [child_seed(s, "splits") for s in range(256)]
    former = former_sets(y, SPEC["splits"], child(LOW, "splits"))
    seed = seed_of_sets(y, SPEC["splits"], set(former["auxiliary"].tolist()), seeds)
    assert seed == child_seed(LOW, "splits")
    auxiliary = set(rows_of(load_file(out / "knowledge" / "auxiliary.safetensors")["x"], case.dataset.x))
    assert len(auxiliary) == len(former["auxiliary"])
    assert (
        seed_of_sets(y, SPEC["splits"], auxiliary, [*seeds, child_seed(case.seed, "splits"), *range(256)])
        is None
    )


def test_a_handout_is_the_same_bytes_whatever_the_coins_but_for_candidates(handed):
    """Position tells nothing: auxiliary and public records lie in the order of the dataset."""
    _, out = handed
    run = handed[0]
    for name in ("auxiliary", "public"):
        rows = rows_of(load_file(out / "knowledge" / f"{name}.safetensors")["x"], run.case.dataset.x)
        assert rows == sorted(rows)
    text = json.dumps(json.loads((out / "card.json").read_text()))
    assert str(run.case.seed) not in text


# -- dropout under a guard ------------------------------------------------------------------------------------------


def test_a_secret_state_is_more_than_a_seed():
    """States that agree in what 64 bits of a seed could say still give other draws, and draws are uniform."""
    one, two = (stream("state", k).torch_state() for k in (1, 2))
    assert not torch.equal(one[:8], two[:8])  # the seed that it reports is a mark, and no seed of the words
    two[:8] = one[:8]
    assert torch.equal(one[:24], two[:24])
    drawn = [torch.Generator() for _ in range(3)]
    for generator, state in zip(drawn, (one, two, one), strict=True):
        generator.set_state(state)
    values = [torch.rand(5000, generator=g) for g in drawn]
    assert torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[1])
    assert kstest(values[0].numpy(), "uniform").pvalue > 1e-3
    assert drawn[0].initial_seed() == drawn[1].initial_seed()


# -- the review note --------------------------------------------------------------------------------------------------


def _told() -> set[str]:
    """Return what the first column of the list of draws names."""
    with (ROOT / "docs" / "draws.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {name for row in rows for name in row[0].split("; ")}


@pytest.mark.thorough
def test_the_review_note_has_every_draw():
    told = _told()
    missing = [d for d in draws() if (d.name or d.module) not in told]
    assert not missing


def test_the_review_note_names_nothing_that_is_gone():
    found = {d.name for d in draws()} | {d.module for d in draws()} | RAW
    extra = {"truth", "challenge", "canary-challenge", "coins", "fdaudit/transcript/wire.py"}
    assert not {name for name in _told() if name not in found | extra}
