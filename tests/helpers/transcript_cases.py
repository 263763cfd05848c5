"""Messages and tensors of any kind, and transcripts filled with them; shared by the tests of what is written."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.events import Gaussian, Laplace, NoGuarantee
from fdaudit.kinds import KINDS
from fdaudit.recording.recorder import is_name
from fdaudit.transcript.messages import ALL, Message
from fdaudit.transcript.messages import DTYPES as NAMED
from fdaudit.transcript.transcript import Position, Transcript
from fdaudit.types import TensorInfo

SECRET = b"a secret of thirty-two bytes...."
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


printed = st.characters(min_codepoint=32).filter(str.isprintable)
texts = st.text(printed, max_size=12)
counts = st.integers(0, 2**62)
hexes = st.binary(max_size=32).map(bytes.hex)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=6,
)
noise = st.fixed_dictionaries(
    {
        "sensitivity": st.floats(1e-6, 1e6),
        "scale": st.floats(1e-6, 1e6),
        "unit": st.sampled_from(["record", "client"]),
        "relation": st.sampled_from(["add-or-remove", "replace-one"]),
        "covers": st.sampled_from([("data",), ("messages",), ("data", "messages")]),
        "count": st.integers(1, 100),
    }
)
events = st.one_of(
    st.none(),
    st.text(printed, min_size=1).filter(str.strip).map(lambda reason: NoGuarantee(reason=reason)),
    noise.map(lambda kwargs: Gaussian(**kwargs)),
    noise.map(lambda kwargs: Laplace(**kwargs)),
)
messages = st.builds(
    Message,
    seq=counts,
    round=counts,
    step=counts,
    sender=texts,
    receivers=st.lists(texts, max_size=3).map(tuple),
    kind=st.sampled_from(sorted(KINDS)),
    tensors=st.dictionaries(
        texts.filter(is_name),
        st.builds(
            TensorInfo, dtype=st.sampled_from(sorted(NAMED)), shape=st.lists(counts, max_size=4).map(tuple)
        ),
        max_size=3,
    ),
    fields=st.dictionaries(texts, plain, max_size=3),
    inputs=st.just(ALL) | st.lists(counts | texts, max_size=4).map(tuple),
    defenses=st.lists(st.dictionaries(texts, plain, max_size=2), max_size=2).map(tuple),
    event=events,
    bytes_on_wire=counts,
    payload=st.none() | st.builds(lambda f, n: {"file": f, "length": n}, texts, counts),
    salt=hexes,
    sha256=hexes,
    previous=hexes,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor of any dtype and of up to three dimensions, empty ones too, with every bit pattern."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = torch.empty(shape, dtype=dtype).numel()
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=dtype).reshape(
            shape
        )
    width = torch.empty(0, dtype=dtype).element_size() * size
    raw = bytearray(draw(st.binary(min_size=width, max_size=width)))
    if not raw:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


named = st.dictionaries(
    st.text(string.ascii_letters + "./_é ", min_size=1, max_size=8).filter(is_name), tensors(), max_size=4
)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether names, dtypes, shapes and every bit agree: NaN equals itself here."""
    if a.keys() != b.keys():
        return False
    for name, x in a.items():
        y = b[name]
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        if (
            x.contiguous().reshape(-1).view(torch.uint8).tolist()
            != y.contiguous().reshape(-1).view(torch.uint8).tolist()
        ):
            return False
    return True


def message(
    kind: str,
    sender: str = "client/0",
    receivers: tuple[str, ...] = ("server",),
    *,
    round: int = 0,
    step: int = 0,
    **more: Any,
) -> Message:
    """A message to be appended to a transcript."""
    return Message(seq=0, round=round, step=step, sender=sender, receivers=receivers, kind=kind, **more)


def draft(round: int = 0, step: int = 0, kind: str = "gradient") -> Message:
    return message(kind, round=round, step=step, inputs=("data",))


def filled(directory: Path, contents: list[dict[str, Tensor]], **options: Any) -> tuple[Position, list[Any]]:
    returned = []
    with Transcript(directory, secret=SECRET, **options) as transcript:
        for number, values in enumerate(contents):
            returned.append(transcript.append(draft(number), values))
        return transcript.sync(), returned
