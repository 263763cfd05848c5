"""Record what a Flower app sends and receives: a `Grid` around the app's own, and a line in its clients.

```python
with RecordingGrid(grid, "RECORD", truth="TRUTH") as grid:
    result = FedAvg().start(grid, initial_arrays)
    grid.release(result.arrays)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
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

from .flower_records import Record, array_tensors, decoded_arrays, masked_vector, received, shared_records
from .flower_sites import note_records, noting
from .observer import SERVER, Instruction, ObservedMessage, Observer, Passage, own_kind
from .tensors import Tensors, as_tensors, safe_name

__all__ = ["RecordingGrid", "fixed_clipping_claim", "note_records", "noting"]

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

_TRAINED = ("reply", "train")
"""Direction and category of a message that follows from training."""

_UNANSWERED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Errors that the SuperLink makes in place of a reply: the client did not answer."""


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
        directory: of the record; made if missing. It holds no record yet.
        truth: the server's directory of the truth, outside the record: it learns the node of each party, and by which
            key a site's notes name each reply. No record numbers reach the server.
        card: the file of the system's card; it can be added later.
        kinds: kinds that replace the defaults, by (record name or message type, `instruction` or `reply`). A message
            type applies to arrays only.
        inputs: narrower inputs, by (record name or message type, direction): a reply lists `data`, `instruction`, both
            or nothing; an instruction lists nothing, which means nothing private. Without an entry: everything that the
            sender held.
        clients: the party of nodes whose identifiers are known beforehand. Others are numbered as they appear.

    Raises:
        ValueError: an argument is refused.
    """

    def __init__(
        self,
        grid: Grid,
        directory: str | Path,
        truth: str | Path | None = None,
        *,
        card: str | Path | None = None,
        kinds: Mapping[tuple[str, str], str] | None = None,
        inputs: Mapping[tuple[str, str], Sequence[str]] | None = None,
        clients: Mapping[int, str] | None = None,
    ) -> None:
        self._grid = grid
        self._observer = Observer(
            "flower",
            directory,
            truth,
            card=card,
            kinds=kinds,
            inputs=inputs,
            clients=clients,
            fixed=[RECORD_KEY_CONFIGS],
        )

    def __enter__(self) -> RecordingGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the replies that never came and close the record. If the app failed, leave the record open."""
        self._observer.close(failed=error is not None)

    def release(
        self, arrays: ArrayRecord | Mapping[str, Any] | Sequence[Any], kind: str = "model_parameters"
    ) -> None:
        """Record what the app publishes, such as its final model: a message to `world`.

        Args:
            arrays: `result.arrays`, a `state_dict`, or a list of arrays, whose names are then 0, 1, ….
            kind: of the message.

        Raises:
            RecordError: the arrays are refused.
        """
        if isinstance(arrays, ArrayRecord):
            tensors: Mapping[str, Any] = array_tensors(arrays, decoded_arrays(arrays))
        elif isinstance(arrays, Mapping):
            tensors = arrays
        else:
            tensors = {str(i): array for i, array in enumerate(arrays)}
        self._observer.release(tensors, kind)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app's grid that `Grid` does not have, such as `close`."""
        return getattr(self.__dict__["_grid"], name)

    def hold(self, name: str, dataset: Any) -> None:
        """Write to the truth records that no client trains on, which controls and many attacks need.

        Args:
            name: `auxiliary` (like the clients' own), `test`, or `public` (in the order of the messages' `index`).
            dataset: the records, as a `DataLoader` takes them.

        Raises:
            ValueError: an argument is refused, or there is no directory of the truth.
        """
        self._observer.hold(name, dataset)

    def round(self, t: int) -> None:
        """Open round `t` of the record, from 0. From then on, round numbers in messages are ignored."""
        self._observer.round(t)

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
        """Return the identifiers of the connected nodes. From now on each of them is a party of the record."""
        nodes = list(self._grid.get_node_ids())
        for node in nodes:
            self._observer.party(node)
        return nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the app's grid knows of the connected nodes."""
        nodes: Iterable[NodeInfo] = self._grid.get_nodes()
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Record messages and push them; return their identifiers."""
        outgoing = list(messages)
        instructions = self._record_instructions(outgoing)
        ids = list(self._grid.push_messages(outgoing))
        self._remember(outgoing, instructions)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and record them."""
        return [self._record_reply(reply) for reply in self._grid.pull_messages(list(message_ids))]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Record messages, push them, and record and return the replies; a reply that is missing is `silence`."""
        outgoing = list(messages)
        instructions = self._record_instructions(outgoing)
        replies = list(self._grid.send_and_receive(outgoing, timeout=timeout))
        ids = self._remember(outgoing, instructions)
        recorded = [self._record_reply(reply) for reply in replies]
        self._observer.record_silence(ids)
        return recorded

    # -- instructions -----------------------------------------------------------------------------------------------

    def _record_instructions(self, messages: list[Message]) -> list[Instruction]:
        """Record the messages of one call, and replace their arrays by the recorded ones."""
        instructions: list[Instruction] = []
        with self._observer.lock:
            for number, of_round in groupby(messages, _round_number):
                self._observer.follow(number)
                batch = list(of_round)
                parties = [self._observer.party(message.metadata.dst_node_id) for message in batch]
                contents = [dict(message.content) for message in batch]
                seqs: list[list[int]] = [[] for _ in batch]
                # Instructions that share a record are receivers of one message.
                for (name, message_type, _), indices in shared_records(batch).items():
                    first = indices[0]
                    receivers = tuple(parties[i] for i in indices)
                    passage = Passage(SERVER, receivers, message_type, _stage(batch[first].content))
                    recorded = _FlowerMessage(self._observer, passage)
                    record = recorded.record(name, contents[first][name])
                    for i in indices:
                        contents[i][name] = record
                        seqs[i] += recorded.seqs
                for i, message in enumerate(batch):
                    if not seqs[i]:
                        passage = Passage(SERVER, (parties[i],), message.metadata.message_type)
                        recorded = _FlowerMessage(self._observer, passage)
                        recorded.end()
                        seqs[i] = recorded.seqs
                    instructions.append(Instruction(parties[i], tuple(seqs[i]), _stage(message.content)))
                    message.content = RecordDict(contents[i])
        return instructions

    def _remember(self, messages: list[Message], instructions: list[Instruction]) -> list[str]:
        """Remember instructions by the identifiers that the push gave them; return these."""
        identifiers = []
        for message, instruction in zip(messages, instructions, strict=True):
            identifiers.append(message.metadata.message_id)
            self._observer.expect(message.metadata.message_id, instruction)
        return identifiers

    # -- replies ----------------------------------------------------------------------------------------------------

    def _record_reply(self, reply: Message) -> Message:
        """Record a reply, and replace its arrays by the recorded ones."""
        identifier = reply.metadata.reply_to_message_id
        with self._observer.lock:
            instruction = self._observer.instruction(identifier)
            if instruction is None:
                raise ValueError(
                    f"reply_to_message_id: {identifier!r} names no instruction that waits for a reply on record. "
                    "Push every message through the RecordingGrid."
                )
            if reply.has_error() and reply.error.code in _UNANSWERED:
                self._observer.record_silence([identifier])
                return reply
            passage = self._observer.reply(identifier, instruction.party, reply.metadata.message_type)
            message = _FlowerMessage(self._observer, passage)
            if reply.has_error():
                code = {"code": np.array(reply.error.code, dtype=np.int64)}
                message.send("error", code | as_tensors("reason", reply.error.reason or ""))
                return reply
            content = dict(reply.content)
            for name, record in reply.content.items():
                content[name] = message.record(name, record)
            message.end()
            reply.content = RecordDict(content)
            return reply


class _FlowerMessage(ObservedMessage):
    """One message of Flower; each of its records is a part."""

    def record(self, name: str, record: Record) -> Record:
        """Record one record of the message; return it with the recorded arrays."""
        if isinstance(record, ArrayRecord):
            if not record:
                return record
            kind = self.kind(name, self.passage.task, self._category)
            if kind is None and name in _MODELS and self._category in ("train", "evaluate", "get_parameters"):
                kind = "model_parameters"
            values = decoded_arrays(record)
            delivery = self.send(name, array_tensors(record, values), kind)
            return received(record, values, delivery)
        # Numbers go by kind: the count of records, the masked vector of SecAgg+, and the rest.
        rest: dict[str, Any] = dict(record)
        kind = self.kind(name)
        if name == RECORD_KEY_CONFIGS:
            kind = own_kind("flower", f"secagg-{rest.get(Key.STAGE) or self.passage.stage}")
            if isinstance(rest.get(Key.MASKED_PARAMETERS), list):
                vector = masked_vector(rest.pop(Key.MASKED_PARAMETERS))
                self.send(name, vector, "flower/masked-vector")
        elif isinstance(record, MetricRecord) and (self.passage.direction, self._category) == _TRAINED:
            for key in _COUNTS:
                if key in rest and not isinstance(rest[key], list):
                    self.send(name, as_tensors("n", rest.pop(key)), "sample_count")
                    break
        if rest:
            tensors: Tensors = {}
            for key, value in rest.items():
                tensors |= as_tensors(safe_name(key), value)
            self.send(name, tensors, kind)
        return record

    @property
    def _category(self) -> str:
        """Return the first part of the message's type: `train` of `train.fit`."""
        return self.passage.task.partition(".")[0]


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
        total = accountant.get_privacy_spent()
        source = f"Flower's accountant ({total.accounting_method}) after {total.num_releases} releases"
        return {**claim, "epsilon": total.epsilon, "delta": total.delta, "source": source}
    history = [[float(strategy.noise_multiplier), 1.0, rounds]]
    return {**claim, "history": history, "source": f"Flower's {type(strategy).__name__}"}
