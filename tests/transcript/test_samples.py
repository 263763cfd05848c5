"""A message names its samples or is about the first ones in order; numbers travel in the narrowest type."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from fdaudit.transcript.samples import narrow, sample_index, smallest_integer


def test_both_forms_name_the_same_samples() -> None:
    values = torch.rand(3, 4)
    named = sample_index({"index": torch.tensor([0, 1, 2], dtype=torch.uint16), "values": values})
    assert named.dtype == torch.int64
    assert torch.equal(named, sample_index({"values": values}))
    assert torch.equal(named, sample_index({"counts": values}))
    assert sample_index({"index": torch.tensor([5, 2])}).tolist() == [5, 2]
    with pytest.raises(KeyError):
        sample_index({"samples": values})


@pytest.mark.parametrize(
    ("highest", "lowest", "wanted"),
    [
        (0, 0, torch.uint8), (255, 0, torch.uint8), (256, 0, torch.uint16), (65_535, 0, torch.uint16),
        (65_536, 0, torch.int32), (2**31, 0, torch.int64),
        (127, -1, torch.int8), (128, -1, torch.int16), (32_768, -1, torch.int32),
    ],
)  # fmt: skip
def test_the_type_is_the_narrowest_that_holds_the_largest_number(
    highest: int, lowest: int, wanted: torch.dtype
) -> None:
    assert smallest_integer(highest, lowest) == wanted


@pytest.mark.parametrize("count", [1, 2, 256, 257, 65_536, 65_537])
def test_no_number_is_lost_and_a_payload_gives_it_back(count: int) -> None:
    numbers = torch.tensor([0, count // 2, count - 1])
    sent = load(save({"index": narrow(numbers, count)}))
    assert sample_index(sent).tolist() == numbers.tolist()
    lowest = torch.tensor([-1, count - 1])
    assert narrow(lowest, count, -1).long().tolist() == lowest.tolist()
