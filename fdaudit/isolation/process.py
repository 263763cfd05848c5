"""The process that runs attacks: it receives trials, asks the oracle through its pipe, and returns guesses.

`fdaudit.isolation.attacker` starts it as `python -m`, with its own environment and no open file except its pipe.

Guarantees:
  * before it loads any code of an attack, it is confined, and it says which layers are missing;
  * when its input ends, it ends at once, even in the middle of an attack.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.isolation.confinement import Allowed, confine
from fdaudit.parallel import malloc
from fdaudit.spec.trust import trust_code

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.view import View
    from fdaudit.isolation.frames import Frame

__all__ = ["main", "serve_cases", "serve_until_the_end"]

_NO_MODULE = "fdaudit_has_no_such_module"
_Outcome = tuple[str, dict[str, Any], "Mapping[str, Tensor]"]
"""The kind, fields and tensors of the frame that answers a request."""


def main() -> None:
    """Serve trials as a new program; its one argument says what it keeps, as JSON."""
    serve_until_the_end(Allowed.from_json(json.loads(sys.argv[1])))


def serve_until_the_end(allowed: Allowed) -> None:
    """Confine this process, and serve trials until the input ends."""
    # This lists the directories of the search path, which rules on files may forbid later.
    PathFinder.find_spec(_NO_MODULE)
    missing = confine(allowed)
    reading = os.fdopen(os.dup(0), "rb")
    writing = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # other output does not go into the pipe

    import torch

    torch.set_num_threads(1)
    trust_code()  # it is told only names of code that the auditor has checked
    serve_cases(reading, writing, missing, at_end=lambda: os._exit(0))


def serve_cases(
    reading: BinaryIO, writing: BinaryIO, missing: Mapping[str, str], at_end: Callable[[], object]
) -> None:
    """Run every incoming trial and send its outcome; call `at_end` when the input ends.

    Args:
        reading: where trials come from.
        writing: where outcomes go.
        missing: the layers of confinement that are missing, each with the reason.
        at_end: called when the input ends.
    """
    from fdaudit.isolation.frames import EndedError, send

    frames: SimpleQueue[Frame | None] = SimpleQueue()
    Thread(target=_read, args=(reading, frames, at_end), daemon=True).start()
    try:
        send(writing, "ready", {"missing": dict(missing)}, {})
    except EndedError:
        return
    while (frame := frames.get()) is not None:
        try:
            if frame.kind == "settings":
                kind, fields, tensors = _settings(frame.fields)
            else:
                kind, fields, tensors = _attacked(frame, frames, writing)
        except EndedError:
            return
        except BaseException as error:  # an attack may be third-party code, and raise anything
            kind, fields, tensors = "failed", {"reason": _said(error)}, {}
        try:
            send(writing, kind, fields, tensors)
        except EndedError:
            return
        except Exception as error:
            send(writing, "failed", {"reason": _said(error)}, {})
        # Other processes may need the memory between two trials, and what PyTorch reserves on a GPU.
        malloc.give_back()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def _said(error: BaseException) -> str:
    from fdaudit.errors import plugin_line

    text = f"{type(error).__name__}: {error}{plugin_line(error)}"
    return text.encode("utf-8", "backslashreplace").decode()


def _read(reading: BinaryIO, frames: SimpleQueue[Frame | None], at_end: Callable[[], object]) -> None:
    """Queue incoming frames until the input ends, or until something comes that is no frame."""
    from fdaudit.isolation.frames import EndedError, receive

    try:
        while True:
            frames.put(receive(reading))
    except Exception as error:
        if not isinstance(error, EndedError):
            sys.stderr.write(f"{_said(error)}\n")
        at_end()
        frames.put(None)


def _settings(asked: Mapping[str, Any]) -> _Outcome:
    """Find an attack's settings, the profile's overridden by the user's, or what is wrong with them."""
    from fdaudit.config import validate
    from fdaudit.errors import SpecError
    from fdaudit.registry import loaded

    try:
        attack = loaded(asked["target"], "fdaudit.attacks", asked["name"])
        params = {**attack.card.profiles[asked["profile"]], **asked["params"]}
        config = validate(attack.Config, params, asked["where"])
        return "settings", {"params": config.model_dump(mode="json")}, {}
    except SpecError as error:
        refusal = {
            "field": error.field,
            "value": repr(error.value)[:200],
            "problem": error.problem,
            "remedy": error.remedy,
        }
        return "wrong", refusal, {}


@lru_cache(maxsize=16)  # a piece of work is one attack on the views of several adversaries
def _opened(directory: Path) -> View:
    """Return an exported view; it is cached for the next trial, after its check."""
    from fdaudit.adversary.view import open_view

    return open_view(directory)


def _attacked(frame: Frame, frames: SimpleQueue[Frame | None], writing: BinaryIO) -> _Outcome:
    """Run one attack on one trial, from its view on disk to its guesses; or say only whether it applies."""
    import torch

    from fdaudit.adversary.forms import with_every_class
    from fdaudit.adversary.oracle import Oracle, serve
    from fdaudit.adversary.single_terms import with_single_terms
    from fdaudit.config import validate
    from fdaudit.isolation.frames import EndedError, Tensors, send
    from fdaudit.isolation.schema import Question, packed_guesses, packed_question, unpacked
    from fdaudit.registry import loaded

    trial = unpacked(frame.fields["trial"], frame.tensors)
    knowledge, task = trial.knowledge, trial.task
    view = with_single_terms(_opened(Path(frame.fields["view"])))
    view = with_every_class(view, knowledge.classes)
    if knowledge.train is not None:
        knowledge.train.execution.begin()
    cls = loaded(frame.fields["target"])
    attack = cls(validate(cls.Config, frame.fields["params"]))
    applicable = attack.applicable(view, knowledge, task)
    if not applicable:
        return "not-applicable", {"reason": str(applicable.reason)}, {}
    if frame.kind == "applies":
        return "applicable", {}, {}

    def run() -> Sequence[Any]:
        generator = torch.Generator().manual_seed(trial.seed)
        answer: Sequence[Any] = attack.run(view, knowledge, task, generator)
        return answer

    def ask(x: Tensor, of: str | None) -> Tensor:
        tensors = Tensors()
        question = packed_question(Question(samples=x, of=of), tensors)
        send(writing, "question", {"question": question}, tensors.named)
        reply = frames.get()
        if reply is None:
            raise EndedError("the auditor has gone")
        if reply.kind != "answer":
            raise RuntimeError(str(reply.fields["reason"]))
        return reply.tensors["values"]

    guesses = serve(run, task.oracle, ask) if isinstance(task.oracle, Oracle) else run()
    tensors = Tensors()
    return "guesses", {"guesses": packed_guesses(guesses, tensors)}, tensors.named


if __name__ == "__main__":
    main()
