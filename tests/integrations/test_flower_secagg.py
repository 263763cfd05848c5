"""A recorded deployment with SecAgg+: masked vectors are on record, and what the server needs to unmask their sum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from numpy.typing import NDArray

from fdaudit.recording.record import Checked, check_record
from fdaudit.storage.files import decode
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.recordings import state
from .deployment import deployment

pytestmark = pytest.mark.thorough

ROUNDS, SITES = 2, 3
CLIENTS = [f"client/{n}" for n in range(SITES)]
SHAPES = [(1,), (10, 64), (10,)]
"""Of a masked vector: the masked weight, and the masked layers."""

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("masked")
    with deployment(folder, SITES, "masked") as running:
        path = folder / "output" / "record" / "record.json"
        running.submit(folder / "output", ROUNDS)
        running.until(lambda: path.exists() and state(path.parent)["status"] == "closed", "closed record")
        yield folder / "output"


@pytest.fixture(scope="module")
def messages(output: Path) -> list[tuple[Message, Arrays]]:
    folder = output / "record" / "transcript"
    return [
        (m, {k: v.numpy() for k, v in decode(read_payload(folder, m)).items()}) for m in read_messages(folder)
    ]


def of(
    messages: list[tuple[Message, Arrays]], t: int, kind: str, sender: str | None = None
) -> list[tuple[str, Arrays]]:
    return [
        (m.sender, arrays)
        for m, arrays in messages
        if (m.round, m.kind) == (t, kind) and (m.sender == sender if sender else m.sender != "server")
    ]


def masks(messages: list[tuple[Message, Arrays]], t: int) -> dict[int, list[NDArray[Any]]]:
    """The private mask of each node, as the server recovers it from the shares on record."""
    shares: dict[int, list[bytes]] = {}
    for _, arrays in of(messages, t, "flower/secagg-unmask"):
        joined, begin = arrays["shares"].tobytes(), 0
        for node, length in zip(arrays["nids"].tolist(), arrays["shares:lengths"].tolist(), strict=True):
            shares.setdefault(node, []).append(joined[begin : begin + length])
            begin += length
    return {n: pseudo_rand_gen(combine_shares(s), 1 << 32, SHAPES) for n, s in shares.items()}


def masked(arrays: Arrays) -> list[NDArray[Any]]:
    return [arrays[str(i)] for i in range(len(SHAPES))]


def test_the_record_is_intact_and_has_a_round_for_each_of_flowers(output: Path) -> None:
    assert check_record(output / "record") == Checked((), ())
    assert state(output / "record")["rounds"] == ROUNDS


def test_clients_send_masked_vectors_and_no_model(messages: list[tuple[Message, Arrays]]) -> None:
    stages = ("setup", "share-keys", "collect-masked-vectors", "unmask")
    for t in range(ROUNDS):
        here = [m for m, _ in messages if m.round == t]
        assert {m.kind for m in here if m.sender == "server"} == {
            "model_parameters",
            *(f"flower/secagg-{stage}" for stage in stages),
        }
        for client in CLIENTS:
            assert sorted(m.kind for m in here if m.sender == client) == [
                *("flower/fitres-status", "flower/masked-vector", "flower/secagg-setup"),
                *("flower/secagg-share-keys", "flower/secagg-unmask", "sample_count"),
            ]
    for m, arrays in messages:
        if m.sender != "server" and m.kind != "flower/masked-vector":
            assert all(a.ndim < 2 for a in arrays.values())
        if m.kind == "flower/masked-vector":
            assert [a.shape for a in masked(arrays)] == SHAPES
            assert {a.dtype.kind for a in arrays.values()} == {"i"}


def test_no_vector_on_record_shows_what_its_client_trained(
    output: Path, messages: list[tuple[Message, Arrays]]
) -> None:
    """Not even without the private mask, which the shares on record reveal: the masks between clients remain."""
    for t in range(ROUNDS):
        true = [np.load(output / f"site-{site}" / f"sent-{t}.npz")["arr_0"] for site in range(SITES)]
        private = masks(messages, t)
        assert len(private) == SITES
        uploads = of(messages, t, "flower/masked-vector")
        assert len(uploads) == SITES
        for _, arrays in uploads:
            vector = arrays["1"]
            for mask in [np.zeros_like(vector), *(m[1] for m in private.values())]:
                shown = (vector - mask) % (1 << 32)
                for clear in true:
                    # Of 640 independent pairs, the correlation exceeds 0.3 once in 10^13 times.
                    assert abs(np.corrcoef(shown.ravel(), clear.ravel())[0, 1]) < 0.3


def test_the_sum_on_record_unmasks_to_the_next_model(
    output: Path, messages: list[tuple[Message, Arrays]]
) -> None:
    total: list[Any] = [0, 0, 0]
    for _, arrays in of(messages, 0, "flower/masked-vector"):
        total = [a + b for a, b in zip(total, masked(arrays), strict=True)]
    for mask in masks(messages, 0).values():
        total = [a - b for a, b in zip(total, mask, strict=True)]
    weight, *layers = (a % (1 << 32) for a in total)
    mean = [(a - (SITES - 1) * 8.0) * ((1 << 22) / weight[0]) for a in dequantize(layers, 8.0, 1 << 22)]
    [(_, model)] = of(messages, 1, "model_parameters", "server")
    for i, layer in enumerate(mean):
        np.testing.assert_allclose(model[str(i)], layer, rtol=1e-5, atol=1e-6)
        clear = [np.load(output / f"site-{site}" / "sent-0.npz")[f"arr_{i}"] for site in range(SITES)]
        expected = np.average(clear, axis=0, weights=[10, 20, 30])
        # Each client rounds weight x layer, at most 0.03 x layer, to steps of 16 / 2^22.
        np.testing.assert_allclose(layer, expected, atol=SITES * 16 / (1 << 22) / 0.06)


def test_every_client_starts_from_the_model_on_record(
    output: Path, messages: list[tuple[Message, Arrays]]
) -> None:
    for t in range(ROUNDS):
        [(_, model)] = of(messages, t, "model_parameters", "server")
        for site in range(SITES):
            received = np.load(output / f"site-{site}" / f"received-{t}.npz")
            for i in range(2):
                assert received[f"arr_{i}"].tobytes() == model[str(i)].tobytes()


def test_sample_counts_are_on_record_in_the_clear(messages: list[tuple[Message, Arrays]]) -> None:
    """SecAgg+ of Flower masks the weight, and sends the number of records beside it."""
    for t in range(ROUNDS):
        counts = [arrays["n"].item() for _, arrays in of(messages, t, "sample_count")]
        assert sorted(counts) == [10, 20, 30]
