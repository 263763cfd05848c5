"""Record what a job of NVIDIA FLARE sends: a component of its server, and the filters that lead to it.

```python
job.to_server(JobRecord("/var/lib/server/record"))
```
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.job_config.defs import FilterType

from .nvflare_values import Flat
from .observer import (
    SERVER,
    Instruction,
    ObservedMessage,
    Observer,
    Passage,
    checked_inputs,
    checked_kinds,
    own_kind,
)
from .tensors import as_tensors
from .truth import hold_dataset, note_uses

__all__ = ["JobRecord", "NotingFilter", "RecordingFilter", "hold_dataset"]

_KINDS = {"WEIGHTS": "model_parameters", "WEIGHT_DIFF": "model_update"}
"""Kinds by the kind of data in a DXO."""
_RECORDS = "fdaudit.records"
"""Key of the meta data under which a site lists the records behind a result. It never leaves the site."""

_DXO = "DXO"
"""The content type of a message with a DXO, and the key of the DXO in it."""

_ENVELOPE = {
    *(value for name, value in vars(ServerCommandKey).items() if name.isupper()),
    *(AppConstants.START_ROUND, AppConstants.CURRENT_ROUND, AppConstants.NUM_ROUNDS),
    *(MetaKey.AUTH_TOKEN, MetaKey.AUTH_TOKEN_SIGNATURE, MetaKey.JOB_ID, MetaKey.SITE_NAME),
}
"""Headers of NVIDIA FLARE's own, such as the client with its token. Names with a leading underscore are its own too."""


class JobRecord(FLComponent):  # type: ignore[misc]  # the check of types leaves NVIDIA FLARE out
    """Records the tasks that a job's server sends to its clients, and their results.

    Guarantees:
      * a task is on record before it is sent, and a result before the workflow gets it;
      * arrays that a client or the workflow gets equal those on record, bit for bit;
      * a client is the same `client/N` for the whole record;
      * the last global model is on record as released to `world`;
      * a result that never comes is on record as `silence`, an error as `nvflare/error`;
      * encrypted or compressed values are on record as `nvflare/processed-ALGORITHM`;
      * a failed recording, or a task that passes by the record, ends the job. No message is dropped or changed, so that
        no model is made from a part of the results. The record stays open at its last closed round.

    A round of the record opens with each task that has another round, or another workflow, than the task before.

    Args:
        directory: of the record, on the server's machine.
        truth: directory of the truth, on the server's machine: it learns the client of each party, and by which key a
            site's notes name each result. No record numbers reach the server.
        card: file of the system's card, on the server's machine.
        tasks: names of the job's tasks.
        kinds: kinds that replace the defaults, by direction (`instruction`, `reply`) and then by data kind, task, or
            key of the DXO's meta data: `{"reply": {"train": "gradient"}}`.
        inputs: narrower inputs, by direction and then by data kind or task: a reply lists `data`, `instruction`, both
            or nothing; an instruction lists nothing. Without an entry: everything that the sender held.
        clients: names of clients in the order of their numbers: the first is `client/0`. Others take the next numbers
            as they appear.
        release: whether the last global model is published.

    Raises:
        ValueError: an argument is refused.
    """

    def __init__(
        self,
        directory: str,
        truth: str | None = None,
        card: str | None = None,
        tasks: Sequence[str] = ("train",),
        kinds: Mapping[str, Mapping[str, str]] | None = None,
        inputs: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        clients: Sequence[str] | None = None,
        release: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(tasks, str) or not tasks:
            raise ValueError(f"tasks: {tasks!r} names no tasks. Write a list such as ['train'].")
        self.directory, self.truth, self.card = directory, truth, card
        if clients is not None and (isinstance(clients, int | str) or len(set(clients)) < len(clients)):
            raise ValueError(f"clients: {clients!r} is no list of different names.")
        self.tasks, self.kinds, self.inputs = list(tasks), kinds, inputs
        self.clients, self.release = clients, release
        checked_kinds(_by_name(kinds))
        checked_inputs(_by_name(inputs))
        self._open: Observer | None = None
        """The record of the job, from its begin to its end."""
        self._observer: Observer | None = None
        """The same until a recording fails."""
        self._model: Any = None
        """The global model after the last aggregation."""
        self._aborted = False
        self._workflow, self._number = None, -1

    def add_to_fed_job(self, job: Any, ctx: Any) -> None:
        """Add the record to a job's server, with a filter for the data and one for the results of each task."""
        record_id = job.add_component("fdaudit_record", self, ctx)
        for task in self.tasks:
            for chain in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
                job.add_filter(RecordingFilter(record_id), chain, [task], ctx)

    def add_to(self, recipe: Any) -> None:
        """Add the record to the job that a recipe makes; a recipe has no public way to add a component."""
        recipe._job.to_server(self)

    # -- the job's life ---------------------------------------------------------------------------------------------

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin the record with the job and close it with the job. Refuse what passes by the record."""
        if event_type == EventType.START_RUN:
            self._guarded(fl_ctx, self._begin)
        elif event_type == EventType.FATAL_SYSTEM_ERROR:
            self._aborted = True
        elif event_type == AppEventType.AFTER_SHAREABLE_TO_LEARNABLE:
            self._model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        elif event_type == EventType.END_RUN:
            self._guarded(fl_ctx, lambda: self._end(fl_ctx))
        elif event_type == EventType.AFTER_TASK_DATA_FILTER:
            self._guarded(fl_ctx, lambda: self._refuse_passed_by(fl_ctx, sent=True))
        elif event_type == EventType.AFTER_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            blocked = result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR  # by another filter
            if blocked and self._awaits(fl_ctx):
                self.pass_on(result, fl_ctx, FilterChainType.TASK_RESULT_CHAIN)
            self._guarded(fl_ctx, lambda: self._refuse_passed_by(fl_ctx, sent=False))

    def _begin(self) -> None:
        self._open = self._observer = Observer(
            "nvflare",
            self.directory,
            self.truth,
            card=self.card,
            kinds=_by_name(self.kinds),
            inputs=_by_name(self.inputs),
            clients={name: f"client/{n}" for n, name in enumerate(self.clients or ())},
        )

    def _end(self, fl_ctx: FLContext) -> None:
        observer, is_recording = self._open, self._observer is not None
        self._open = self._observer = None
        if observer is None:
            return
        abort = fl_ctx.get_prop(ReservedKey.RUN_ABORT_SIGNAL)
        failed = not is_recording or self._aborted or (abort is not None and abort.triggered)
        model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) or self._model
        weights = None
        if isinstance(model, Mapping):
            weights = model.get("weights")
        if self.release and weights and not failed:
            observer.release(Flat(weights).tensors)
        observer.close(failed)

    def _awaits(self, fl_ctx: FLContext) -> bool:
        """Return whether a task is on record without a result."""
        return self._observer is not None and self._observer.instruction(_task_id(fl_ctx)) is not None

    def _refuse_passed_by(self, fl_ctx: FLContext, sent: bool) -> None:
        """Refuse a task that was sent, or whose result came, without being recorded."""
        if self._observer is not None and self._awaits(fl_ctx) != sent:
            task = fl_ctx.get_prop(FLContextKey.TASK_NAME)
            raise ValueError(f"tasks: {task!r} passes by the record. Name it in `tasks`.")

    def _guarded(self, fl_ctx: FLContext, act: Callable[[], Any]) -> Any:
        """Return what a function returns. If it fails, end the job and record nothing more."""
        try:
            return act()
        except Exception as error:  # whatever it is, the job must not go on unrecorded
            self._observer = None
            self.system_panic(f"The recording failed. {error}", fl_ctx)
            return None

    # -- messages ---------------------------------------------------------------------------------------------------

    def pass_on(self, shareable: Shareable, fl_ctx: FLContext, chain: str) -> Shareable:
        """Record the data or the result of a task; return it with the recorded arrays."""
        recorded = self._guarded(fl_ctx, lambda: self._record(shareable, fl_ctx, chain))
        return shareable if recorded is None else recorded

    def _record(self, shareable: Shareable, fl_ctx: FLContext, chain: str) -> Shareable:
        observer = self._observer
        if observer is None:  # the recording failed, and the job is ending
            return shareable
        task_id, task = _task_id(fl_ctx), str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        client = fl_ctx.get_peer_context().get_identity_name()
        with observer.lock:
            if chain != FilterChainType.TASK_DATA_CHAIN:
                passage = observer.reply(task_id, observer.party(client), task)
                return _FlareMessage(observer, passage).record(shareable)
            workflow = fl_ctx.get_prop(FLContextKey.WORKFLOW)
            number = shareable.get_header(AppConstants.CURRENT_ROUND)
            if workflow != self._workflow:
                self._workflow, self._number = workflow, -1
            if isinstance(number, int):  # a task that is sent late belongs to the round that is open
                self._number = max(self._number, number)
            observer.follow((self._workflow, self._number))
            party = observer.party(client)
            message = _FlareMessage(observer, Passage(SERVER, (party,), task))
            recorded = message.record(shareable)
            observer.expect(task_id, Instruction(party, tuple(message.seqs)))
            return recorded


class RecordingFilter(Filter):  # type: ignore[misc]
    """Passes the data or the results of tasks through a `JobRecord`, which records them.

    In the list of a task's filters it stands last for data, and first for results.

    Args:
        record_id: identifier of the `JobRecord` among the server's components.
    """

    def __init__(self, record_id: str) -> None:
        super().__init__()
        self.record_id = record_id

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a message with the recorded arrays."""
        record = fl_ctx.get_engine().get_component(self.record_id)
        if isinstance(record, JobRecord):
            return record.pass_on(shareable, fl_ctx, self.get_prop(FilterContextKey.CHAIN_TYPE))
        self.system_panic(f"record_id: no component {self.record_id!r} is a JobRecord. Add one.", fl_ctx)
        return shareable


class NotingFilter(Filter):  # type: ignore[misc]
    """Notes at a site which of its records were used in a result, and removes their numbers from the result.

    The site lists them in the meta data of its result, for example `FLModel(..., meta={"fdaudit.records": [17, 42]})`.
    The import joins the notes with the record. The filter stands first in the client's filters on results.

    Args:
        truth: the site's own directory of the truth.
        site: the site's number or name. Default: the client's name.
    """

    def __init__(self, truth: str, site: int | str | None = None) -> None:
        super().__init__()
        self.truth, self.site = truth, site

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a result without the numbers of records.

        Raises:
            ValueError: the list does not have whole numbers. The client then sends an error instead of the result.
        """
        dxo = shareable.get(_DXO)
        meta = dxo.get("meta") if isinstance(dxo, dict) else None
        if not isinstance(meta, dict) or _RECORDS not in meta:
            return shareable
        ids = meta[_RECORDS]
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise ValueError(f"{_RECORDS}: {ids!r} lists no records. Write a list such as [0, 1].")
        site = self.site
        if site is None:
            site = fl_ctx.get_identity_name()
        note_uses(Path(self.truth), _task_id(fl_ctx), str(site), ids)
        remaining = dict(meta)
        del remaining[_RECORDS]
        result = copy.copy(shareable)
        result[_DXO] = dxo | {"meta": remaining}
        return result


class _FlareMessage(ObservedMessage):
    """One task's data or result."""

    def record(self, shareable: Shareable) -> Shareable:
        """Record every part of a message; return it with the recorded arrays."""
        recorded = copy.copy(shareable)
        content = dict(shareable)
        headers = content.pop(ReservedHeaderKey.HEADERS, None) or {}
        dxo = content.get(_DXO)
        if headers.get(ReservedHeaderKey.CONTENT_TYPE) == _DXO and isinstance(dxo, dict):
            data, meta = self._dxo(dxo.get("kind"), dxo.get("data"), dxo.get("meta"))
            recorded[_DXO] = dxo | {"data": data, "meta": meta}
            del content[_DXO]
        if content:
            recorded.update(self._part("content", content))
        added: dict[Any, Any] = {}
        for key, header in headers.items():
            if not str(key).startswith("_") and key not in _ENVELOPE:
                added[key] = header
        if added:
            recorded[ReservedHeaderKey.HEADERS] = headers | self._part("headers", added)
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            self.send("error", as_tensors("code", str(code)))
        self.end()
        return recorded

    def _dxo(self, kind: Any, data: Any, meta: Any) -> tuple[Any, Any]:
        """Record a DXO, or the leaves of a collection; return its data and meta data with the recorded arrays."""
        kind = str(getattr(kind, "value", kind))
        if isinstance(meta, dict) and _RECORDS in meta:
            raise ValueError(
                f"{_RECORDS}: numbers of records reached the server. Add a NotingFilter at the site."
            )
        if kind == DataKind.COLLECTION and isinstance(data, dict):
            data = {key: self._leaf(part) for key, part in data.items()}
        elif data:
            data = self._data(kind, data, meta if isinstance(meta, dict) else {})
        if isinstance(meta, dict) and meta:
            meta = self._meta(meta)
        return data, meta

    def _meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Record meta data: values with a kind of the user's each on its own, the rest together."""
        rest = {}
        for key, value in meta.items():
            kind = self.kind(str(key))
            if kind:
                self._part(str(key), {"n": value}, kind)
            else:
                rest[key] = value
        if not rest:
            return meta
        recorded: dict[str, Any] = self._part("meta", rest)
        return meta | recorded

    def _leaf(self, part: Any) -> Any:
        if not isinstance(part, DXO):
            return self._part("content", part)
        leaf = copy.copy(part)
        leaf.data, leaf.meta = self._dxo(part.data_kind, part.data, part.meta)
        return leaf

    def _data(self, kind: str, data: Any, meta: dict[str, Any]) -> Any:
        """Record the data of a DXO. Encrypted or compressed layers are a message of their own."""
        plain_kind = self.kind(kind, self.passage.task) or _KINDS.get(kind)
        algorithm, marks = meta.get(MetaKey.PROCESSED_ALGORITHM), meta.get(MetaKey.PROCESSED_KEYS)
        if not algorithm or not isinstance(data, dict):
            return self._part(kind, data, plain_kind)
        processed, plain = {}, {}
        for key, value in data.items():
            is_plain = isinstance(marks, dict) and not marks.get(key, True)
            if is_plain:
                plain[key] = value
            else:
                processed[key] = value
        changed = copy.copy(data)
        changed.update(self._part(kind, processed, own_kind("nvflare", f"processed-{algorithm}")))
        if plain:
            changed.update(self._part(kind, plain, plain_kind))
        return changed

    def _part(self, name: str, value: Any, kind: str | None = None) -> Any:
        """Record a part of the message; return it with the recorded arrays."""
        flat = Flat(value)
        return flat.received(self.send(name, flat.tensors, kind))


def _task_id(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_prop(FLContextKey.TASK_ID))


def _by_name(options: Mapping[str, Mapping[str, Any]] | None) -> dict[tuple[str, str], Any]:
    """Return options by name and direction; a job's configuration has them by direction, then by name."""
    flat = {}
    for direction, by_name in (options or {}).items():
        for name, value in by_name.items():
            flat[name, direction] = value
    return flat
