"""A grid in this process: real messages, real client apps with their mods, and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Hands each message to the client app of its node when it is pushed; the reply waits until it is pulled.

    Args:
        nodes: the app of each node.
        order: reorders the identifiers of the nodes each time they are asked for.
        lost: says of an instruction that its reply never comes.
    """

    def __init__(
        self,
        nodes: dict[int, ClientApp],
        order: Callable[[list[int]], list[int]] = list,
        lost: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        self.nodes, self.order, self.lost = nodes, order, lost
        self.contexts = {n: Context(7, n, {}, RecordDict(), {}) for n in nodes}
        self.pushed: list[Message] = []
        self.replied: dict[str, Message] = {}
        self.as_sent: dict[str, RecordDict] = {}
        self.closed = False

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self.order(list(self.nodes))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid4().hex
            ids.append(message.metadata.message_id)
            self.pushed.append(message)
            self._answer(deepcopy(message))
        return ids

    def _answer(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        if self.lost(message):
            return
        try:
            reply = self.nodes[node](message, self.contexts[node])
        except Exception as error:  # as a SuperNode does
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
        self.replied[message.metadata.message_id] = reply
        if reply.has_content():
            self.as_sent[message.metadata.message_id] = deepcopy(reply.content)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replied.pop(i) for i in message_ids if i in self.replied]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def close(self) -> None:
        self.closed = True
