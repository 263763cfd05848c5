"""Write a card to fill in: comments say what each line means, and what a record shows is filled in."""

from __future__ import annotations

from pathlib import Path

import yaml

from fdaudit.errors import IntegrityError, RunError
from fdaudit.recording.record import check_record, closed_part, read_record
from fdaudit.storage.files import write_atomically
from fdaudit.storage.scratch import scratch
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.transcript import read_messages

__all__ = ["new_card"]

_CARD = """\
# The card of a system that fdaudit did not run. `fdaudit import RECORD --card THIS --out RUN` reads it.
# Whoever fills it in asserts it. The report lists what could not be checked.

name: "FILL IN"          # the system's name
asserted_by: "FILL IN"   # who asserts that the record is complete and this card true

clients: {clients}
task: single-label       # or multi-label
classes: {classes}
input_shape: {shape}  # channels, height, width of an image

# The network: one of fdaudit's (`fdaudit explain models` lists them), or a class of your own. Its tensors must have
# the names and shapes on record{tensors}.
# model: {{name: "import:package.module:Class", params: {{}}}}

# If fdaudit knows the protocol, its name and settings. Otherwise any name, with the facts under `training`.
protocol:
  name: "FILL IN"

# Facts of local training that gradient inversion and shadow models need. Leave out what you do not know.
# training:
#   lr: 0.1
#   batch_size: 32
#   local_steps: 1       # or local_epochs
#   optimizer: sgd

# A protocol of fdaudit that comes close, for rehearsals. Leave it out if none does.
# stand_in: {{name: fedavg, params: {{}}}}

transport: plain         # encrypted: an eavesdropper sees sizes and order only
# release: api           # internal, api, public-weights

# What the messages carry, in words.
messages:
{messages}
# Defences that somebody answers for. Without them, ε of every view is infinite.
# attested:
#   - {{kind: model_update, sender: client, by: "WHO", event: {{event: Gaussian, unit: record, relation: add-or-remove,
#      covers: [data], count: 1, sensitivity: 1.0, scale: 1.0, drawn_from: 1}}}}
# inputs_attested_by: "WHO"

# ε that the system claims for itself.
# claims:
#   - {{adversary: server, epsilon: 8.0, delta: 1.0e-5, unit: record, relation: add-or-remove, source: "WHERE"}}

# The commitment that `fdaudit design` printed before the training.
# design: "0123…"
"""


def new_card(record: Path, out: Path) -> Path:
    """Write a card to fill in, with what a record shows.

    Args:
        record: the record.
        out: the card; must not exist yet.

    Raises:
        UsageError: the file exists, or there is no record.
        IntegrityError: the record is damaged.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another file, or remove it.")
    checked = check_record(record)
    if checked.findings:
        raise IntegrityError(list(checked.findings))
    about = read_record(record)
    with scratch("card") as folder:
        closed_part(about, folder / "transcript")
        messages = list(read_messages(folder / "transcript"))
    text = _CARD.format(
        clients=sum(role(p) == "client" for p in about.parties),
        classes=_classes(messages),
        shape=_shape(messages),
        tensors=_tensors(messages),
        messages=_described(messages),
    )
    write_atomically(out, text.encode("utf-8"))
    return out


def _classes(messages: list[Message]) -> str:
    for message in messages:
        for name in ("values", "counts"):
            info = message.tensors.get(name)
            if message.kind in ("logits", "soft_labels", "class_counts") and info is not None and info.shape:
                return str(info.shape[-1])
    return '"FILL IN"        # number of classes'


def _shape(messages: list[Message]) -> str:
    for message in messages:
        for info in message.tensors.values():
            if message.kind in ("generated_samples", "sample_gradients") and len(info.shape) == 4:
                return str(list(info.shape[1:]))
    return '"FILL IN"'


def _tensors(messages: list[Message]) -> str:
    """Return the first tensors of a model on record, in words; empty if there is none."""
    for message in messages:
        if message.kind in ("model_parameters", "model_update", "gradient"):
            shown = [f"{n} {list(t.shape)}" for n, t in list(message.tensors.items())[:4]]
            more = ", …" if len(message.tensors) > 4 else ""
            return ":\n#   " + ", ".join(shown) + more
    return ""


def _described(messages: list[Message]) -> str:
    kinds = dict.fromkeys((m.kind, role(m.sender)) for m in messages)
    entries = [{"kind": kind, "sender": sender, "what": "FILL IN"} for kind, sender in kinds]
    text = yaml.safe_dump(entries, sort_keys=False, default_flow_style=False)
    return "".join(f"  {line}\n" for line in text.splitlines())
