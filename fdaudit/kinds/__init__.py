"""The kinds of messages: one object for each, with everything that fdaudit knows of a kind by its name.

Records, cards, attacks and reports read the same object. It imports nothing but the standard library. Which protocols
send a kind and which attacks read it follows from their own declarations.
"""

from fdaudit.kinds.kind import Kind, Shapes, TensorForm
from fdaudit.kinds.vocabulary import ANSWERS, KINDS, MODELS, OWN_KIND, UNDECLARED, WAYS, is_kind

__all__ = [
    "ANSWERS",
    "KINDS",
    "MODELS",
    "OWN_KIND",
    "UNDECLARED",
    "WAYS",
    "Kind",
    "Shapes",
    "TensorForm",
    "is_kind",
]
