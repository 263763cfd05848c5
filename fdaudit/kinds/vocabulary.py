"""The vocabulary of message kinds: an entry for each kind, and what follows from all of them.

A new kind is an entry here and a name in `recording/recorder.py`, which imports nothing of fdaudit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from fdaudit.kinds.kind import Kind, TensorForm, Way

__all__ = ["ANSWERS", "KINDS", "MODELS", "OWN_KIND", "UNDECLARED", "WAYS", "is_kind"]

_INDEX = TensorForm(name="index", shapes=("n",), whole=True, when="unless all in order")
_IMAGES = ("n c h w",)
_CLASSES = TensorForm(
    name="classes",
    shapes=("n k",),
    whole=True,
    meaning="the k classes that each row answers for, all different, in any order",
)

_PRIVATE_LABELS = TensorForm(
    name="values", shapes=("n", "n h w"), whole=True, meaning="the labels of the sender's own records"
)
_COUNT = TensorForm(name="n", shapes=("",), whole=True, meaning="how many records the sender trains on")

_KINDS = (
    Kind(
        name="gradient",
        about="named gradients of the mean loss of one batch",
        network="model",
        fixed_size=True,
        way="updates",
    ),
    Kind(
        name="model_update",
        about="named differences: parameters after local training less those before",
        network="model",
        fixed_size=True,
        way="updates",
    ),
    Kind(
        name="model_parameters",
        about="named parameters and buffers of a model",
        network="model",
        fixed_size=True,
        way="updates",
    ),
    Kind(
        name="optimizer_state",
        about="an optimiser's state after local training, as `STATE/PARAMETER`: `exp_avg`, `exp_avg_sq` and `step` of"
        " Adam, or `momentum_buffer` of SGD",
        network="optimizer",
        fixed_size=True,
        way="updates",
    ),
    Kind(
        name="class_counts",
        tensors=(TensorForm(name="counts", shapes=("C",), whole=True, meaning="records per class"),),
        exact=True,
        fixed_size=True,
        way="counts",
        direct=True,
    ),
    Kind(
        name="private_labels",
        tensors=(_PRIVATE_LABELS,),
        fixed_size=True,
        way="labels",
        direct=True,
    ),
    Kind(
        name="sample_count",
        tensors=(_COUNT,),
        exact=True,
        fixed_size=True,
        way="counts",
        direct=True,
    ),
    Kind(
        name="logits",
        tensors=(_INDEX, TensorForm(name="values", shapes=("n C", "n C h w"))),
        way="answers",
        scale="logits",
    ),
    Kind(
        name="soft_labels",
        tensors=(
            _INDEX,
            TensorForm(
                name="values",
                shapes=("n C",),
                meaning="rows sum to 1, or to the scores they are weighted by",
            ),
        ),
        way="answers",
        scale="probabilities",
    ),
    Kind(
        name="hard_labels",
        tensors=(_INDEX, TensorForm(name="values", shapes=("n",), whole=True)),
        way="answers",
        scale="classes",
    ),
    Kind(
        name="top_logits",
        tensors=(
            _INDEX,
            _CLASSES,
            TensorForm(name="values", shapes=("n k",), meaning="their logits, the k largest of each row"),
        ),
        way="answers",
        scale="logits",
        read_as="logits",
    ),
    Kind(
        name="top_soft_labels",
        tensors=(
            _INDEX,
            _CLASSES,
            TensorForm(
                name="values", shapes=("n k",), meaning="their probabilities, the k largest of each row"
            ),
        ),
        way="answers",
        scale="probabilities",
        read_as="soft_labels",
    ),
    Kind(
        name="logit_range",
        tensors=(TensorForm(name="max_abs", shapes=("",), meaning="largest absolute logit"),),
        exact=True,
        fixed_size=True,
        way="answers",
    ),
    Kind(
        name="proxy_indices",
        tensors=(TensorForm(name="index", shapes=("n",), whole=True),),
        way="declined",
    ),
    Kind(
        name="ensemble_labels",
        tensors=(_INDEX, TensorForm(name="values", shapes=("n C", "n", "n C h w"))),
        way="ensemble",
    ),
    Kind(
        name="vote_counts",
        tensors=(_INDEX, TensorForm(name="counts", shapes=("n C",))),
        way="ensemble",
    ),
    Kind(
        name="class_prototypes",
        tensors=(TensorForm(name="values", shapes=("C C",)),),
        fixed_size=True,
        way="prototypes",
    ),
    Kind(
        name="generated_samples",
        tensors=(TensorForm(name="samples", shapes=_IMAGES),),
        fixed_size=True,
        way="generator",
    ),
    Kind(
        name="logit_cotangents",
        tensors=(
            TensorForm(name="values", shapes=("n C", "n C h w"), when="where logits were sent"),
            TensorForm(name="gan_weight", shapes=("",), when="where a discriminator adds its own"),
        ),
        fixed_size=True,
        way="cotangents",
    ),
    Kind(
        name="sample_gradients",
        tensors=(TensorForm(name="values", shapes=_IMAGES),),
        fixed_size=True,
        way="generator",
    ),
    Kind(
        name="discriminator_scores",
        tensors=(TensorForm(name="values", shapes=("n",)),),
        fixed_size=True,
        way="generator",
    ),
    Kind(
        name="generator_parameters",
        about="named parameters of a generator",
        network="generator",
        fixed_size=True,
        way="generator",
    ),
    Kind(
        name="discriminator_parameters",
        about="named parameters of a discriminator",
        network="discriminator",
        fixed_size=True,
        way="generator",
    ),
    Kind(name="release", about="a digest or tensors that a party releases to itself", declared=False),
    Kind(name="oracle_query", tensors=(TensorForm(name="samples", shapes=(*_IMAGES, "n L")),)),
    Kind(name="oracle_answer", tensors=(TensorForm(name="values", shapes=("n C", "n")),)),
    Kind(
        name="silence",
        about="no tensors: the sender did not answer",
        exact=True,
        fixed_size=True,
        declared=False,
    ),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every kind of the vocabulary by its name. A message about all samples in order has no `index`."""

MODELS = tuple(kind.name for kind in _KINDS if kind.network == "model")
"""Kinds with a model, or what training changes in it; the kind that says most of a batch comes first."""

ANSWERS = tuple(kind.name for kind in _KINDS if kind.scale and not kind.read_as)
"""Kinds in which clients answer on samples, as attacks read them."""

UNDECLARED = frozenset(kind.name for kind in _KINDS if not kind.declared)
"""Kinds that any protocol may send without declaring them."""

_by_way = dict[Way, tuple[str, ...]]()
for _way in get_args(Way):
    _by_way[_way] = tuple(kind.name for kind in _KINDS if kind.way == _way)
WAYS: Mapping[Way, tuple[str, ...]] = MappingProxyType(_by_way)
"""The kinds of each way."""

_OWN_KIND = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*")
OWN_KIND = "a kind of the protocol's own: no attack knows its tensors"
"""What is known of a kind with a namespace, such as `acme/prototype-bank`."""


def is_kind(kind: str) -> bool:
    """Return whether messages may have this kind: one of `KINDS`, or one with a namespace."""
    return kind in KINDS or _OWN_KIND.fullmatch(kind) is not None
