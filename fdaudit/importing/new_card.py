"""Write a card to fill in: comments say what each line means, and what a record shows is filled in.

Guarantees:
  * every value is written by the YAML emitter, and comments hold no text of the record but printable names;
  * the card is parsed again before it is written, and refused unless it says what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fdaudit.errors import IntegrityError, RunError
from fdaudit.importing.record_check import first_of
from fdaudit.kinds import KINDS, MODELS
from fdaudit.names import visible
from fdaudit.recording.record import check_record, closed_part, held_messages, read_record
from fdaudit.spec.documents import from_yaml
from fdaudit.storage.files import write_atomically
from fdaudit.storage.scratch import scratch
from fdaudit.tasks import SINGLE_LABEL
from fdaudit.transcript.encoding import numbered, shapes_of
from fdaudit.transcript.messages import Message, role

__all__ = ["new_card"]

_FILL_IN = "FILL IN"
_WRAPPERS = ("module.", "_module.", "_orig_mod.")
"""What `DistributedDataParallel`, Opacus and `torch.compile` put before the names of a network's tensors."""
_MOST_SHOWN = 80
"""Most characters of a tensor's name in a comment."""

_HEAD = """\
The card of a system that fdaudit did not run. `fdaudit import RECORD --card THIS --out RUN` reads it.
Whoever fills it in asserts it. The report lists what could not be checked. `fdaudit schema card` has all fields.
"""
_COMMENTS: Mapping[str, str] = {
    "name": "The system's name.",
    "asserted_by": "Who asserts that the record is complete and this card true.",
    "task": "single-label or multi-label",
    "classes": "Number of classes.",
    "prefix": "What stands before the names of the network's tensors on record.",
    "input_shape": "Channels, height and width of an image. For rows of a table: `task: table`, and the length of a"
    " row's vector, as in [30].",
    "protocol": "For a training loop of your own any name, such as `acme-fedavg`, with the facts under `training`.\nA"
    " name that `fdaudit list` shows takes that protocol's settings, under `params`.",
    "transport": "`encrypted`: an eavesdropper sees sizes and order only.",
    "messages": "What the messages carry, in words.",
}
"""What stands above a field, by the field."""
_NETWORK = """\
What clients do to images before the network: `Normalize` of torchvision in numbers, a range such as [-1, 1], or {{}} if
it gets images in [0, 1]. Inversion finds nothing if this is wrong.
preprocess: {{mean: [0.5], std: [0.5]}}

The network: one of fdaudit's (`fdaudit explain models` lists them), or a class of your own. Its tensors must have
the names and shapes on record{tensors}
model: {{name: "import:package.module:Class", params: {{}}}}
A class of your own is code: then set FDAUDIT_TRUST_CODE=1, and PYTHONPATH to its folder.
{names}"""
_TRAINING = """\
Facts of local training that gradient inversion and shadow models need. Leave out what you do not know.
training:
  lr: 0.1
  batch_size: 32
  local_epochs: 1      # or local_steps, if batches do not pass over all records
  optimizer: sgd
  momentum: 0.0
  weight_decay: 0.0
  loss: {name: cross-entropy}   # NLLLoss after log_softmax too; `label_smoothing`, `class_weights`, `reduction: sum`

A protocol of fdaudit that comes close, for rehearsals. Leave it out if none does.
stand_in: {name: fedavg, params: {}}
"""
_RELEASE = "release: api           # internal, api, public-weights\n"
_TAIL = """\
Defences that somebody answers for. Without them, ε of every view is infinite.
attested:
  - {kind: model_update, sender: client, by: "WHO", event: {event: Gaussian, unit: record, relation: add-or-remove,
     covers: [data], count: 1, sensitivity: 1.0, scale: 1.0, drawn_from: 1}}
inputs_attested_by: "WHO"

ε that the system claims for itself.
claims:
  - {adversary: server, epsilon: 8.0, delta: 1.0e-5, unit: record, relation: add-or-remove, source: "WHERE"}

The commitment that `fdaudit design` printed before the training.
design: "0123…"
"""


def new_card(record: Path, out: Path) -> Path:
    """Write a card to fill in, with what a record shows.

    Args:
        record: the record.
        out: the card; must not exist yet.

    Raises:
        UsageError: the file exists, or there is no record.
        IntegrityError: the record is damaged, or holds what a card cannot state.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another file, or remove it.")
    checked = check_record(record)
    if checked.findings:
        raise IntegrityError(list(checked.findings))
    about = read_record(record)
    with scratch("card") as folder:
        closed_part(about, folder / "transcript")
        messages = held_messages(folder / "transcript")
    clients = sum(role(p) == "client" for p in about.parties)
    write_atomically(out, _card(clients, messages).encode("utf-8"))
    return out


def _card(clients: int, messages: list[Message]) -> str:
    """Return the text of a card, after a check that it says nothing but what was meant."""
    sizes = _sizes(messages)
    shape: list[int] | str = _FILL_IN
    if "h" in sizes:
        shape = [sizes[letter] for letter in "chw"]
    values: dict[str, Any] = {
        "name": _FILL_IN,
        "asserted_by": _FILL_IN,
        "clients": clients,
        "task": SINGLE_LABEL.name,
        "classes": sizes.get("C", _FILL_IN),
        "input_shape": shape,
        **_prefix(messages),
        "protocol": {"name": _FILL_IN},
        "transport": "plain",
        "messages": _described(messages),
    }
    names = ""
    model = next(_models(messages), None)
    if model is not None and numbered(model.tensors):
        names = "names: by-position\n"
    network = _NETWORK.format(tensors=_tensors(messages), names=names)
    after = {
        "input_shape": "\n" + _commented(network) + "\n",
        "protocol": "\n" + _commented(_TRAINING) + "\n",
        "transport": _commented(_RELEASE) + "\n",
        "messages": "\n" + _commented(_TAIL),
    }
    text = _commented(_HEAD) + "\n"
    for field, value in values.items():
        if field in _COMMENTS:
            text += _commented(_COMMENTS[field])
        are_numbers = isinstance(value, list) and all(isinstance(number, int) for number in value)
        flow = None if are_numbers else False  # None puts a list of numbers on one line
        text += yaml.safe_dump({field: value}, sort_keys=False, default_flow_style=flow)
        text += after.get(field, "")
    if from_yaml(text, "the card") != values:
        raise IntegrityError(["the record holds a text that would change the meaning of its card"])
    return text


def _commented(text: str) -> str:
    """Return text as comments: one for each of its lines, however a line ends."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _sizes(messages: list[Message]) -> dict[str, int]:
    """Return the first sizes that the messages' tensors show: of classes `C`, and of an image together `c h w`."""
    first: dict[str, int] = {}
    for message in messages:
        if message.kind not in KINDS:
            continue
        sizes = KINDS[message.kind].sizes(shapes_of(message.tensors))
        for letters in ("C", "chw"):
            if letters[0] not in first and sizes.keys() >= set(letters):
                first |= {letter: sizes[letter] for letter in letters}
    return first


def _prefix(messages: list[Message]) -> dict[str, str]:
    """Return what a wrapper of PyTorch put before all names of a model on record, as a field of the card, if any."""
    for model in _models(messages):
        for prefix in _WRAPPERS:
            if model.tensors and all(name.startswith(prefix) for name in model.tensors):
                return {"prefix": prefix}
    return {}


def _tensors(messages: list[Message]) -> str:
    """Return the first tensors of a model on record, as the end of a sentence; a full stop if there is none.

    Numbers instead of names mean that the model was a plain list of arrays: the network's own order names them.
    """
    model = next(_models(messages), None)
    if model is None:
        return "."
    names, positions = sorted(model.tensors), ""
    if numbered(names):
        names.sort(key=int)
        positions = ". Numbers are positions in the network's `state_dict()` or `parameters()`"
    described = [f"{visible(name)[:_MOST_SHOWN]} {list(model.tensors[name].shape)}" for name in names]
    return f"{positions}:\n  {first_of(described, 4)}"


def _models(messages: list[Message]) -> Iterator[Message]:
    """Yield the messages that hold a model, or what training changes in it."""
    return (message for message in messages if message.kind in MODELS)


def _described(messages: list[Message]) -> list[dict[str, str]]:
    kinds = dict.fromkeys((m.kind, role(m.sender)) for m in messages)
    described = []
    for kind, sender in kinds:
        what = KINDS[kind].text if kind in KINDS else _FILL_IN
        described.append({"kind": kind, "sender": sender, "what": what})
    return described
