"""A recording grid: what it records of a Flower app, and what reaches the app."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fdaudit.integrations.flower import RecordingGrid, note_records, noting
from fdaudit.recording.record import Checked, check_record
from fdaudit.recording.truth import joined_notes

from ..helpers.recordings import state
from .grids import LocalGrid

NODES = (14702929095299217601, 1058896408227576789, 77)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def lines(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / "transcript" / "messages.jsonl").read_bytes().splitlines()]


def tensors(record: Path, line: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The recorded tensors of a message, by the format's own reader."""
    folder = record / "transcript"
    begin = sum(
        m["payload"]["length"]
        for m in lines(record)[: line["seq"]]
        if m["payload"]["file"] == line["payload"]["file"]
    )
    data = (folder / line["payload"]["file"]).read_bytes()[begin : begin + line["payload"]["length"]]
    types = {
        "F32": "<f4",
        "F64": "<f8",
        "I64": "<i8",
        "U64": "<u8",
        "U8": "u1",
        "BOOL": "?",
        "U32": "<u4",
        "F16": "<f2",
    }
    return {
        name: np.frombuffer(bytes(t["data"]), types[t["dtype"]]).reshape(t["shape"])
        for name, t in deserialize(data)
    }


def assert_intact(record: Path) -> None:
    assert check_record(record) == Checked((), ())


def trainer(add: float, metrics: dict[str, Any] | None = None) -> ClientApp:
    """A client app that adds a number to each parameter, and says that it used four records."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        trained = ArrayRecord({k: Array(np.asarray(v.numpy() + np.float32(add))) for k, v in arrays.items()})
        content = {"arrays": trained, "metrics": MetricRecord(metrics or {"num-examples": 4, "loss": 0.5})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 3, "accuracy": 0.25})}), reply_to=message
        )

    return app


def federation(order: Callable[[list[int]], list[int]] = list, **options: Any) -> LocalGrid:
    return LocalGrid({node: trainer(i + 1) for i, node in enumerate(NODES)}, order, **options)


MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((), np.float32)}


def model() -> ArrayRecord:
    return ArrayRecord({k: Array(np.asarray(v)) for k, v in MODEL.items()})


def averaged(grid: Any, rounds: int = 2, evaluate: float = 1.0) -> Any:
    strategy = FedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=evaluate)
    return strategy.start(
        grid, model(), num_rounds=rounds, train_config=ConfigRecord({"lr": 0.5, "note": "é"})
    )


def recorded(record: Path, grid: LocalGrid, run: Callable[[RecordingGrid], Any], **options: Any) -> Any:
    with RecordingGrid(grid, record, **options) as passing:
        return run(passing)


def test_fedavg_is_recorded_message_by_message(record: Path) -> None:
    recorded(record, federation(), averaged)
    assert_intact(record)
    clients = ["client/0", "client/1", "client/2"]
    down = [("server", tuple(clients), "model_parameters"), ("server", tuple(clients), "flower/config")]
    up = [
        (c, ("server",), k) for c in clients for k in ("model_parameters", "sample_count", "flower/metrics")
    ]
    measured = [(c, ("server",), "flower/metrics") for c in clients]
    for t in range(2):
        messages = [m for m in lines(record) if m["round"] == t]
        kinds = [(m["sender"], tuple(m["receivers"]), m["kind"]) for m in messages]
        assert kinds[:2] == down
        assert sorted(kinds[2:11]) == sorted(up)
        assert kinds[11:13] == down
        assert sorted(kinds[13:]) == sorted(measured)
        assert all(m["inputs"] == "all" for m in messages)


def test_an_upload_on_record_is_what_the_client_sent(record: Path) -> None:
    grid = federation()
    recorded(record, grid, averaged)
    sent = iter(grid.as_sent.values())
    uploads = [m for m in lines(record) if m["sender"] != "server" and m["kind"] == "model_parameters"]
    trained = [c["arrays"] for c in sent if "arrays" in c]
    assert len(uploads) == len(trained) == 6
    for line, arrays in zip(uploads, trained, strict=True):
        on_record = tensors(record, line)
        assert on_record.keys() == {"w", "b"}
        for name, array in arrays.items():
            assert on_record[name].tobytes() == array.numpy().tobytes()
            assert on_record[name].shape == array.numpy().shape


def test_numbers_and_text_of_a_configuration_are_on_record(record: Path) -> None:
    recorded(record, federation(), averaged)
    (config, *_) = (tensors(record, m) for m in lines(record) if m["kind"] == "flower/config")
    assert config["lr"] == 0.5
    assert config["server-round"] == 1
    assert config["note"].tobytes().decode() == "é"
    (count, *_) = (tensors(record, m) for m in lines(record) if m["kind"] == "sample_count")
    assert count["n"] == 4
    assert count["n"].shape == ()


def test_recording_changes_nothing_that_is_learnt(record: Path) -> None:
    random.seed(5)  # FedAvg samples the nodes, and adds the models up, in a random order
    plain = averaged(federation())
    random.seed(5)
    watched = recorded(record, federation(), averaged)
    assert plain.arrays == watched.arrays
    assert plain.train_metrics_clientapp == watched.train_metrics_clientapp
    assert plain.evaluate_metrics_clientapp == watched.evaluate_metrics_clientapp


def test_shuffled_nodes_keep_their_numbers(record: Path) -> None:
    rng = random.Random(3)
    recorded(record, federation(order=lambda n: rng.sample(n, len(n))), lambda g: averaged(g, rounds=4))
    assert_intact(record)
    start = {0: MODEL["w"]}
    steps: dict[str, set[float]] = {}
    for m in lines(record):
        if m["kind"] == "model_parameters" and m["sender"] == "server":
            start[0] = tensors(record, m)["w"]
        elif m["kind"] == "model_parameters":
            steps.setdefault(m["sender"], set()).add(
                round(float((tensors(record, m)["w"] - start[0]).mean()), 3)
            )
    assert sorted(map(sorted, steps.values())) == [
        [1.0],
        [2.0],
        [3.0],
    ]  # each client always adds its own number


def test_given_clients_keep_the_given_numbers(record: Path, tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    recorded(record, federation(), averaged, clients={NODES[0]: "client/2"}, truth=truth)
    nodes = json.loads((truth / "nodes.json").read_bytes())
    assert nodes["client/2"] == str(NODES[0])
    assert {nodes["client/0"], nodes["client/1"]} == {str(n) for n in NODES[1:]}


def test_a_node_is_a_party_from_its_first_appearance(record: Path) -> None:
    grid = federation()
    late = grid.nodes.pop(NODES[2])

    def run(passing: RecordingGrid) -> None:
        averaged_of(passing, 2)
        grid.nodes[NODES[2]] = late
        grid.contexts[NODES[2]] = Context(7, NODES[2], {}, RecordDict(), {})
        averaged_of(passing, 3)

    recorded(record, grid, run)
    assert_intact(record)
    assert state(record)["parties"] == ["server", "client/0", "client/1", "client/2"]
    late_uploads = [m["seq"] for m in lines(record) if m["sender"] == "client/2"]
    first_uploads = [m["seq"] for m in lines(record) if m["sender"] == "client/0"]
    assert min(late_uploads) > min(first_uploads)


def averaged_of(grid: Any, nodes: int) -> Any:
    strategy = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes, fraction_evaluate=0.0)
    return strategy.start(grid, model(), num_rounds=1)


def test_the_released_model_is_a_message_to_the_world(record: Path) -> None:
    def run(grid: RecordingGrid) -> ArrayRecord:
        arrays = averaged(grid).arrays
        grid.release(arrays)
        return arrays

    released = recorded(record, federation(), run)
    assert_intact(record)
    last = lines(record)[-1]
    assert (last["sender"], last["receivers"], last["kind"]) == ("server", ["world"], "model_parameters")
    assert {n: v.tobytes() for n, v in tensors(record, last).items()} == {
        n: a.numpy().tobytes() for n, a in released.items()
    }
    assert "world" in state(record)["parties"]


def test_a_list_of_arrays_is_released_under_its_numbers(record: Path) -> None:
    recorded(record, federation(), lambda grid: grid.release([np.ones(2), np.zeros((1, 3))]))
    (line,) = lines(record)
    assert {n: v.shape for n, v in tensors(record, line).items()} == {"0": (2,), "1": (1, 3)}


def test_an_app_that_fails_leaves_the_record_open(record: Path) -> None:
    def run(grid: RecordingGrid) -> None:
        averaged(grid)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorded(record, federation(), run)
    assert state(record)["status"] == "open"


def only_query(answer: Callable[[Message], RecordDict]) -> ClientApp:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(answer(message), reply_to=message)

    return app


def ask(
    grid: RecordingGrid, node: int = NODES[0], content: RecordDict | None = None, **named: Any
) -> list[Message]:
    return list(grid.send_and_receive([Message(content or RecordDict(), node, "query", **named)]))


def test_group_identifiers_number_the_rounds(record: Path) -> None:
    grid = LocalGrid({NODES[0]: only_query(lambda m: RecordDict())})

    def run(passing: RecordingGrid) -> None:
        for group in ("", "5", "5", "", "2"):
            ask(passing, group_id=group)

    recorded(record, grid, run)
    assert [m["round"] for m in lines(record) if m["sender"] == "server"] == [0, 0, 0, 0, 1]
    assert {m["kind"] for m in lines(record)} == {"flower/empty"}
    assert_intact(record)


def test_rounds_can_be_set_by_hand(record: Path) -> None:
    def run(passing: RecordingGrid) -> None:
        for t in (0, 2):
            passing.round(t)
            ask(passing, group_id="9")
            ask(passing, group_id="8")

    recorded(record, LocalGrid({NODES[0]: only_query(lambda m: RecordDict())}), run)
    assert [m["round"] for m in lines(record)] == [0, 0, 0, 0, 2, 2, 2, 2]


def test_pushed_and_pulled_messages_are_recorded(record: Path) -> None:
    grid = federation()

    def run(passing: RecordingGrid) -> None:
        ids = passing.push_messages(
            [Message(RecordDict({"arrays": model()}), n, "train", group_id="1") for n in NODES]
        )
        assert len([m for m in lines(record) if m["sender"] == "server"]) == 1
        replies = [r for i in ids for r in passing.pull_messages([i])]
        assert [r.metadata.src_node_id for r in replies] == list(NODES)

    recorded(record, grid, run)
    assert [m["sender"] for m in lines(record) if m["kind"] == "model_parameters"] == [
        "server",
        "client/0",
        "client/1",
        "client/2",
    ]


def test_a_lost_reply_is_silence_and_a_late_one_is_still_recorded(record: Path) -> None:
    grid = federation()

    def run(passing: RecordingGrid) -> None:
        content = RecordDict({"arrays": model()})
        ids = list(passing.push_messages([Message(content, n, "train", group_id="1") for n in NODES]))
        assert len(list(passing.pull_messages(ids[:1]))) == 1
        passing.push_messages(
            [Message(content, NODES[0], "train", group_id="2")]
        )  # round 1: two did not answer
        assert len(list(passing.pull_messages(ids[1:2]))) == 1

    recorded(record, grid, run)
    silent = [(m["round"], m["sender"]) for m in lines(record) if m["kind"] == "silence"]
    assert silent == [(0, "client/1"), (0, "client/2"), (1, "client/0")]
    assert [
        m["round"] for m in lines(record) if (m["sender"], m["kind"]) == ("client/1", "model_parameters")
    ] == [1]
    assert_intact(record)


def test_a_reply_missing_after_the_timeout_is_silence(record: Path) -> None:
    grid = federation(lost=lambda message: message.metadata.dst_node_id == NODES[1])
    recorded(record, grid, averaged, clients={NODES[1]: "client/2"})
    assert [m["sender"] for m in lines(record) if m["kind"] == "silence"] == ["client/2"] * 4
    assert_intact(record)


def test_an_error_of_a_client_is_on_record(record: Path) -> None:
    def fail(message: Message) -> RecordDict:
        raise ZeroDivisionError("patient 17")

    (reply,) = recorded(record, LocalGrid({NODES[0]: only_query(fail)}), ask)
    assert reply.has_error()
    (line,) = (m for m in lines(record) if m["kind"] == "flower/error")
    found = tensors(record, line)
    assert found["reason"].tobytes() == b"patient 17"
    assert found["code"] == reply.error.code


def test_a_reply_to_an_unrecorded_message_is_refused(record: Path) -> None:
    grid = federation()
    (hidden,) = grid.push_messages([Message(RecordDict({"arrays": model()}), NODES[0], "train")])
    with RecordingGrid(grid, record) as passing, pytest.raises(ValueError, match="names no instruction"):
        passing.pull_messages([hidden])


def test_kinds_and_inputs_follow_the_users_declaration(record: Path) -> None:
    def logits(message: Message) -> RecordDict:
        return RecordDict({"scores": ArrayRecord({"values": Array(np.ones((2, 3), np.float32))})})

    recorded(
        record,
        LocalGrid({NODES[0]: only_query(logits)}),
        lambda g: ask(g, content=RecordDict({"arrays": model(), "teacher": model()})),
        kinds={
            ("scores", "reply"): "logits",
            ("query", "instruction"): "soft_labels",
            ("arrays", "instruction"): "acme/a",
        },
        inputs={("scores", "reply"): ["data", "instruction"], ("query", "instruction"): []},
    )
    found = [(m["kind"], m["inputs"]) for m in lines(record)]
    assert found == [("acme/a", []), ("soft_labels", []), ("logits", ["data", 0, 1])]


def test_an_unknown_array_is_never_called_a_model(record: Path) -> None:
    def masked(message: Message) -> RecordDict:
        return RecordDict({"Masked Vector!": model()})

    recorded(record, LocalGrid({NODES[0]: only_query(masked)}), ask)
    assert lines(record)[-1]["kind"] == "flower/masked-vector"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": {("train", "up"): "logits"}}, "kinds: .*'reply'"),
        ({"kinds": {"train": "logits"}}, "kinds: .*pair"),
        ({"kinds": {("secaggplus_configs", "reply"): "model_update"}}, "secaggplus_configs.*Leave it out"),
        ({"inputs": {("train", "reply"): ["records"]}}, "inputs: .*'data'"),
        ({"inputs": {("train", "instruction"): ["data"]}}, "inputs: .*nothing"),
        ({"inputs": {("train", "reply"): "data"}}, "inputs: .*'data'"),
        ({"clients": {1: "hospital"}}, "clients: 'hospital'"),
        ({"clients": {1: "client/0", 2: "client/0"}}, "clients: two"),
    ],
)
def test_bad_arguments_get_one_clear_error(record: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecordingGrid(federation(), record, truth=record.parent / "truth", **options)
    assert not record.exists()


def test_everything_else_is_delegated(record: Path) -> None:
    grid = federation()
    with RecordingGrid(grid, record) as passing:
        passing.set_run("a run")  # type: ignore[arg-type]
        assert passing.run == grid.run == "a run"
        assert list(passing.get_node_ids()) == list(NODES)
        assert [n.node_id for n in passing.get_nodes()] == list(NODES)
        message = passing.create_message(RecordDict(), "train", 5, "3", ttl=9.0)
        assert (message.metadata.dst_node_id, message.metadata.group_id, message.metadata.ttl) == (
            5,
            "3",
            9.0,
        )
        passing.close()
        assert grid.closed


# -- hostile and odd arrays -----------------------------------------------------------------------------------------


def answered(record: Path, arrays: ArrayRecord) -> tuple[ArrayRecord, dict[str, np.ndarray[Any, Any]]]:
    """What the app received and what is on record when a client sends these arrays."""
    (reply,) = recorded(record, LocalGrid({NODES[0]: only_query(lambda m: RecordDict({"x": arrays}))}), ask)
    assert_intact(record)
    received = reply.content["x"]
    assert isinstance(received, ArrayRecord)
    return received, tensors(record, lines(record)[-1])


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(4, dtype=">f8"),
        np.float64([np.nan, -0.0, np.inf]),
        np.zeros((0, 3), np.float32),
        np.array(True),
        np.uint64([2**64 - 1]),
    ],
    ids=str,
)
def test_the_app_receives_the_recorded_values(record: Path, value: np.ndarray[Any, Any]) -> None:
    received, on_record = answered(record, ArrayRecord({"a": Array(value)}))
    array = received["a"].numpy()
    little = value.astype(value.dtype.newbyteorder("<"))
    assert array.tobytes() == on_record["a"].tobytes() == np.ascontiguousarray(little).tobytes()
    assert (array.shape, received["a"].shape) == (value.shape, value.shape)


@pytest.mark.parametrize(
    ("data", "stype"),
    [
        (b"no array", "numpy.ndarray"),
        (b"", "numpy.ndarray"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8',", "numpy.ndarray"),
        (Array(np.array(["text"])).data, "numpy.ndarray"),
        (Array(np.ones(2, np.complex128)).data, "numpy.ndarray"),
        (b"trees", "xgboost"),
        (
            b"\x93NUMPY\x01\x00\x46\x00"
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}"[:70].ljust(70),
            "numpy.ndarray",
        ),
    ],
)
def test_bytes_that_are_no_array_of_numbers_are_recorded_as_bytes(
    record: Path, data: bytes, stype: str
) -> None:
    received, on_record = answered(record, ArrayRecord({"a": Array("float32", (2,), stype, data)}))
    assert received["a"].data == data == on_record["a:bytes"].tobytes()


def test_bytes_behind_an_array_do_not_reach_the_app_unrecorded(record: Path) -> None:
    array = Array(np.ones(2, np.float32))
    received, on_record = answered(
        record, ArrayRecord({"a": Array("float32", (7,), array.stype, array.data + b"more")})
    )
    assert received["a"].data == array.data
    assert received["a"].shape == (2,)
    assert on_record["a"].tolist() == [1, 1]


def test_names_that_the_format_reserves_are_quoted(record: Path) -> None:
    names = ["__metadata__", "x:grid", "x%3Agrid:name", "x:lengths", "\ud800", "a\nb", ""]
    _, on_record = answered(record, ArrayRecord({n: Array(np.full(1, i)) for i, n in enumerate(names)}))
    assert sorted(v.item() for v in on_record.values()) == list(range(len(names)))


# -- which records a reply used -------------------------------------------------------------------------------------


def site_app(site: Path, ids: list[int], mods: bool = True) -> ClientApp:
    """A client of the kind that cannot see the message: it leaves its records to the mod."""
    app = ClientApp(mods=[])

    @app.train(mods=[noting(lambda context: site)] if mods else [])
    def train(message: Message, context: Context) -> Message:
        context.state["fdaudit.records"] = ConfigRecord({"ids": ids})
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    return app


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / "sites" / name for name in ("north", "south")}


def two_rounds(grid: RecordingGrid) -> None:
    for t in (1, 2):
        content = RecordDict({"arrays": model()})
        messages = [Message(content, n, "train", group_id=str(t)) for n in grid.get_node_ids()]
        list(grid.send_and_receive(messages))


def notes(site: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site / "notes.jsonl").read_bytes().splitlines()]


def joined(truth: Path, *sites: Path) -> tuple[dict[int, tuple[int, ...]], dict[str, str | int]]:
    return joined_notes(truth / "replies.jsonl", [s / "notes.jsonl" for s in sites], truth / "nodes.json")


def test_sites_notes_join_with_the_record(record: Path, tmp_path: Path, sites: dict[str, Path]) -> None:
    nodes = {5: site_app(sites["north"], [17, 42]), 6: site_app(sites["south"], [3])}
    truth = tmp_path / "truth"
    recorded(record, LocalGrid(nodes, lambda n: n[::-1]), two_rounds, truth=truth)
    assert json.loads((truth / "nodes.json").read_bytes()) == {"client/0": "6", "client/1": "5"}
    used, named = joined(truth, *sites.values())
    assert named == {"client/0": "6", "client/1": "5"}
    expected = {"client/0": (3,), "client/1": (17, 42)}
    assert used == {m["seq"]: expected[m["sender"]] for m in lines(record) if m["sender"] != "server"}


def images(first: int, count: int) -> list[tuple[np.ndarray[Any, Any], int]]:
    return [(np.full((1, 2, 2), first + i, np.float32), (first + i) % 3) for i in range(count)]


def test_one_line_at_a_client_notes_its_records_and_its_number(record: Path, tmp_path: Path) -> None:
    app, truth = ClientApp(), tmp_path / "truth"

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = images(10 * int(context.node_config["partition-id"]), 4)
        note_records(message, context, truth, own, held_out=images(90, 2))
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    grid = LocalGrid({5: app, 6: app}, lambda n: n[::-1])
    for node, number in ((5, 0), (6, 1)):
        grid.contexts[node].node_config["partition-id"] = number
    recorded(record, grid, two_rounds, truth=truth)
    used, named = joined(truth, truth)
    assert named == {"client/0": "1", "client/1": "0"}
    assert used == {m["seq"]: (0, 1, 2, 3) for m in lines(record) if m["sender"] != "server"}
    for number in (0, 1):
        with np.load(truth / f"client-{number}.npz") as held:
            assert held["x"].shape == (6, 1, 2, 2)
            assert held["x"][:, 0, 0, 0].tolist() == [*(10 * number + i for i in range(4)), 90, 91]
            assert held["y"].tolist() == [(10 * number + i) % 3 for i in range(4)] + [0, 1]
            assert held["held_out"].tolist() == [4, 5]
    assert all(list(content) == ["arrays"] for content in grid.as_sent.values())
    assert {m["kind"] for m in lines(record)} == {"model_parameters"}


def one_note(record: Path, **options: Any) -> list[Message]:
    """The replies of a client that notes its records with these options."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        note_records(message, context, record.parent / "site", **options)
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    replies: list[Message] = []
    sent = Message(RecordDict({"arrays": model()}), 5, "train")
    recorded(record, LocalGrid({5: app}), lambda grid: replies.extend(grid.send_and_receive([sent])))
    return replies


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"ids": [3, 1]}, ([3, 1], "5")),
        ({"ids": np.arange(2)}, ([0, 1], "5")),
        ({"dataset": images(0, 3), "ids": [2]}, ([2], "5")),
        ({"dataset": [{"label": 0, "img": np.ones((1, 2, 2))}], "site": "north"}, ([0], "north")),
    ],
)
def test_a_note_has_numbers_and_a_site(
    record: Path, options: dict[str, Any], noted: tuple[list[int], str]
) -> None:
    assert not one_note(record, **options)[0].has_error()
    (note,) = notes(record.parent / "site")
    assert (note["records"], note["site"]) == noted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "neither a dataset nor ids"),
        ({"ids": [-1]}, "no number of a record"),
        ({"ids": [True]}, "no number of a record"),
        ({"ids": ["a"]}, "no number of a record"),
        ({"dataset": [np.ones(3)]}, "not (x, y)"),
        ({"dataset": [(0, np.ones((1, 2, 2)))]}, "Give the input first"),
        ({"dataset": images(0, 2), "site": "../north"}, "no name of a site's file"),
    ],
)
def test_a_refused_note_fails_the_reply(record: Path, options: dict[str, Any], said: str) -> None:
    assert said in str(one_note(record, **options)[0].error.reason)
    assert not (record.parent / "site" / "notes.jsonl").exists()


@pytest.mark.parametrize("mods", [True, False], ids=["with the mod", "without the mod"])
def test_record_ids_never_travel(record: Path, sites: dict[str, Path], mods: bool) -> None:
    grid = LocalGrid({5: site_app(sites["north"], [17, 42], mods)})
    recorded(record, grid, two_rounds)
    assert all(list(content) == ["arrays"] for content in grid.as_sent.values())
    assert {m["kind"] for m in lines(record)} == {"model_parameters"}
    assert ("fdaudit.records" in grid.contexts[5].state) is not mods


def test_ids_of_a_failed_reply_are_not_noted_with_the_next(record: Path, sites: dict[str, Path]) -> None:
    app = ClientApp()
    calls: list[int] = []

    @app.train(mods=[noting(sites["north"])])
    def train(message: Message, context: Context) -> Message:
        calls.append(1)
        if len(calls) == 1:
            context.state["fdaudit.records"] = ConfigRecord({"ids": [9]})
            raise ZeroDivisionError
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    recorded(record, LocalGrid({5: app}), two_rounds)
    assert not (sites["north"] / "notes.jsonl").exists()


@pytest.mark.parametrize("ids", [["a"], [-1], [0.5]])
def test_what_is_no_list_of_records_fails_the_reply(
    record: Path, sites: dict[str, Path], ids: list[Any]
) -> None:
    replies: list[Message] = []

    def run(grid: RecordingGrid) -> None:
        replies.extend(grid.send_and_receive([Message(RecordDict({"arrays": model()}), 5, "train")]))

    recorded(record, LocalGrid({5: site_app(sites["north"], ids)}), run)
    assert "ids: " in str(replies[0].error.reason)


def test_records_that_no_client_holds_are_written_to_the_truth(record: Path) -> None:
    truth = record.parent / "truth"
    rows = [{"label": k % 2, "img": np.full((1, 2, 2), k, np.float32)} for k in range(4)]
    with RecordingGrid(federation(), record, truth=truth) as passing:
        passing.hold("auxiliary", rows)
        with pytest.raises(ValueError, match="auxiliary, public, test"):
            passing.hold("client-0", rows)
        with pytest.raises(ValueError, match="is int, not"):
            passing.hold("test", [1, 2])
    with np.load(truth / "auxiliary.npz", allow_pickle=False) as held:
        assert sorted(held) == ["x", "y"]
        assert held["x"].shape == (4, 1, 2, 2)
        assert held["y"].tolist() == [0, 1, 0, 1]
    assert not {"client-0.npz", "test.npz"} & {path.name for path in truth.iterdir()}


def test_records_without_a_directory_of_the_truth_are_refused(record: Path) -> None:
    with (
        RecordingGrid(federation(), record) as passing,
        pytest.raises(ValueError, match="truth: no directory"),
    ):
        passing.hold("test", [(np.zeros((1, 2, 2)), 0)])


def test_truth_inside_the_record_is_refused(record: Path) -> None:
    with pytest.raises(ValueError, match="within each other"):
        RecordingGrid(federation(), record, truth=record / "truth")
