"""The process's global generators of random numbers: PyTorch's, Python's `random` and NumPy's `numpy.random`.

A network that someone else wrote may draw from any of them: by a dropout layer, `F.dropout`, `torch.randn_like` in
`forward`, or `random.random()`. So nothing here asks which layers a network has. Where it matters whether a pass drew
numbers, the generators' states before and after it are compared.

Guarantees:
  * equal sources give equal numbers from every global generator;
  * when a block ends, every global generator is as it was before;
  * only one thread at a time is inside a block, so that draws do not mix;
  * a secret source sets all 624 words of each generator on the CPU: a seed of 32 bits could be searched.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

from fdaudit.errors import ProtocolError
from fdaudit.rng import SecretStream

__all__ = ["States", "forked_randomness", "generator_states", "seeded_randomness"]

States = tuple[bytes, object, bytes, int]
"""States of the global generators of a CPU, which are equal if no number was drawn in between."""

_WORDS = 624
_turn = RLock()


@contextmanager
def forked_randomness(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore the global generators when the block ends. Only one thread at a time, so that draws do not mix.

    Args:
        devices: accelerators whose generators are restored as well.
    """
    with _turn, torch.random.fork_rng(devices=list(devices)):
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def seeded_randomness(source: int | SecretStream, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Give every global generator a state that follows from `source`. Restore the states afterwards.

    Args:
        source: a seed, or a secret stream for numbers that no one may guess. The next bytes of the stream are used.
        devices: accelerators whose generators are set as well, to a seed of 63 bits.

    Raises:
        ProtocolError: under a secret source the block replaced the state of PyTorch's generator, by
            `torch.manual_seed` for example. Its draws could then be guessed.
    """
    with forked_randomness(devices):
        if isinstance(source, int):
            seed, words = source, np.random.SeedSequence(source).generate_state(2 * _WORDS)
            # torch.manual_seed would reseed every accelerator, also those that were not forked.
            torch.default_generator.manual_seed(seed)
        else:
            torch.default_generator.set_state(source.torch_state())
            seed = int(source.integers(2**63, 1)[0])
            words = np.frombuffer(source.bytes(8 * _WORDS), dtype="<u4")
        mark = torch.default_generator.initial_seed()
        python, numpy = words[:_WORDS], words[_WORDS:]
        random.setstate((3, (*map(int, python), _WORDS), None))
        np.random.set_state(("MT19937", numpy.astype(np.uint32), _WORDS, 0, 0.0))  # noqa: NPY002
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
        if isinstance(source, SecretStream) and torch.default_generator.initial_seed() != mark:
            raise ProtocolError(
                "A network sets PyTorch's random seed while it is trained under a guarantee, so its draws could be "
                "guessed. Remove `torch.manual_seed` from its `forward`."
            )


def generator_states() -> States:
    """Return the states of the global generators of the CPU."""
    _, words, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return (
        torch.default_generator.get_state().numpy().tobytes(),
        random.getstate(),
        np.asarray(words).tobytes(),
        int(position),
    )
