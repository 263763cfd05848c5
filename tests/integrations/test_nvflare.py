"""The record of a job of NVIDIA FLARE: what it records, and what reaches clients and workflows."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="needs the extra `nvflare`")

from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.utils import fobs
from nvflare.job_config.api import FedJob

from fdaudit.integrations.nvflare import JobRecord, NotingFilter
from fdaudit.recording import recorder
from fdaudit.recording.record import Checked, check_record
from fdaudit.recording.truth import joined_notes
from fdaudit.storage.files import decode
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.docs_pages import blocks
from ..helpers.recordings import closed_part, state
from .flares import DATA, RESULT, Server

W = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((), np.float32)}
SITES = ("north", "south", "east")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def server(record: Path) -> Server:
    return Server(JobRecord(str(record)))


def task(t: int = 0, data: Any = W, kind: str = DataKind.WEIGHTS, **meta: Any) -> Shareable:
    """The data of a task as a workflow makes it."""
    made: Shareable = DXO(kind, data=data, meta=meta).to_shareable()
    made.set_header("current_round", t)
    made.add_cookie("contribution_round", t)
    return made


def result(data: Any = W, kind: str = DataKind.WEIGHTS, **meta: Any) -> Shareable:
    made: Shareable = DXO(kind, data=data, meta=meta).to_shareable()
    return made


def kinds(record: Path) -> list[tuple[str, str, str]]:
    return [(m.sender, m.receivers[0], m.kind) for m in read_messages(record / "transcript")]


def tensors(record: Path, seq: int) -> dict[str, torch.Tensor]:
    message = list(read_messages(record / "transcript"))[seq]
    return decode(read_payload(record / "transcript", message))


def bits(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return bytes(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return np.ascontiguousarray(value).tobytes()


def rounds(server: Server, count: int = 2, sites: tuple[str, ...] = SITES) -> None:
    for t in range(count):
        for i, site in enumerate(sites):
            server.task(site, f"{t}-{site}", task(t))
            trained = {k: v + np.float32(i + 1) for k, v in W.items()}
            server.result(site, f"{t}-{site}", result(trained, NUM_STEPS_CURRENT_ROUND=4))


def test_tasks_and_results_are_recorded_message_by_message(record: Path, server: Server) -> None:
    with server:
        rounds(server)
    assert check_record(record) == Checked((), ())
    one = [
        (one, other, kind)
        for c in ("client/0", "client/1", "client/2")
        for one, other, kind in (
            ("server", c, "model_parameters"),
            (c, "server", "model_parameters"),
            (c, "server", "nvflare/meta"),
        )
    ]
    assert kinds(record) == one + one
    assert state(record)["rounds"] == 2
    for i in range(3):
        for name, value in W.items():
            assert bits(tensors(record, 3 * i + 1)[name]) == bits(value + np.float32(i + 1))
    assert tensors(record, 2)["NUM_STEPS_CURRENT_ROUND"].item() == 4
    assert server.panics == []


def test_clients_keep_their_numbers_and_the_truth_names_them(record: Path, tmp_path: Path) -> None:
    server = Server(JobRecord(str(record), truth=str(tmp_path / "truth")))
    with server:
        rounds(server, 1, ("south", "east"))
        rounds(server, 1, ("east", "north", "south"))
    sites = json.loads((tmp_path / "truth" / "nodes.json").read_bytes())
    assert sites == {"client/0": "south", "client/1": "east", "client/2": "north"}
    assert [c for c, _, kind in kinds(record) if c != "server" and kind == "model_parameters"] == [
        *("client/0", "client/1"),
        *("client/1", "client/2", "client/0"),
    ]


def test_named_clients_have_the_numbers_of_their_names(record: Path, tmp_path: Path) -> None:
    truth = str(tmp_path / "truth")
    server = Server(JobRecord(str(record), truth=truth, clients=["north", "south"]))
    with server:
        server.task("south", "1", task())
        server.task("north", "2", task())
        server.task("east", "3", task())
    assert server.panics == []
    receivers = [m.receivers[0] for m in read_messages(record / "transcript") if m.sender == "server"]
    assert receivers == ["client/1", "client/0", "client/2"]
    assert state(record)["parties"] == ["server", "client/0", "client/1", "client/2"]
    assert json.loads((tmp_path / "truth" / "nodes.json").read_bytes())["client/1"] == "south"


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.5, np.nan, -0.0, np.inf], dtype=np.float32),
        np.array(2.5),
        np.arange(4, dtype=">f8").reshape(2, 2),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True, False]),
        np.array([2**63 + 1], dtype=np.uint64),
        np.zeros((0, 3), dtype=np.float16),
        np.float32(0.1),
        torch.tensor([1.5, float("nan")]),
        torch.tensor([0x7FC1, -63, 0x3F80], dtype=torch.int16).view(torch.bfloat16),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(3, dtype=torch.uint8),
    ],
)
def test_the_recorded_values_go_on(record: Path, server: Server, value: Any) -> None:
    with server:
        server.task("north", "1", task())
        sent = result({"w": value, "more": {"w": value}})
        got = from_shareable(server.result("north", "1", sent)).data
    assert server.panics == []
    on_record = tensors(record, 1)
    for passed, held in ((got["w"], on_record["w"]), (got["more"]["w"], on_record["more.w"])):
        assert type(passed) is type(value)
        assert tuple(passed.shape) == tuple(held.shape) == tuple(value.shape)
        little = value.astype(value.dtype.newbyteorder("<")) if isinstance(value, np.ndarray) else value
        assert bits(passed) == bits(held) == bits(little)
        assert passed.dtype == little.dtype


def test_a_receiver_can_change_its_arrays_and_the_record_stays(record: Path, server: Server) -> None:
    shared = task()
    with server:
        first = from_shareable(server.passed(DATA, "north", "1", shared)).data
        first["w"] += 1
        second = from_shareable(server.task("south", "2", shared)).data
    np.testing.assert_array_equal(second["w"], W["w"])
    np.testing.assert_array_equal(tensors(record, 0)["w"].numpy(), W["w"])
    assert check_record(record).findings == ()


def test_kinds_follow_the_kind_of_data(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task())
        server.result("north", "1", result(kind=DataKind.WEIGHT_DIFF))
        server.task("north", "2", task())
        server.result("north", "2", result({"accuracy": 0.5, "rank": [1, 2]}, DataKind.METRICS))
        server.task("north", "3", task())
        server.result("north", "3", result(b"psi", DataKind.APP_DEFINED))
    assert [kind for sender, _, kind in kinds(record) if sender != "server"] == [
        *("model_update", "nvflare/metrics", "nvflare/app-defined")
    ]
    assert tensors(record, 3)["accuracy"].item() == 0.5
    assert tensors(record, 3)["rank"].tolist() == [1, 2]
    assert bytes(tensors(record, 5)[":name:bytes"].numpy()) == b"psi"


def test_kinds_and_inputs_follow_the_users_declaration(record: Path) -> None:
    job = JobRecord(
        str(record),
        kinds={"reply": {"train": "gradient", MetaKey.NUM_STEPS_CURRENT_ROUND: "sample_count"}},
        inputs={"reply": {"train": ["data", "instruction"]}, "instruction": {"train": []}},
    )
    with Server(job) as server:
        server.task("north", "1", task())
        server.result("north", "1", result(NUM_STEPS_CURRENT_ROUND=7, loss=0.25))
    assert [(m.kind, m.inputs) for m in read_messages(record / "transcript")] == [
        ("model_parameters", ()),
        ("gradient", ("data", 0)),
        ("sample_count", ("data", 0)),
        ("nvflare/meta", ("data", 0)),
    ]
    assert tensors(record, 2)["n"].item() == 7
    assert tensors(record, 3)["loss"].item() == 0.25


def test_encrypted_layers_are_recorded_apart_from_plain_ones(record: Path, server: Server) -> None:
    cipher = bytes(range(200))
    mixed = {"w": cipher, "b": W["b"]}
    marks = {MetaKey.PROCESSED_ALGORITHM: "CKKS", MetaKey.PROCESSED_KEYS: {"w": True, "b": False}}
    with server:
        server.task("north", "1", task())
        got = from_shareable(server.result("north", "1", result(mixed, **marks)))
    assert kinds(record)[1:3] == [
        ("client/0", "server", "nvflare/processed-ckks"),
        ("client/0", "server", "model_parameters"),
    ]
    assert bytes(tensors(record, 1)["w:bytes"].numpy()) == cipher
    assert tensors(record, 1).keys() == {"w:bytes"}
    assert tensors(record, 2).keys() == {"b"}
    assert list(got.data) == ["w", "b"]
    assert got.data["w"] == cipher
    assert got.meta == marks


def test_layers_that_nvflares_encryptor_encrypts_are_on_record_as_ciphertexts(record: Path) -> None:
    tenseal = pytest.importorskip("tenseal", reason="needs the extra `he` of NVIDIA FLARE")
    from nvflare.app_opt.he.model_encryptor import HEModelEncryptor

    secret = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 40, 60]
    )
    secret.global_scale = 2**40
    encryptor = HEModelEncryptor(encrypt_layers=["w"], weigh_by_local_iter=False)
    encryptor.tenseal_context = secret
    server = Server(JobRecord(str(record)))
    with server:
        server.task("north", "1", task())
        sent = encryptor.process(result({"w": W["w"] + 1, "b": W["b"]}), server.context("north"))
        vector = from_shareable(sent).data["w"]
        from_shareable(sent).data["w"] = fobs.loads(fobs.dumps(vector))  # as the server gets it
        got = from_shareable(server.passed(RESULT, "north", "1", sent)).data
    assert server.panics == []
    assert [kind for _, _, kind in kinds(record)] == [
        *("model_parameters", "nvflare/processed-ckks", "model_parameters", "nvflare/meta")
    ]
    on_record = fobs.loads(tensors(record, 1)["w:bytes"].numpy().tobytes())
    assert not on_record.context().has_secret_key()
    for one in (on_record, got["w"]):
        np.testing.assert_allclose(one.decrypt(secret.secret_key()), W["w"].ravel() + 1, atol=1e-4)
    clear = (W["w"] + 1).tobytes()
    assert all(p.is_dir() or clear not in p.read_bytes() for p in record.rglob("*"))


def test_compressed_layers_are_no_model_parameters(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task())
        half = {"w": W["w"].astype(np.float16)}
        server.result("north", "1", result(half, **{MetaKey.PROCESSED_ALGORITHM: "float16"}))
    assert kinds(record)[1] == ("client/0", "server", "nvflare/processed-float16")


def test_the_leaves_of_a_collection_are_messages(record: Path, server: Server) -> None:
    leaves = {
        "net": DXO(DataKind.WEIGHTS, data=W),
        "control": DXO(DataKind.WEIGHT_DIFF, data={"w": W["w"] + 1}, meta={"scale": 2}),
    }
    with server:
        server.task("north", "1", task())
        got = from_shareable(server.result("north", "1", result(leaves, DataKind.COLLECTION)))
    assert [kind for _, _, kind in kinds(record)][1:] == ["model_parameters", "model_update", "nvflare/meta"]
    assert got.data.keys() == leaves.keys()
    np.testing.assert_array_equal(got.data["control"].data["w"], W["w"] + 1)
    assert got.data["control"].data_kind == DataKind.WEIGHT_DIFF


def test_an_error_and_an_empty_message_are_on_record(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", Shareable())
        server.result("north", "1", make_reply(ReturnCode.EXECUTION_EXCEPTION))
    assert [kind for _, _, kind in kinds(record)] == ["nvflare/empty", "nvflare/error"]
    assert bytes(tensors(record, 1)["code"].numpy()) == ReturnCode.EXECUTION_EXCEPTION.encode()


def test_content_and_headers_of_the_app_are_recorded_and_tokens_are_not(record: Path, server: Server) -> None:
    message = Shareable({"logits": np.ones((2, 3)), "note": "é"})
    message.set_header("fl_client", Client("north", "secret-token"))
    message.set_header("auth_token", "secret-token")
    message.set_header("temperature", 2.0)
    with server:
        server.task("north", "1", task())
        got = server.result("north", "1", message)
    assert [kind for _, _, kind in kinds(record)][1:] == ["nvflare/content", "nvflare/headers"]
    assert tensors(record, 2).keys() == {"temperature"}
    assert got.get_header("fl_client") is not None
    for path in record.rglob("*"):
        assert path.is_dir() or b"secret-token" not in path.read_bytes()


def test_what_is_no_array_is_recorded_in_the_form_in_which_it_travels(record: Path, server: Server) -> None:
    odd = {
        "none": None,
        "mixed": [1, "two", None],
        "big": [-1, 2**63 + 1],
        "complex": np.array([1 + 2j]),
    }
    with server:
        server.task("north", "1", task())
        got = server.result("north", "1", result(odd))
    assert server.panics == []
    found = tensors(record, 1)
    assert {"none:bytes", "mixed.0", "mixed.1", "mixed.2:bytes", "complex:bytes"} <= found.keys()
    assert from_shareable(got).data["mixed"] == [1, "two", None]


def test_names_that_clash_or_are_reserved_stay_apart(record: Path, server: Server) -> None:
    data = {
        "a.b": np.ones(1),
        "a": {"b": np.zeros(1), 3: np.full(1, 3.0)},
        "w:codes": np.full(1, 4.0),
        "": np.full(1, 5.0),
        "x": b"1",
        "x:bytes": b"2",
    }
    with server:
        server.task("north", "1", task())
        got = from_shareable(server.result("north", "1", result(data))).data
    assert server.panics == []
    assert len(tensors(record, 1)) == 7
    assert {k: v for k, v in got.items() if k != "a"} == {k: v for k, v in data.items() if k != "a"}
    assert got["a"] == data["a"]


def test_a_round_opens_with_each_new_round_of_a_workflow(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task(5))
        server.task("south", "2", task(5))
        server.task("north", "3", task(6))
        server.task("south", "2", task(5))  # sent again, late
        server.task("south", "4", task(6))
        server.task("south", "5", Shareable())  # without a round
    sent = [(m.round, m.receivers[0]) for m in read_messages(record / "transcript") if m.kind != "silence"]
    assert sent == [
        (0, "client/0"),
        (0, "client/1"),
        (1, "client/0"),
        (1, "client/1"),
        (1, "client/1"),
        (1, "client/1"),
    ]


def test_a_missing_result_is_silence_and_a_late_one_is_recorded(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task(0))
        server.task("south", "2", task(0))
        server.result("north", "1", result())
        server.task("north", "3", task(1))
        server.result("south", "2", result())
        server.result("north", "3", result())
        server.task("south", "4", task(1))
    found = [
        (m.round, m.sender, m.kind) for m in read_messages(record / "transcript") if m.sender != "server"
    ]
    assert found == [
        (0, "client/0", "model_parameters"),
        (0, "client/1", "silence"),
        (1, "client/1", "model_parameters"),
        (1, "client/0", "model_parameters"),
        (1, "client/1", "silence"),
    ]


def test_many_clients_at_once(record: Path) -> None:
    clients, count = 8, 30
    server = Server(JobRecord(str(record)))
    barrier = threading.Barrier(clients)

    def work(client: int) -> list[Any]:
        barrier.wait()
        got = []
        for i in range(count):
            server.task(f"site-{client}", f"{client}-{i}", task())
            sent = {"w": np.full(3, 1000 * client + i, dtype=np.float32)}
            passed = server.result(f"site-{client}", f"{client}-{i}", result(sent))
            got.append(from_shareable(passed).data["w"].tolist())
        return got

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with server, ThreadPoolExecutor(clients) as pool:
            results = list(pool.map(work, range(clients)))
    finally:
        sys.setswitchinterval(before)
    assert server.panics == []
    assert check_record(record) == Checked((), ())
    assert results == [[[1000.0 * c + i] * 3 for i in range(count)] for c in range(clients)]
    uploads: dict[str, list[float]] = {}
    for m in read_messages(record / "transcript"):
        if m.sender != "server":
            value = decode(read_payload(record / "transcript", m))["w"][0].item()
            uploads.setdefault(m.sender, []).append(value)
    assert sorted(uploads.values()) == [[1000.0 * c + i for i in range(count)] for c in range(clients)]


# -- which records a client used ----------------------------------------------------------------------------------


def at_the_site(truth: Path, task_id: str, sent: Shareable) -> Shareable:
    """What leaves a site that notes its records."""
    context = FLContext()
    context.set_prop(FLContextKey.TASK_ID, task_id)
    context.set_prop(ReservedKey.IDENTITY_NAME, truth.name)
    passed: Shareable = NotingFilter(str(truth)).process(sent, context)
    return passed


def test_sites_notes_join_with_the_record(record: Path, tmp_path: Path) -> None:
    server = Server(JobRecord(str(record), truth=str(tmp_path / "truth")))
    places = {site: tmp_path / site for site in ("north", "south")}
    with server:
        for t in range(2):
            for i, site in enumerate(places):
                server.task(site, f"{t}-{site}", task(t))
                sent = result(**{"fdaudit.records": [10 * i + t, 7], "loss": 0.5})
                server.result(site, f"{t}-{site}", at_the_site(places[site], f"{t}-{site}", sent))
    assert server.panics == []
    assert check_record(record) == Checked((), ())
    notes = [place / "notes.jsonl" for place in places.values()]
    truth = tmp_path / "truth"
    used, named = joined_notes(truth / "replies.jsonl", notes, truth / "nodes.json")
    assert named == {"client/0": "north", "client/1": "south"}
    uploads = [m for m in read_messages(record / "transcript") if m.sender != "server"]
    assert {m.seq: used[m.seq] for m in uploads if m.kind == "model_parameters"} == {
        m.seq: (10 * int(m.sender[-1]) + m.round, 7) for m in uploads if m.kind == "model_parameters"
    }
    for path in record.rglob("*"):
        assert path.is_dir() or b"fdaudit.records" not in path.read_bytes()


def test_numbers_of_records_that_reach_the_server_end_the_job(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task())
        server.result("north", "1", result(**{"fdaudit.records": [7]}))
    assert len(server.panics) == 1
    assert "NotingFilter" in server.panics[0]
    assert b"fdaudit.records" not in (record / "transcript" / "messages.jsonl").read_bytes()


@pytest.mark.parametrize("ids", [7, [-1], [1.5], [True], "7"])
def test_what_is_no_list_of_records_fails_the_result(tmp_path: Path, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"fdaudit\.records: "):
        at_the_site(tmp_path / "site", "1", result(**{"fdaudit.records": ids}))
    assert not (tmp_path / "site").exists()


def test_a_result_without_numbers_passes_as_it_is(tmp_path: Path) -> None:
    for sent in (result(loss=1.0), make_reply(ReturnCode.EXECUTION_EXCEPTION), Shareable({"DXO": 3})):
        assert at_the_site(tmp_path / "site", "1", sent) is sent
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("blocks", [False, True])
def test_an_error_of_a_filter_is_on_record_once(record: Path, server: Server, blocks: bool) -> None:
    server.blocks = blocks
    with server:
        server.task("north", "1", task())
        server.result("north", "1", make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR))
    assert [kind for _, _, kind in kinds(record)] == ["model_parameters", "nvflare/error"]
    assert server.panics == []


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_write_ends_the_job_and_changes_no_message(
    record: Path, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with server:
        rounds(server, 2)
        server.task("north", "x", task(2))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(recorder, "_append", full)
        sent = result({"w": W["w"] + 9})
        assert bits(from_shareable(server.result("north", "x", sent)).data["w"]) == bits(W["w"] + 9)
        assert len(server.panics) == 1
        assert "No space left" in server.panics[0]
        monkeypatch.undo()
        got = server.task("south", "y", task(2))
        assert bits(from_shareable(got).data["w"]) == bits(W["w"])
    assert len(server.panics) == 1
    assert state(record)["status"] == "open"
    assert state(record)["rounds"] == 2
    assert closed_part(record, tmp_path / "copy") == []


@pytest.mark.parametrize("release", [True, False])
def test_the_last_global_model_is_a_message_to_the_world(record: Path, release: bool) -> None:
    server = Server(JobRecord(str(record), release=release))
    with server:
        rounds(server, 1)
        server.model = {"weights": {"w": W["w"] + 5}}
    assert check_record(record) == Checked((), ())
    last = kinds(record)[-1]
    assert (last == ("server", "world", "model_parameters")) is release
    if release:
        assert bits(tensors(record, 9)["w"]) == bits(W["w"] + 5)


def test_a_task_that_no_filter_records_ends_the_job(record: Path, server: Server) -> None:
    with server:
        server.task("north", "1", task())
        server.task("north", "2", task(), name="validate")
    (panic,) = server.panics
    assert "tasks: 'validate' " in panic
    assert state(record)["status"] == "open"


def test_a_directory_that_holds_a_record_ends_the_job(record: Path, server: Server) -> None:
    with server:
        rounds(server, 1)
    again = Server(JobRecord(str(record)))
    with again:
        rounds(again, 1)
    assert len(again.panics) == 1
    assert "directory: " in again.panics[0]
    assert check_record(record) == Checked((), ())


def test_an_aborted_job_leaves_the_record_open(record: Path, server: Server, tmp_path: Path) -> None:
    with server:
        rounds(server, 2)
        server.record.system_panic("another component failed", server.context("north"))
    assert state(record)["status"] == "open"
    assert state(record)["rounds"] == 1
    assert closed_part(record, tmp_path / "copy") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "train"}, "tasks: 'train' names no tasks"),
        ({"clients": "north"}, "clients: 'north' is no list"),
        ({"clients": ["north", "north"]}, "clients: .* no list of different names"),
        ({"tasks": []}, r"tasks: \[\] names no tasks"),
        ({"kinds": {"up": {"train": "gradient"}}}, "kinds: .* is not a pair"),
        ({"inputs": {"reply": {"train": ["secrets"]}}}, "inputs: .*secrets"),
        ({"inputs": {"instruction": {"train": ["data"]}}}, "inputs: .*data"),
    ],
)
def test_bad_arguments_get_one_clear_error(record: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobRecord(str(record), **options)
    assert not record.exists()


# -- jobs --------------------------------------------------------------------------------------------------------


def exported(job: FedJob, folder: Path) -> dict[str, Any]:
    job.export_job(str(folder))
    [path] = folder.rglob("config_fed_server.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_job_gets_the_record_and_its_filters(tmp_path: Path) -> None:
    job = FedJob("job", min_clients=1)
    kinds = {"reply": {"train": "a/b"}}
    job.to_server(JobRecord(str(tmp_path / "record"), tasks=["train", "validate"], kinds=kinds))
    config = exported(job, tmp_path)
    [component] = config["components"]
    assert component["args"] == {
        "directory": str(tmp_path / "record"),
        "tasks": ["train", "validate"],
        "kinds": kinds,
    }
    for chain in ("task_data_filters", "task_result_filters"):
        assert [c["tasks"] for c in config[chain]] == [["train"], ["validate"]]
        assert {f["args"]["record_id"] for c in config[chain] for f in c["filters"]} == {component["id"]}
    assert not (tmp_path / "record").exists()


def test_the_pages_job_is_recorded(tmp_path: Path) -> None:
    example, *more = blocks("docs/nvflare.md", "python")
    scope: dict[str, Any] = {}
    exec(compile(example, "docs/nvflare.md", "exec"), scope)
    config = exported(scope["job"], tmp_path)
    [component] = config["components"]
    assert component["path"] == "fdaudit.integrations.nvflare.JobRecord"
    assert len(config["task_data_filters"]) == len(config["task_result_filters"]) == 1
    assert len(more) == 4
    for block in more[:3]:  # every argument on the page is accepted
        exec(compile(block, "docs/nvflare.md", "exec"), scope)


def test_lists_within_lists_are_one_tensor(record: Path, server: Server) -> None:
    with server:
        got = from_shareable(
            server.task("north", "1", task(0, {"w": [[1.0, 2.0], [3.0, 4.0]], "odd": [[1], [2, 3]]}))
        )
    assert got.data == {"w": [[1.0, 2.0], [3.0, 4.0]], "odd": [[1], [2, 3]]}
    found = tensors(record, 0)
    assert found["w"].tolist() == [[1, 2], [3, 4]]
    assert found["odd.1"].tolist() == [2, 3]
