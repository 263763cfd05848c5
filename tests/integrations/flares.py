"""A server of NVIDIA FLARE in this process: real contexts, events and messages, and no network."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.app_common.app_constant import AppConstants

from fdaudit.integrations.nvflare import JobRecord, RecordingFilter

DATA, RESULT = FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN


class Panics(FLComponent):  # type: ignore[misc]
    """Keeps the reasons for which the job was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.reasons.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))


class Server:
    """Hands tasks to clients and takes their results, as the server's runner does.

    Args:
        record: the component that records.
    """

    def __init__(self, record: JobRecord) -> None:
        self.record, self._panics = record, Panics()
        self.panics = self._panics.reasons
        self.model: Any = None
        """The workflow's global model, as far as it tells it."""
        self.blocks = False
        """Whether another filter refuses results before the record's own gets them."""
        self._contexts = FLContextManager(engine=self, identity_name="server", job_id="job")
        self._filters: dict[str, RecordingFilter] = {}
        for chain in (DATA, RESULT):
            self._filters[chain] = RecordingFilter("fdaudit_record")
            self._filters[chain].set_prop(FilterContextKey.CHAIN_TYPE, chain)

    def get_component(self, name: str) -> Any:
        return {"fdaudit_record": self.record}.get(name)

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        fire_event_to_components(event_type, [self.record, self._panics], fl_ctx)

    def event(self, event_type: str) -> None:
        """Fire an event of the job."""
        context = self._contexts.new_context()
        context.set_prop(AppConstants.GLOBAL_MODEL, self.model, private=True, sticky=True)
        self.fire_event(event_type, context)

    def __enter__(self) -> Server:
        self.event(EventType.START_RUN)
        return self

    def __exit__(self, *error: object) -> None:
        self.event(EventType.END_RUN)

    def task(self, client: str, task_id: str, data: Shareable, name: str = "train") -> Shareable:
        """Return the data of a task as the client gets it."""
        return self.passed(DATA, client, task_id, deepcopy(data), name)

    def result(self, client: str, task_id: str, result: Shareable, name: str = "train") -> Shareable:
        """Return the result of a task as the workflow gets it."""
        return self.passed(RESULT, client, task_id, deepcopy(result), name)

    def context(self, client: str) -> FLContext:
        """Return a new context with a client at the other end."""
        context, peer = self._contexts.new_context(), FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False)
        context.set_peer_context(peer)
        return context

    def passed(
        self, chain: str, client: str, task_id: str, message: Shareable, name: str = "train"
    ) -> Shareable:
        """Return a message, which may be changed, after the filters of a chain."""
        context = self.context(client)
        context.set_prop(FLContextKey.WORKFLOW, "controller")
        context.set_prop(FLContextKey.TASK_NAME, name, sticky=False)
        context.set_prop(FLContextKey.TASK_ID, task_id, sticky=False)
        if chain == RESULT and self.blocks:
            message = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
        elif name in self.record.tasks:
            message = self._filters[chain].process(message, context)
        context.set_prop(
            FLContextKey.TASK_DATA if chain == DATA else FLContextKey.TASK_RESULT, message, sticky=False
        )
        after = EventType.AFTER_TASK_DATA_FILTER if chain == DATA else EventType.AFTER_TASK_RESULT_FILTER
        self.fire_event(after, context)
        return message
