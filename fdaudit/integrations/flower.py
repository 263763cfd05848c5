"""Record what a Flower app sends and receives: a `Grid` around the app's own, and a mod for its clients.

```python
with Recorder(directory, parties(3), truth=truth) as recorder, RecordingGrid(grid, recorder) as grid:
    FedAvg().start(grid, initial_arrays)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from flwr.supercore.run import Run

from fdaudit.recording.recorder import Delivery, Recorder

from .exchange import (
    SERVER,
    Exchange,
    Instruction,
    Passage,
    Tensors,
    as_tensors,
    own_kind,
    parties,
    safe_name,
)
from .flower_records import Record, array_tensors, decoded_arrays, masked_vector, received, shared_records
from .truth import ServerTruth, append_uses, join_key, join_uses

__all__ = ["RecordingGrid", "fixed_clipping_claim", "join_uses", "note_records", "parties"]

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


@dataclass(frozen=True)
class _Instruction(Instruction):
    """An instruction, and the stage of SecAgg+ that it begins."""

    stage: str | None = None


@dataclass(frozen=True)
class _Passage(Passage):
    """The way of a record, its message's type, and the stage of SecAgg+."""

    message_type: str = ""
    stage: str | None = None


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
        self._grid = grid
        self._truth = None if truth is None else ServerTruth(Path(truth), recorder.directory)
        self._exchange = Exchange(
            "flower",
            recorder,
            kinds=kinds,
            inputs=inputs,
            clients=clients,
            truth=self._truth,
            fixed=[RECORD_KEY_CONFIGS],
        )

    def __enter__(self) -> RecordingGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the replies that never came, unless the app failed."""
        if error is None:
            self._exchange.record_silence()
        if self._truth is not None:
            self._truth.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app's grid that `Grid` does not have, such as `close`."""
        return getattr(self.__dict__["_grid"], name)

    def round(self, t: int) -> None:
        """Open round `t` of the record, from 0. From then on, round numbers in messages are ignored."""
        self._exchange.round(t)

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
        self._exchange.record_silence(ids)
        return recorded

    # -- instructions -----------------------------------------------------------------------------------------------

    def _record_instructions(self, messages: list[Message]) -> list[_Instruction]:
        """Record the messages of one call, and replace their arrays by the recorded ones."""
        recorded: list[_Instruction] = []
        with self._exchange.lock:
            for number, batch in groupby(messages, _round_number):
                self._exchange.follow(number)
                recorded += self._record_batch(list(batch))
        return recorded

    def _record_batch(self, messages: list[Message]) -> list[_Instruction]:
        """Record instructions of one round; those that share a record are receivers of one message."""
        targets = [self._exchange.party(m.metadata.dst_node_id) for m in messages]
        stages = [_stage(m.content) for m in messages]
        contents = [dict(m.content) for m in messages]
        seqs: list[list[int]] = [[] for _ in messages]
        for (name, message_type, _), indices in shared_records(messages).items():
            to = tuple(targets[i] for i in indices)
            passage = _Passage(SERVER, to, message_type=message_type, stage=stages[indices[0]])
            record, sent = self._record(name, contents[indices[0]][name], passage)
            for i in indices:
                contents[i][name] = record
                seqs[i] += sent
        for i, message in enumerate(messages):
            if not seqs[i]:
                passage = _Passage(SERVER, (targets[i],), message_type=message.metadata.message_type)
                seqs[i].append(self._send("empty", {}, passage).seq)
            message.content = RecordDict(contents[i])
        return [_Instruction(p, tuple(s), stage) for p, stage, s in zip(targets, stages, seqs, strict=True)]

    def _remember(self, messages: list[Message], instructions: list[_Instruction]) -> list[str]:
        """Remember instructions by the identifiers that the push gave them; return these."""
        ids = [m.metadata.message_id for m in messages]
        for identifier, instruction in zip(ids, instructions, strict=True):
            self._exchange.expect(identifier, instruction)
        return ids

    # -- replies ----------------------------------------------------------------------------------------------------

    def _record_reply(self, reply: Message) -> Message:
        """Record a reply, and replace its arrays by the recorded ones."""
        instruction_id = reply.metadata.reply_to_message_id
        with self._exchange.lock:
            sent = self._exchange.instruction(instruction_id)
            if not isinstance(sent, _Instruction):
                raise ValueError(
                    f"reply_to_message_id: {instruction_id!r} names no instruction that waits for a reply on record. "
                    "Push every message through the RecordingGrid."
                )
            if reply.has_error() and reply.error.code in _UNANSWERED:
                self._exchange.record_silence([instruction_id])
                return reply
            self._exchange.answered(instruction_id)
            passage = _Passage(
                sent.party,
                (SERVER,),
                sent.seqs,
                join_key(instruction_id),
                reply.metadata.message_type,
                sent.stage,
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

    # -- records ----------------------------------------------------------------------------------------------------

    def _record(self, name: str, record: Record, passage: _Passage) -> tuple[Record, list[int]]:
        """Record one record of a message; return it with the recorded arrays, and the numbers of its messages."""
        if isinstance(record, ArrayRecord):
            if not record:
                return record, []
            values = decoded_arrays(record)
            tensors = array_tensors(record, values)
            delivery = self._send(name, tensors, passage, self._array_kind(name, passage))
            return received(record, values, delivery), [delivery.seq]
        seqs = []
        for kind, tensors in self._parts(name, record, passage):
            seqs.append(self._send(name, tensors, passage, kind).seq)
        return record, seqs

    def _array_kind(self, name: str, passage: _Passage) -> str | None:
        """Return the kind of a record of arrays; None for one of Flower's own."""
        category, _, _ = passage.message_type.partition(".")
        chosen = self._exchange.kind(passage.direction, name, passage.message_type, category)
        known = name in _MODELS and category in ("train", "evaluate", "get_parameters")
        return chosen or ("model_parameters" if known else None)

    def _parts(
        self, name: str, record: MetricRecord | ConfigRecord, passage: _Passage
    ) -> Iterable[tuple[str | None, Tensors]]:
        """Split a record of numbers by kind: the count of records, the masked vector of SecAgg+, and the rest."""
        rest: dict[str, Any] = dict(record)
        kind = self._exchange.kind(passage.direction, name)
        if name == RECORD_KEY_CONFIGS:
            kind = own_kind("flower", f"secagg-{rest.get(Key.STAGE) or passage.stage}")
            if isinstance(rest.get(Key.MASKED_PARAMETERS), list):
                yield "flower/masked-vector", masked_vector(rest.pop(Key.MASKED_PARAMETERS))
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
        return self._exchange.send(passage, (name, passage.message_type), tensors, kind)


# -- what a message holds -----------------------------------------------------------------------------------


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


def fixed_clipping_claim(
    strategy: Strategy, rounds: int, *, adversary: str = "world", delta: float = 1e-5
) -> dict[str, Any]:
    """Return the ε that a strategy of fixed clipping claims, as an entry of a card's `claims`.

    The server adds the noise to the sum, so nothing is claimed for the server. If the strategy has an accountant, its ε
    counts. Otherwise every round counts as if each client took part, as Flower's accountant counts them.

    Args:
        strategy: the strategy that the app runs.
        rounds: the rounds that it ran.
        adversary: who sees released models only.
        delta: δ; an accountant brings its own.

    Raises:
        ValueError: the strategy claims nothing.
    """
    clipping = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping)
    if not isinstance(strategy, clipping):
        raise ValueError(f"{type(strategy).__name__} is no strategy of fixed clipping")
    if strategy.noise_multiplier <= 0:
        raise ValueError("the strategy adds no noise, so it claims no ε")
    claim = {"adversary": adversary, "delta": delta, "unit": "client", "relation": "add-or-remove"}
    accountant = getattr(strategy, "accountant", None)  # older versions of Flower have none
    if accountant is not None:
        spent = accountant.get_privacy_spent()
        source = f"Flower's accountant ({spent.accounting_method}) after {spent.num_releases} releases"
        return {**claim, "epsilon": spent.epsilon, "delta": spent.delta, "source": source}
    history = [[float(strategy.noise_multiplier), 1.0, rounds]]
    return {**claim, "history": history, "source": f"Flower's {type(strategy).__name__}"}
