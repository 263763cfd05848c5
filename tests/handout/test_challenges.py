"""A challenge's candidates carry nothing that tells who is a member."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scipy.stats import binomtest

from fdaudit.data import make_splits
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.ground_truth import Truth
from fdaudit.spec.schema import PartitionSpec, SplitSpec, load_spec
from fdaudit.storage.vault import Vault

from ..helpers.doubles import SEED, registered, spec
from ..helpers.run_cases import known, stream


@pytest.fixture(scope="module")
def case():
    with registered("spy"):
        return simulated_case(load_spec(spec()), known(SEED))


@pytest.fixture(scope="module")
def many(case, tmp_path_factory):
    """Challenges of one client under 200 seeds, each with who is a member."""
    vault, made = Vault(tmp_path_factory.mktemp("nothing")), []
    for seed in range(200):
        splits = make_splits(
            case.dataset, 3, PartitionSpec(), SplitSpec(candidates=10), stream(seed, "splits")
        )
        one = dataclasses.replace(case, secrets=known(seed), splits=splits)
        made.append(Truth(one, vault).challenge("client/1"))
    return made


def _fair(successes: int, n: int) -> bool:
    return bool(binomtest(successes, n).pvalue > 0.001)


@pytest.mark.thorough
def test_neither_position_nor_pair_number_nor_order_within_a_pair_tells_members(many):
    members = torch.stack([member for _, member in many])
    seeds, n = members.shape
    for position in range(n):
        assert binomtest(int(members[:, position].sum()), seeds).pvalue > 0.001 / n
    first_half = int(members[:, : n // 2].sum())
    assert _fair(first_half, seeds * n // 2)
    first_of_pair = lower_number = 0
    for challenge, member in many:
        for pair in range(n // 2):
            one, two = (challenge.pair == pair).nonzero().flatten().tolist()
            assert bool(member[one]) != bool(member[two])
            first_of_pair += bool(member[one])
        ranked = challenge.pair[member]
        lower_number += int((ranked[: n // 4] < n // 4).sum())
    assert _fair(first_of_pair, seeds * n // 2)
    assert _fair(lower_number, seeds * (n // 4))


def test_candidates_are_copies_in_storage_of_their_own_that_look_alike(many, case):
    for challenge, member in many[:5]:
        for tensor in (challenge.x, challenge.y, challenge.pair):
            assert tensor.is_contiguous()
            assert tensor.storage_offset() == 0
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.untyped_storage().data_ptr() != case.dataset.x.untyped_storage().data_ptr()
            assert tensor._version == 0
            assert not tensor.requires_grad
        assert challenge.x.dtype == torch.float32
        assert torch.equal(challenge.y[member].sort().values, challenge.y[~member].sort().values)
        assert {f.name for f in dataclasses.fields(challenge)} == {"target", "x", "y", "pair", "design"}
