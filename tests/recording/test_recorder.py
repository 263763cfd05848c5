"""The recorder writes what fdaudit reads, returns what it wrote, and refuses what could not be read."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from fdaudit import limits
from fdaudit.kinds import KINDS as VOCABULARY
from fdaudit.recording import recorder
from fdaudit.recording.recorder import KINDS, RecordedMessage, Recorder, RecordError
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import decode, encode
from fdaudit.transcript.messages import GENESIS, Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Transcript, read_messages, verify_transcript

from ..helpers.refusals import refused
from ..helpers.transcript_cases import SECRET, named, same
from ..helpers.transcript_cases import message as drafted

PARTIES = ["server", "client/0", "client/1", "world"]
LARGE = 1 << 20


def state(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record / "record.json").read_bytes())
    return found


def findings(record: Path) -> list[str]:
    """What the existing check says about the part of a record that `record.json` names."""
    said = state(record)
    return verify_transcript(record / "transcript", head=said["head"], count=said["messages"])


def recorded(record: Path) -> list[tuple[Message, dict[str, Tensor]]]:
    folder = record / "transcript"
    return [(m, decode(read_payload(folder, m))) for m in read_messages(folder)]


def as_torch(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """A delivered array as a tensor; bfloat16 comes as float32."""
    return torch.from_numpy(array).to(like.dtype)


# -- what is written -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(named)
def test_bytes_of_any_tensors_are_those_of_a_transcript(values: dict[str, Tensor]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(Path(folder) / "r", PARTIES) as record:
            record.round(0)
            got = record.send("client/0", "server", "gradient", values)
        assert findings(Path(folder) / "r") == []
        ((message, read),) = recorded(Path(folder) / "r")
        assert read_payload(Path(folder) / "r/transcript", message) == encode(values)
        assert same(read, values)
        assert list(got) == sorted(values)
        narrow = {n: as_torch(a, values[n]) for n, a in got.items()}
        assert same(without_nan(narrow), without_nan(values))


def without_nan(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """A conversion between types may change which NaN it is, and nothing else."""
    return {n: torch.where(t.isnan(), 0, t) if t.is_floating_point() else t for n, t in values.items()}


def test_lines_and_files_are_those_of_a_transcript(tmp_path: Path) -> None:
    """Same messages, same bytes, but for salts and what follows from them."""
    sizes = [
        3,
        LARGE // 4 - 20,
        LARGE // 4,
        1,
        LARGE // 2,
    ]  # around the size above which a payload has its own file
    with (
        Recorder(tmp_path / "r", PARTIES) as record,
        Transcript(tmp_path / "t", secret=SECRET) as transcript,
    ):
        for round in range(2):
            record.round(round)
            for step, size in enumerate(sizes):
                values = {"w": torch.arange(float(size)), "b": torch.tensor([round, step])}
                inputs = ["data", *range(step)]
                record.send("client/1", ["world", "server"], "model_update", values, inputs)
                to = ("server", "world")
                draft = drafted("model_update", "client/1", to, round=round, step=step, inputs=tuple(inputs))
                transcript.append(draft, values)
    assert findings(tmp_path / "r") == []
    mine, theirs = tmp_path / "r" / "transcript", tmp_path / "t"
    assert [plain(line) for line in lines(mine)] == [plain(line) for line in lines(theirs)]
    files = sorted(p.name for p in (theirs / "payloads").iterdir())
    assert sorted(p.name for p in (mine / "payloads").iterdir()) == files
    assert {name.partition("-")[0] for name in files} > {"round"}, "some payloads have files of their own"
    for name in files:
        assert (mine / "payloads" / name).read_bytes() == (theirs / "payloads" / name).read_bytes()


def lines(folder: Path) -> list[bytes]:
    return (folder / LOG).read_bytes().split(b"\n")[:-1]


def plain(line: bytes) -> dict[str, Any]:
    found = json.loads(line)
    assert canonical(found) == line
    return {k: v for k, v in found.items() if k not in ("salt", "sha256", "previous")}


def test_record_json_counts_the_closed_rounds(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "r", PARTIES)
    empty = {
        "head": GENESIS,
        "messages": 0,
        "parties": PARTIES,
        "recorder": "1",
        "rounds": 0,
        "schema": "fdaudit-record/1",
        "status": "open",
    }
    assert state(tmp_path / "r") == empty
    assert findings(tmp_path / "r") == []
    record.round(0)
    record.send("server", "client/0", "model_parameters", {"w": np.zeros(2)})
    assert state(tmp_path / "r") == empty, "the round is open"
    record.round(4)
    one = state(tmp_path / "r")
    assert (one["messages"], one["rounds"], one["status"]) == (1, 1, "open")
    assert findings(tmp_path / "r") == []
    record.send("server", "client/0", "model_parameters", {"w": np.zeros(2)})
    record.close()
    record.close()
    two = state(tmp_path / "r")
    assert (two["messages"], two["rounds"], two["status"]) == (2, 2, "closed")
    assert findings(tmp_path / "r") == []
    assert (tmp_path / "r" / "record.json").read_bytes() == canonical(two) + b"\n"
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["record.json", "transcript"]


def test_step_counts_the_messages_of_a_round(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        for t in (0, 0, 2):
            record.round(t)
            record.send("client/0", "server", "silence", {})
    assert [(m.round, m.step) for m in read_messages(tmp_path / "r/transcript")] == [(0, 0), (0, 1), (2, 0)]


def test_receivers_are_sorted_and_named_once(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        record.send("server", ["client/1", "client/0", "client/1"], "logits", {})
        record.send("server", (), "release", {})
    found = [m.receivers for m in read_messages(tmp_path / "r/transcript")]
    assert found == [("client/0", "client/1"), ()]


def test_salts_are_fresh(tmp_path: Path) -> None:
    for name in "ab":
        with Recorder(tmp_path / name, PARTIES) as record:
            record.round(0)
            for _ in range(8):
                record.send("client/0", "server", "gradient", {"w": np.zeros(2)})
    found = [m for name in "ab" for m in read_messages(tmp_path / name / "transcript")]
    assert len({m.salt for m in found}) == len({m.sha256 for m in found}) == 16
    assert all(re.fullmatch("[0-9a-f]{32}", m.salt) for m in found)


def test_a_kind_of_ones_own_is_recorded(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        record.send("client/0", "server", "my-lab2/head-bias", {"w": np.zeros(2)})
    ((message, _),) = recorded(tmp_path / "r")
    assert message.kind == "my-lab2/head-bias"


def test_directories_are_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir(mode=0o755)
    with Recorder(tmp_path / "r", PARTIES, truth=tmp_path / "t"):
        pass
    assert [(tmp_path / n).stat().st_mode & 0o777 for n in "rt"] == [0o700, 0o700]


# -- tensors ---------------------------------------------------------------------------------------------------


def sent(tmp_path: Path, value: Any) -> tuple[np.ndarray[Any, Any], Tensor]:
    """A tensor as delivered and as read from the record."""
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        got = record.send("client/0", "server", "gradient", {"x": value})
    ((_, read),) = recorded(tmp_path / "r")
    return got["x"], read["x"]


NUMBERS = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", NUMBERS)
def test_arrays_of_either_byte_order_are_recorded(dtype: str, order: str, tmp_path: Path) -> None:
    value = np.array([[0, 1, 2], [3, 4, 5]]).astype(np.dtype(dtype).newbyteorder(order))
    got, read = sent(tmp_path, value)
    assert got.dtype == np.dtype(dtype)
    assert got.dtype.isnative
    assert got.tolist() == read.tolist() == value.tolist()
    assert str(read.dtype) == f"torch.{dtype}"


AWKWARD: dict[str, Callable[[], Any]] = {
    "every second column": lambda: np.arange(12.0).reshape(3, 4)[:, ::2],
    "a transposed array": lambda: np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "from the back": lambda: np.arange(5.0)[::-1],
    "one value shown often": lambda: np.broadcast_to(np.float32(3), (2, 4)),
    "a number of NumPy": lambda: np.float32(1.5),
    "no dimension": lambda: np.array(7, dtype=np.int32),
    "no element": lambda: np.zeros((3, 0, 2)),
    "a number": lambda: 5,
    "a fraction": lambda: 0.25,
    "a truth value": lambda: True,
    "a transposed tensor": lambda: torch.arange(6.0).reshape(2, 3).T,
    "a parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "a result with a gradient": lambda: torch.ones(2, requires_grad=True) * 2,
    "a tensor without dimension": lambda: torch.tensor(3),
    "a tensor without element": lambda: torch.zeros(0, 3),
    "a conjugated view": lambda: torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
    "not to be written": lambda: np.frombuffer(b"\0\1\2\3", dtype=np.uint8),
    "DLPack alone": lambda: OnlyDLPack(np.arange(3.0)),
    "a subclass": lambda: np.arange(3.0).view(np.recarray),
}


class OnlyDLPack:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("what", AWKWARD)
def test_awkward_values_are_recorded_as_they_are(what: str, tmp_path: Path) -> None:
    value = AWKWARD[what]()
    expected = value._array if isinstance(value, OnlyDLPack) else value
    expected = expected.detach().resolve_neg().numpy() if isinstance(value, Tensor) else np.asarray(expected)
    got, read = sent(tmp_path, value)
    assert got.shape == tuple(read.shape) == expected.shape
    assert got.dtype == expected.dtype
    assert got.tolist() == read.tolist() == expected.tolist()


BFLOATS = [0.0, -0.0, 1.0, -2.5, 3.140625, float("inf"), float("-inf"), 1e-40, 3e38]


@pytest.mark.parametrize("shape", [(9,), (3, 3), (), (0, 2)])
def test_bfloat16_of_pytorch_is_recorded_bit_by_bit(shape: tuple[int, ...], tmp_path: Path) -> None:
    size = int(np.prod(shape))
    value = torch.tensor(BFLOATS[-size:] if size else [], dtype=torch.bfloat16).reshape(shape)
    got, read = sent(tmp_path, value.T if value.ndim == 2 else value)
    value = value.T if value.ndim == 2 else value
    assert same({"x": read}, {"x": value})
    assert got.dtype == np.float32
    assert same({"x": torch.from_numpy(got)}, {"x": value.float()})


@pytest.mark.parametrize("shape", [(9,), (3, 3), ()])
def test_bfloat16_of_ml_dtypes_keeps_its_type(shape: tuple[int, ...], tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    value = np.array(BFLOATS[: int(np.prod(shape))]).astype(bfloat16).reshape(shape).T
    got, read = sent(tmp_path, value)
    assert got.dtype == value.dtype
    assert got.tobytes() == value.tobytes()
    assert read.dtype == torch.bfloat16
    assert read.float().tolist() == value.astype(np.float32).tolist()


def test_what_is_returned_is_new_and_may_be_changed(tmp_path: Path) -> None:
    value = np.ones(3, dtype=np.float32)
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        got = record.send("client/0", "server", "gradient", {"x": value})
        assert isinstance(got, RecordedMessage)
        value += 1
        torch.from_numpy(got["x"]).mul_(5)
        assert value.tolist() == [2, 2, 2]
        assert got["x"].tolist() == [5, 5, 5]
        assert record.send("client/0", "server", "gradient", got, inputs=[got.seq]).seq == 1
    assert findings(tmp_path / "r") == []
    assert [r["x"].tolist() for _, r in recorded(tmp_path / "r")] == [[1, 1, 1], [5, 5, 5]]


# -- truth and card --------------------------------------------------------------------------------------------


def test_the_truth_stays_outside_the_record(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES, truth=tmp_path / "t") as record:
        record.round(0)
        record.send("server", "client/0", "model_parameters", {"w": np.zeros(2)})
        record.send("client/0", "server", "gradient", {"w": np.zeros(2)}, records=[9171, 4])
        record.send("client/1", "server", "gradient", {"w": np.zeros(2)}, records=torch.tensor([9172]))
        record.send("client/1", "server", "gradient", {"w": np.zeros(2)}, records=range(0))
        record.sites({"client/0": "node-9173", "client/1": 12})
    uses = (tmp_path / "t" / "uses.jsonl").read_bytes()
    values = [
        {"seq": 1, "records": [9171, 4]},
        {"seq": 2, "records": [9172]},
        {"seq": 3, "records": []},
    ]
    assert uses == b"".join(canonical(v) + b"\n" for v in values)
    sites = (tmp_path / "t" / "sites.json").read_bytes()
    assert sites == canonical({"client/0": "node-9173", "client/1": 12}) + b"\n"
    with Recorder(tmp_path / "without", PARTIES) as record:
        record.round(0)
        for sender in ("client/0", "client/1", "client/1"):
            record.send(sender, "server", "gradient", {"w": np.zeros(2)})
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file():
            said = re.sub(rb'"(salt|sha256|previous|head)":"[0-9a-f]*"', b"", path.read_bytes())
            assert b"917" not in said, path


def test_a_card_is_copied(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("schema: a card\n")
    with Recorder(tmp_path / "r", PARTIES, card=tmp_path / "mine.yaml"):
        pass
    assert (tmp_path / "r" / "card.yaml").read_text() == "schema: a card\n"
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "card.yaml").write_text("schema: a card\n")
    with Recorder(tmp_path / "s", PARTIES, card=tmp_path / "s" / "card.yaml"):
        pass
    assert (tmp_path / "s" / "card.yaml").read_text() == "schema: a card\n"


# -- refused ---------------------------------------------------------------------------------------------------

W = {"w": np.zeros(2, dtype=np.float32)}


def args(**changed: Any) -> dict[str, Any]:
    return {"sender": "client/0", "receivers": ["server"], "kind": "gradient", "tensors": W} | changed


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown sender": (args(sender="client/2"), r"sender: 'client/2' .*`parties`"),
    "a sender that is no text": (args(sender=3), r"sender: 3 "),
    "an unknown receiver": (args(receivers=["server", "bank"]), r"receivers: 'bank' "),
    "receivers that are no list": (args(receivers=3), r"receivers: 'int' "),
    "an unknown kind": (args(kind="gradients"), r"kind: 'gradients' .*vendor/name.*gradient"),
    "a kind in capitals": (args(kind="Lab/x"), r"kind: 'Lab/x' "),
    "a kind with two slashes": (args(kind="a/b/c"), r"kind: 'a/b/c' "),
    "a kind with a newline": (args(kind="a/b\n"), r"kind: 'a/b\\n' "),
    "a kind that is no text": (args(kind=None), r"kind: None "),
    "a list of arrays": (args(tensors=[np.zeros(2)]), r"tensors: 'list' .*mapping"),
    "one array": (args(tensors=np.zeros(2)), r"tensors: 'ndarray' "),
    "a list as a tensor": (args(tensors={"x": [1.0]}), r"tensors: \"'x' of type list\" .*asarray"),
    "text as a tensor": (args(tensors={"x": "abc"}), r"tensors: .*type str.* no array"),
    "an array of text": (args(tensors={"x": np.array(["a"])}), r"holds str.*uint64"),
    "an array of objects": (args(tensors={"x": np.array([None])}), r"tensors: .*holds object"),
    "a complex array": (args(tensors={"x": np.zeros(2, dtype=complex)}), r"holds complex128"),
    "a complex tensor": (args(tensors={"x": torch.zeros(2, dtype=torch.cfloat)}), r"holds complex64"),
    "a number too large": (args(tensors={"x": 1 << 70}), r"tensors: .*int.* holds object"),
    "a sparse tensor": (args(tensors={"x": torch.eye(2).to_sparse()}), r"tensors: .*no array.*dense"),
    "a tensor without values": (args(tensors={"x": torch.zeros(2, device="meta")}), r"tensors: .*no array"),
    "a float of eight bits": (
        args(tensors={"x": torch.zeros(2, dtype=torch.float8_e5m2)}),
        r"tensors: .*no array",
    ),
    "a reserved name": (args(tensors={"x:codes": np.zeros(2)}), r"tensors: 'x:codes' .*reserves"),
    "another reserved name": (args(tensors={"a\n:grid": np.zeros(2)}), r"tensors: .* no name"),
    "a third reserved name": (args(tensors={":layout": np.zeros(2)}), r"tensors: ':layout' .*reserves"),
    "the name of the header": (args(tensors={"__metadata__": np.zeros(2)}), "'__metadata__' .*reserves"),
    "half a character": (args(tensors={"\ud83d": np.zeros(2)}), r"tensors: '\\ud83d' .*no name"),
    "a name that is no text": (args(tensors={0: np.zeros(2)}), r"tensors: 0 "),
    "no name": (args(tensors={"": np.zeros(2)}), r"tensors: '' "),
    "an input not yet sent": (args(inputs=["data", 1]), r"inputs: 1 .*seq"),
    "an input below zero": (args(inputs=[-1]), r"inputs: -1 "),
    "an input that is true": (args(inputs=[False]), r"inputs: False "),
    "an unknown input": (args(inputs=["datas"]), r"inputs: 'datas' "),
    "inputs as a word": (args(inputs="data"), r"inputs: 'data' .*\['data', 3\]"),
    "inputs as a number": (args(inputs=0), r"inputs: 'int' "),
    "records without numbers": (args(records=["a"]), r"records: 'a' "),
    "records below zero": (args(records=[3, -2]), r"records: -2 "),
    "records as fractions": (args(records=np.array([0.5])), r"records: 0.5 "),
    "records beyond 64 bits": (args(records=[1 << 63]), r"records: 9223372036854775808 "),
    "records as a number": (args(records=7), r"records: 'int' "),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_message_leaves_the_record_as_it_was(what: str, tmp_path: Path) -> None:
    arguments, said = REFUSED[what]
    with Recorder(tmp_path / "r", PARTIES, truth=tmp_path / "t") as record:
        record.round(0)
        record.send("client/0", "server", "gradient", W)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        with pytest.raises(RecordError, match=said):
            record.send(**arguments)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        assert record.send("client/0", "server", "gradient", W).seq == 1
    assert findings(tmp_path / "r") == []


def test_an_error_names_field_value_and_remedy() -> None:
    error = RecordError("kind", "x" * 300, "PROBLEM", "REMEDY")
    assert (error.field, error.problem, error.remedy) == ("kind", "PROBLEM", "REMEDY")
    assert str(error) == f"kind: '{'x' * 196}... PROBLEM. REMEDY"
    assert isinstance(error, ValueError)


def test_a_message_needs_an_open_round(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        refused(lambda: record.send(**args()), "round", said="None is open. Call round(0)", kind=RecordError)
        record.round(0)
        record.send(**args())


@pytest.mark.parametrize("t", [-1, 1.0, True, "1", None, 1_000_000])
def test_what_is_no_round_is_refused(t: Any, tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        refused(lambda: record.round(t), "t", t, kind=RecordError)


def test_rounds_never_go_back(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(3)
        refused(lambda: record.round(2), "t", said="2 lies before round 3", kind=RecordError)
        record.round(3)
        record.round(np.int64(999_999))
    assert state(tmp_path / "r")["rounds"] == 2


@pytest.mark.parametrize(
    ("parties", "said"),
    [
        ([], r"^parties: \[\] "),
        (["server", "server"], "twice"),
        (["Server"], "'Server' .*client/0"),
        (["client/01"], "'client/01' "),
        (["client/10000"], "'client/10000' "),
        (["server\n"], r"'server\\n' "),
        ([3], "^parties: 3 "),
        (7, "^parties: 'int' "),
    ],
)
def test_parties_need_names_that_fdaudit_knows(parties: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=said):
        Recorder(tmp_path / "r", parties)
    assert list(tmp_path.iterdir()) == []


def test_directories_in_use_are_refused(tmp_path: Path) -> None:
    record, truth, new = (tmp_path / name for name in ("r", "t", "new"))
    with Recorder(record, PARTIES, truth=truth):
        refused(lambda: Recorder(record, PARTIES), "directory", str(record), kind=RecordError)
        refused(lambda: Recorder(new, PARTIES, truth=truth), "truth", str(truth), kind=RecordError)
    assert not new.exists()


@pytest.mark.parametrize(("record", "truth"), [("r", "r"), ("r", "r/t"), ("t/r", "t"), ("r", "x/../r/t")])
def test_record_and_truth_lie_apart(record: str, truth: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"^truth: .* outside the record"):
        Recorder(tmp_path / record, PARTIES, truth=tmp_path / truth)
    assert list(tmp_path.iterdir()) == []


def test_truth_needs_its_directory(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        refused(lambda: record.send(**args(records=[1])), "truth", None, ["records"], kind=RecordError)
        refused(lambda: record.sites({}), "truth", None, ["sites"], kind=RecordError)


@pytest.mark.parametrize("sites", [{"client/7": "a"}, {"client/0": None}, {"client/0": ["a"]}, {0: "a"}])
def test_sites_stand_behind_parties(sites: Any, tmp_path: Path) -> None:
    with (
        Recorder(tmp_path / "r", PARTIES, truth=tmp_path / "t") as record,
        pytest.raises(RecordError, match=r"sites: "),
    ):
        record.sites(sites)
    assert not (tmp_path / "t" / "sites.json").exists()


def test_a_card_is_refused_that_cannot_be_read_or_kept(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "card.yaml").write_text("schema: one\n")
    (tmp_path / "other.yaml").write_text("schema: two\n")
    (tmp_path / "large.yaml").write_text("#" * ((1 << 20) + 1))
    for place, name, said in (
        ("r", "none.yaml", os.strerror(errno.ENOENT)),
        ("r", "large.yaml", "FDAUDIT_MOST_YAML_BYTES"),
        ("s", "other.yaml", str(tmp_path / "s" / "card.yaml")),
    ):
        with pytest.raises(RecordError, match=f"^card: '.*{name}' .*{said}"):
            Recorder(tmp_path / place, PARTIES, card=tmp_path / name)
    assert not (tmp_path / "r").exists()
    assert [p.name for p in (tmp_path / "s").iterdir()] == ["card.yaml"]


def test_what_readers_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"{'n' * 100}{k}": 0.0 for k in range(2000)}
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
        with pytest.raises(RecordError, match=r"^message: 'gradient' .*FDAUDIT_MOST_LINE_BYTES"):
            record.send(**args(tensors=many))
        monkeypatch.setenv("FDAUDIT_MOST_TENSOR_BYTES", "1000")
        with pytest.raises(RecordError, match=r"^tensors: \['x'\] .*FDAUDIT_MOST_TENSOR_BYTES"):
            record.send(**args(tensors={"x": np.zeros(1000, dtype=np.uint8)}))
        record.send(**args(tensors={"x": np.zeros(900, dtype=np.uint8)}))
        length = (tmp_path / "r/transcript" / LOG).stat().st_size
        monkeypatch.setenv("FDAUDIT_MOST_LOG_BYTES", str(length + 10))
        with pytest.raises(RecordError, match=r"^message: 'gradient' .*FDAUDIT_MOST_LOG_BYTES"):
            record.send(**args())
        monkeypatch.setenv("FDAUDIT_MOST_LOG_BYTES", "many")
        refused(lambda: record.send(**args()), "FDAUDIT_MOST_LOG_BYTES", "many", kind=RecordError)
        monkeypatch.undo()
        record.send(**args())
    assert findings(tmp_path / "r") == []
    assert len(recorded(tmp_path / "r")) == 2


def test_a_closed_recorder_records_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", PARTIES) as record:
        record.round(0)
    for act in (lambda: record.send(**args()), lambda: record.round(1), lambda: record.sites({})):
        refused(act, "recorder", said="is closed. Begin a record in a new directory", kind=RecordError)


# -- the file alone --------------------------------------------------------------------------------------------


def test_the_vocabulary_is_fdaudits() -> None:
    assert tuple(sorted(VOCABULARY)) == KINDS


def test_the_limits_are_those_of_the_readers() -> None:
    for name in ("LINE_BYTES", "LOG_BYTES", "TENSOR_BYTES", "YAML_BYTES"):
        limit = getattr(limits, name)
        assert getattr(recorder, f"_{name}") == (limit.variable, limit.default)
    assert recorder._MOST_ROUNDS == limits.MOST_ROUNDS
    assert recorder.PARTY.fullmatch(f"client/{limits.MOST_CLIENTS - 1}")
    assert not recorder.PARTY.fullmatch(f"client/{limits.MOST_CLIENTS}")


ALONE = """
import sys
sys.path.insert(0, {folder!r})
{load}
import numpy as np
with Recorder({record!r}, ["server", "client/0"]) as record:
    record.round(0)
    record.send("client/0", "server", "gradient", {{"w": np.ones(3)}}, inputs=["data"])
foreign = {{"torch", "safetensors", {foreign}}} & {{name.partition(".")[0] for name in sys.modules}}
sys.exit(f"imported: {{foreign}}" if foreign else 0)
"""


def _alone(code: str, *options: str) -> None:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recorder_loads_no_torch(tmp_path: Path) -> None:
    load = "from fdaudit.recording.recorder import Recorder"
    _alone(ALONE.format(folder=str(tmp_path), load=load, record=str(tmp_path / "r"), foreign=""))
    assert findings(tmp_path / "r") == []


def test_a_copy_of_the_file_runs_alone(tmp_path: Path) -> None:
    assert recorder.__file__ is not None
    (tmp_path / "site_recorder.py").write_bytes(Path(recorder.__file__).read_bytes())
    load = "from site_recorder import Recorder"
    code = ALONE.format(folder=str(tmp_path), load=load, record=str(tmp_path / "r"), foreign="'fdaudit'")
    _alone(code, "-I")
    assert findings(tmp_path / "r") == []


def test_the_file_names_no_module_but_numpy_and_pythons_own() -> None:
    tree = ast.parse(Path(recorder.__file__ or os.devnull).read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {f"{'.' * n.level}{n.module}" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} - sys.stdlib_module_names == {"numpy"}
