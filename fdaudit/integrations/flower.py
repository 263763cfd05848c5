"""Record what a Flower app sends and receives: a `Grid` around the app's own, and a mod for its clients.

```python
with Recorder(directory, parties(3), truth=truth) as recorder, RecordingGrid(grid, recorder) as grid:
    FedAvg().start(grid, initial_arrays)
```
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from numpy.typing import NDArray

from fdaudit.recording.recorder import Delivery, Recorder

from .exchange import (
    SERVER,
    Clients,
    Direction,
    ServerTruth,
    append_uses,
    as_tensors,
    checked_inputs,
    checked_kinds,
    join_key,
    join_uses,
    own_kind,
    parties,
    safe_name,
)

__all__ = ["RecordingGrid", "join_uses", "note_records", "parties"]

_MODELS = (
    "arrays",
    "fitins.parameters",
    "fitres.parameters",
    "evaluateins.parameters",
    "getparametersres.parameters",
)
"""Names that Flower's own strategies give to the record of a model."""

_COUNTS = ("num-examples", "num_examples")
"""Names that Flower's own strategies give to the number of records a client trained on."""

_UNANSWERED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Errors that the SuperLink makes in place of a reply: the client did not answer."""

Record: TypeAlias = ArrayRecord | MetricRecord | ConfigRecord
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class _Instruction:
    """An instruction as far as its reply needs it: the receiver, the stage of SecAgg+, its recorded messages."""

    party: str
    stage: str | None
    seqs: tuple[int, ...]


@dataclass(frozen=True)
class _Passage:
    """The way of a record: sender and receivers, its message's type, and the instruction that a reply answers."""

    sender: str
    receivers: tuple[str, ...]
    message_type: str
    stage: str | None = None
    answers: tuple[int, ...] = ()
    reply: str | None = None

    @property
    def direction(self) -> Direction:
        """Return `instruction` or `reply`."""
        return "instruction" if self.sender == SERVER else "reply"


class RecordingGrid(Grid):  # type: ignore[misc]  # the check of types leaves Flower out
    """A `Grid` that records every message which passes through it, and delegates everything to the app's grid.

    Guarantees:
      * an instruction is on record before it is sent, and a reply before the app gets it;
      * arrays that reach a client or the app equal those on record, bit for bit;
      * the same content that one call sends to several nodes is one message with several receivers;
      * a missing reply is on record as `silence`, an error as `flower/error`;
      * a node is the same `client/N` for the whole record, however Flower orders and samples nodes.

    A round opens with each instruction whose round number differs from that of the instruction before. The number is
    the group identifier if it is numeric, otherwise `server-round` in the configuration, which every strategy of Flower
    sets. Replies belong to the open round. An app without either calls `round` itself.

    Args:
        grid: the app's grid.
        recorder: receives the messages; its parties are `parties(n)` for n nodes.
        kinds: kinds that replace the defaults, by (record name or message type, `instruction` or `reply`). A message
            type applies to arrays only.
        inputs: narrower inputs, by (record name or message type, direction): a reply lists `data`, `instruction`, both
            or nothing; an instruction lists nothing, which means nothing private. Without an entry: everything that the
            sender held.
        clients: the party of nodes whose identifiers are known beforehand. Others are numbered as they appear.
        truth: the server's directory of the truth: it learns the node of each party, and by which key a site's notes
            name each reply. No record numbers reach the server.

    Raises:
        ValueError: an argument is refused.
    """

    def __init__(
        self,
        grid: Grid,
        recorder: Recorder,
        *,
        kinds: Mapping[tuple[str, str], str] | None = None,
        inputs: Mapping[tuple[str, str], Sequence[str]] | None = None,
        clients: Mapping[int, str] | None = None,
        truth: str | Path | None = None,
    ) -> None:
        self._grid, self._recorder = grid, recorder
        self._kinds = checked_kinds(kinds, fixed=[RECORD_KEY_CONFIGS])
        self._inputs = checked_inputs(inputs)
        self._clients = Clients(clients)
        self._truth = None if truth is None else ServerTruth(Path(truth), recorder.directory)
        self._lock = threading.RLock()
        self._sent: dict[str, _Instruction] = {}
        """Instructions without a reply, by their identifier."""
        self._awaited: set[str] = set()
        """Identifiers in `_sent` whose missing reply is not on record yet."""
        self._round = -1
        self._number: int | None = None
        self._by_hand = False

    def __enter__(self) -> RecordingGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the replies that never came, unless the app failed."""
        if error is None:
            self._record_silence(list(self._awaited))
        if self._truth is not None:
            self._truth.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app's grid that `Grid` does not have, such as `close`."""
        return getattr(self.__dict__["_grid"], name)

    def round(self, t: int) -> None:
        """Open round `t` of the record, from 0. From then on, round numbers in messages are ignored."""
        with self._lock:
            self._by_hand = True
            self._open(t)

    # -- the methods of a grid --------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run of the app's grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the app's grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message of the app's grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the identifiers of the connected nodes."""
        nodes: Iterable[int] = self._grid.get_node_ids()
        return nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the app's grid knows of the connected nodes."""
        nodes: Iterable[NodeInfo] = self._grid.get_nodes()
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Record messages and push them; return their identifiers."""
        outgoing = list(messages)
        sent = self._record_instructions(outgoing)
        ids = list(self._grid.push_messages(outgoing))
        self._remember(outgoing, sent)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and record them."""
        return [self._record_reply(reply) for reply in self._grid.pull_messages(list(message_ids))]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Record messages, push them, and record and return the replies; a reply that is missing is `silence`."""
        outgoing = list(messages)
        sent = self._record_instructions(outgoing)
        replies = list(self._grid.send_and_receive(outgoing, timeout=timeout))
        ids = self._remember(outgoing, sent)
        recorded = [self._record_reply(reply) for reply in replies]
        self._record_silence(ids)
        return recorded

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _follow(self, number: int | None) -> None:
        """Open the next round if an instruction has another round number than the one before."""
        if self._by_hand:
            return
        if self._round < 0 or (None not in (number, self._number) and number != self._number):
            self._open(self._round + 1)
        if number is not None:
            self._number = number

    def _open(self, t: int) -> None:
        self._record_silence(list(self._awaited))
        if self._truth is not None:
            self._truth.sync()
        self._recorder.round(t)
        self._round = t

    # -- instructions -----------------------------------------------------------------------------------------------

    def _record_instructions(self, messages: list[Message]) -> list[_Instruction]:
        """Record the messages of one call, and replace their arrays by the recorded ones."""
        recorded: list[_Instruction] = []
        with self._lock:
            for number, batch in groupby(messages, _round_number):
                self._follow(number)
                recorded += self._record_batch(list(batch))
        return recorded

    def _record_batch(self, messages: list[Message]) -> list[_Instruction]:
        """Record instructions of one round; those that share a record are receivers of one message."""
        targets = [self._party(m.metadata.dst_node_id) for m in messages]
        stages = [_stage(m.content) for m in messages]
        contents = [dict(m.content) for m in messages]
        seqs: list[list[int]] = [[] for _ in messages]
        for (name, message_type, _), indices in _shared(messages).items():
            to = tuple(targets[i] for i in indices)
            passage = _Passage(SERVER, to, message_type, stages[indices[0]])
            record, sent = self._record(name, contents[indices[0]][name], passage)
            for i in indices:
                contents[i][name] = record
                seqs[i] += sent
        for i, message in enumerate(messages):
            if not seqs[i]:
                passage = _Passage(SERVER, (targets[i],), message.metadata.message_type)
                seqs[i].append(self._send("empty", {}, passage).seq)
            message.content = RecordDict(contents[i])
        return [_Instruction(p, stage, tuple(s)) for p, stage, s in zip(targets, stages, seqs, strict=True)]

    def _remember(self, messages: list[Message], instructions: list[_Instruction]) -> list[str]:
        """Remember instructions by the identifiers that the push gave them; return these."""
        ids = [m.metadata.message_id for m in messages]
        with self._lock:
            self._sent.update(zip(ids, instructions, strict=True))
            self._awaited.update(ids)
        return ids

    # -- replies ----------------------------------------------------------------------------------------------------

    def _record_reply(self, reply: Message) -> Message:
        """Record a reply, and replace its arrays by the recorded ones."""
        instruction_id = reply.metadata.reply_to_message_id
        with self._lock:
            if instruction_id not in self._sent:
                raise ValueError(
                    f"reply_to_message_id: {instruction_id!r} names no instruction that waits for a reply on record. "
                    "Push every message through the RecordingGrid."
                )
            if reply.has_error() and reply.error.code in _UNANSWERED:
                self._record_silence([instruction_id])
                return reply
            sent = self._sent.pop(instruction_id)
            self._awaited.discard(instruction_id)
            passage = _Passage(
                sent.party,
                (SERVER,),
                reply.metadata.message_type,
                sent.stage,
                sent.seqs,
                join_key(instruction_id),
            )
            if reply.has_error():
                reason = as_tensors("reason", reply.error.reason or "")
                self._send("error", {"code": np.array(reply.error.code, dtype=np.int64), **reason}, passage)
                return reply
            content, seqs = dict(reply.content), list[int]()
            for name in content:
                content[name], sent_seqs = self._record(name, content[name], passage)
                seqs += sent_seqs
            if not seqs:
                self._send("empty", {}, passage)
            reply.content = RecordDict(content)
            return reply

    def _record_silence(self, ids: Iterable[str]) -> None:
        """Record that the awaited replies among these did not come."""
        with self._lock:
            for party in sorted(self._sent[i].party for i in ids if i in self._awaited):
                self._recorder.send(party, [SERVER], "silence", {})
            self._awaited.difference_update(ids)

    # -- records ----------------------------------------------------------------------------------------------------

    def _record(self, name: str, record: Record, passage: _Passage) -> tuple[Record, list[int]]:
        """Record one record of a message; return it with the recorded arrays, and the numbers of its messages."""
        if isinstance(record, ArrayRecord):
            if not record:
                return record, []
            values = {key: _decoded(array) for key, array in record.items()}
            delivery = self._send(
                name, _array_tensors(record, values), passage, self._array_kind(name, passage)
            )
            return _received(record, values, delivery), [delivery.seq]
        seqs = []
        for kind, tensors in self._parts(name, record, passage):
            seqs.append(self._send(name, tensors, passage, kind).seq)
        return record, seqs

    def _array_kind(self, name: str, passage: _Passage) -> str | None:
        """Return the kind of a record of arrays; None for one of Flower's own."""
        category, _, _ = passage.message_type.partition(".")
        for key in (name, passage.message_type, category):
            if (key, passage.direction) in self._kinds:
                return self._kinds[key, passage.direction]
        known = name in _MODELS and category in ("train", "evaluate", "get_parameters")
        return "model_parameters" if known else None

    def _parts(
        self, name: str, record: MetricRecord | ConfigRecord, passage: _Passage
    ) -> Iterable[tuple[str | None, Tensors]]:
        """Split a record of numbers by kind: the count of records, the masked vector of SecAgg+, and the rest."""
        rest: dict[str, Any] = dict(record)
        kind = self._kinds.get((name, passage.direction))
        if name == RECORD_KEY_CONFIGS:
            kind = own_kind("flower", f"secagg-{rest.get(Key.STAGE) or passage.stage}")
            if isinstance(rest.get(Key.MASKED_PARAMETERS), list):
                yield "flower/masked-vector", _masked(rest.pop(Key.MASKED_PARAMETERS))
        elif isinstance(record, MetricRecord) and _is_training(passage):
            counts = [k for k in _COUNTS if k in rest and not isinstance(rest[k], list)]
            for key in counts[:1]:
                yield "sample_count", as_tensors("n", rest.pop(key))
        if rest:
            tensors: Tensors = {}
            for key, value in rest.items():
                tensors |= as_tensors(safe_name(key), value)
            yield kind, tensors

    def _send(self, name: str, tensors: Tensors, passage: _Passage, kind: str | None = None) -> Delivery:
        """Record one message: of this kind, or of Flower's own kind for a record of this name."""
        inputs: str | list[int | str] = "all"
        for key in (name, passage.message_type):
            if (key, passage.direction) in self._inputs:
                words = self._inputs[key, passage.direction]
                inputs = [
                    *(["data"] if "data" in words else []),
                    *(passage.answers if "instruction" in words else ()),
                ]
                break
        delivery = self._recorder.send(
            passage.sender, passage.receivers, kind or own_kind("flower", name), tensors, inputs
        )
        if self._truth is not None and passage.reply is not None:
            self._truth.note_reply(delivery.seq, passage.sender, passage.reply)
        return delivery

    def _party(self, node_id: int) -> str:
        """Return the party of a node; the truth learns of a new one at once."""
        party = self._clients.party(node_id)
        if self._truth is not None:
            self._truth.name(party, str(node_id))
        return party


# -- what a message holds -------------------------------------------------------------------------------------------


def _round_number(message: Message) -> int | None:
    """Return Flower's number of the round of an instruction, if it has one."""
    group = message.metadata.group_id
    if group.isascii() and group.isdigit():
        return int(group)
    for record in message.content.config_records.values():
        number = record.get("server-round")
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    return None


def _stage(content: RecordDict) -> str | None:
    """Return the stage of SecAgg+ that an instruction begins."""
    stage = content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)
    return stage if isinstance(stage, str) else None


def _is_training(passage: _Passage) -> bool:
    return passage.direction == "reply" and passage.message_type.partition(".")[0] == "train"


def _shared(messages: Sequence[Message]) -> dict[tuple[str, str, bytes], list[int]]:
    """Return the messages that share a record, by the record's name, the message type and the record's digest."""
    digests: dict[int, bytes] = {}  # by object: strategies give one record to many messages
    groups: dict[tuple[str, str, bytes], list[int]] = {}
    for i, message in enumerate(messages):
        for name, record in message.content.items():
            if id(record) not in digests:
                digests[id(record)] = _digest(record)
            groups.setdefault((name, message.metadata.message_type, digests[id(record)]), []).append(i)
    return groups


def _digest(record: Record) -> bytes:
    digest = hashlib.sha256(type(record).__name__.encode())
    for name, value in record.items():
        if isinstance(value, Array):
            about = (name, value.dtype, value.shape, value.stype, len(value.data))
            digest.update(repr(about).encode("utf-8", "surrogatepass") + value.data)
        else:
            digest.update(repr((name, value)).encode("utf-8", "surrogatepass"))
    return digest.digest()


# -- arrays ---------------------------------------------------------------------------------------------------------


def _decoded(array: Array) -> NDArray[Any] | None:
    """Return the values of an array; None if it holds other than numbers, or cannot be read."""
    try:
        return _from_npy(array.data) if array.stype == "numpy.ndarray" else None
    except Exception:  # a client sends any bytes; those that are no array are recorded as bytes
        return None


def _from_npy(data: bytes) -> NDArray[Any] | None:
    value = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return value if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 else None


def _to_npy(value: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def _array_tensors(record: ArrayRecord, values: Mapping[str, NDArray[Any] | None]) -> Tensors:
    """Return arrays by name, and the bytes of those that are no arrays of numbers as `NAME:bytes`."""
    tensors: Tensors = {}
    for name, array in record.items():
        value = values[name]
        if value is None:
            tensors[f"{safe_name(name)}:bytes"] = np.frombuffer(array.data, dtype=np.uint8)
        else:
            tensors[safe_name(name)] = value
    return tensors


def _received(
    record: ArrayRecord, values: Mapping[str, NDArray[Any] | None], delivery: Delivery
) -> ArrayRecord:
    """Return the record with the recorded arrays; an array whose bytes are already those on record stays as it is."""
    arrays = dict(record)
    for name, array in record.items():
        if values[name] is not None:
            value = delivery[safe_name(name)]
            data = _to_npy(value)
            stated = (array.dtype, tuple(array.shape))  # Flower's older interface states neither
            if data != array.data or stated not in (("", ()), (str(value.dtype), value.shape)):
                arrays[name] = Array(str(value.dtype), value.shape, array.stype, data)
    return ArrayRecord(arrays) if any(arrays[n] is not record[n] for n in arrays) else record


def _masked(parts: Sequence[Any]) -> Tensors:
    """Return the parts of a masked vector by their number; the first is the masked weight."""
    tensors: Tensors = {}
    for i, part in enumerate(parts):
        array = Array("", (), "numpy.ndarray", part) if isinstance(part, bytes) else None
        value = _decoded(array) if array is not None else None
        tensors |= as_tensors(f"{i}:bytes", part) if value is None else {str(i): value}
    return tensors


# -- at a client ----------------------------------------------------------------------------------------------------


def note_records(
    truth: str | Path | Callable[[Context], str | Path], key: str = "fdaudit.records"
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return a mod that notes, at the client's own site, which of its records were used in a reply.

    The app lists them in its state before it returns: `context.state[key] = ConfigRecord({"ids": [17, 42]})`. A state
    never leaves its node, and the mod removes the list. `join_uses` joins the notes with the record.

    Args:
        truth: the site's own directory of the truth, or a function of the context that returns it.
        key: name of the record in the client's state.

    Raises:
        ValueError: in the client, if the list is not a `ConfigRecord` with whole numbers under `ids`.
    """

    directory_of = truth

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        context.state.pop(key, None)  # left by a reply that failed
        reply = call_next(message, context)
        record = context.state.pop(key, None)
        if record is not None:
            ids = record.get("ids") if isinstance(record, ConfigRecord) else None
            if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
                raise ValueError(
                    f"{key}: {record!r} lists no records. Write ConfigRecord({{'ids': [0, 1]}})."
                )
            place = Path(directory_of(context) if callable(directory_of) else directory_of)
            append_uses(place, join_key(message.metadata.message_id), ids)
        return reply

    return mod
