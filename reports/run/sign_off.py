"""What a signer puts a name under: what was audited for whom, when and with what, and what is left to fill in by hand.

Guarantees:
  * it is read from the result and from the day on which the result was made, never from the clock: the same run gives
    the same page;
  * what no one stated reads "not stated", or is left as a line to fill in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fdaudit.result import Result

from ..text import clip

__all__ = ["NOT_STATED", "SIGNATURES", "Provenance", "SignOff", "Word", "glossary", "sign_off"]

NOT_STATED = "not stated"
_DIGITS = 16
"""Digits of a digest on the front page; the section Reproduce has them all."""
_MOST = 400


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a page needs to know in addition to the result.

    Attributes:
        ended: the day on which the result was made, as 2026-11-29; empty if it is not on record.
        signed_by: the id of the key under whose signature this page is passed on; empty for a page by itself.
    """

    ended: str = ""
    signed_by: str = ""


@dataclass(frozen=True, kw_only=True)
class SignOff:
    """The block of the front page above the signature.

    Attributes:
        stated: what was audited, for whom and by whom: heading and text; the text is empty where a line is to be
            filled in by hand.
        record: date, version, protocol, digests and signature: heading and text.
    """

    stated: tuple[tuple[str, str], ...]
    record: tuple[tuple[str, str], ...]

    @property
    def masthead(self) -> tuple[tuple[str, str], ...]:
        """Return what stands beside the title: the date, the version and the head, each with its heading."""
        rows = list[tuple[str, str]]()
        for row in self.record:
            if row[0] in _MASTHEAD:
                rows.append(row)
        return tuple(rows)

    @property
    def length(self) -> int:
        """Return about how many characters it prints."""
        total = 0
        for heading, text in (*self.stated, *self.record):
            total += len(heading) + len(text) + 4
        return total


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of the trade, and what it means."""

    word: str
    meaning: str


_MASTHEAD = ("Date of the result", "fdaudit", "Transcript head")

SIGNATURES = (
    ("Auditor", "I have read the front page and section 8. They state what was measured."),
    ("Owner of the system", "I accept the findings of section 2, and the retest dates that are filled in."),
)
"""Who signs, and for what."""

_STATED = (
    ("requested_by", "Audited for", NOT_STATED),
    ("system", "System", NOT_STATED),
    ("scope", "Scope", NOT_STATED),
    ("authors", "Authors", ""),
    ("owner", "Owner", ""),
    ("retest", "Retest", ""),
)
"""Fields of the spec's `audit`, their headings, and what stands for a missing one."""


def sign_off(result: Result, provenance: Provenance) -> SignOff:
    """Return the block of a result; pure."""
    run = result.run
    audit = run.spec.get("audit")
    fields = audit if isinstance(audit, dict) else {}
    stated = []
    for field, heading, otherwise in _STATED:
        text = fields.get(field)
        if not isinstance(text, str) or not text:
            text = otherwise
        stated.append((heading, clip(text, _MOST)))
    signature = "not signed"
    if provenance.signed_by:
        signature = f"key {provenance.signed_by}; a page cannot vouch for itself: check it"
    return SignOff(
        stated=tuple(stated),
        record=(
            ("Date of the result", provenance.ended or "day not on record"),
            ("fdaudit", clip(run.versions.get("fdaudit", "version not on record"), 40)),
            ("Protocol", clip(run.protocol, 60)),
            ("Spec", f"{clip(run.spec_sha256[:_DIGITS], 64)}…"),
            ("Transcript head", f"{clip(run.head[:_DIGITS], 64)}…"),
            ("Evidence file", signature),
        ),
    )


_WORDS = (
    (r"ε", "ε", "bound on what a release tells of one record; smaller is better, 0 is nothing"),
    (r"δ", "δ", "chance that the bound fails"),
    (r"\bAUC\b", "AUC", "how well members and others are told apart; 0.5 is guessing, 1 is perfect"),
    (r"\bPSNR\b|\bdB\b", "PSNR", "closeness of a picture to the true one, in dB; higher is closer"),
    (
        r"\btotal variation\b",
        "total variation",
        "distance of guessed and true shares; 0 is exact, 1 the farthest",
    ),
    (r"\bprior\b", "prior", "what the adversary would guess without the run"),
    (r"\bdp-sgd\b", "dp-sgd", "training with clipped gradients and noise, which gives an ε"),
    (r"\bp (?:=|<|just)", "p", "chance of a figure as high if nothing leaks"),
    (r"\bpate\b", "pate", "answers by noisy votes, which give an ε"),
    (r"\bshadow", "shadow model", "a model that the adversary trains to imitate the victim's"),
)
"""How a word is recognised, the word, and its meaning."""


def glossary(texts: Iterable[str], explained: str = "") -> tuple[Word, ...]:
    """Return the words of the trade in some texts, with their meanings.

    Args:
        texts: the texts.
        explained: what the page explains elsewhere; the words in it are left out.
    """
    text = " ".join(texts)
    words = []
    for pattern, word, meaning in _WORDS:
        if re.search(pattern, text) and not re.search(pattern, explained):
            words.append(Word(word=word, meaning=meaning))
    return tuple(words)
