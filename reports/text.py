"""Numbers and names for readers: units, intervals, and no invisible characters.

Guarantees:
  * `visible` replaces every control, format, bidirectional-override or surrogate character by its code point, so that
    nothing can reorder or hide the text of a page;
  * a number is rounded for reading only; the page carries the exact value beside it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from fdaudit.goals import GOALS
from fdaudit.types import Figure

__all__ = [
    "amount",
    "bare",
    "bracketed",
    "clip",
    "corrected",
    "detectable",
    "duration",
    "joined",
    "kilobytes",
    "label",
    "level_text",
    "measure",
    "only_if",
    "p_value",
    "party",
    "plural",
    "ranges",
    "sentence",
    "spans",
    "visible",
    "with_interval",
]

NBSP = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"

_NAMES = {
    "accuracy": "Accuracy",
    "bytes_on_wire": "Bytes on the wire",
    "dice": "Mean Dice coefficient",
    "epsilon_lower_bound": "ε from below",
    "fid": "FID",
    "macro_f1": "Macro F1",
    "mean_auc": "Mean AUC over the classes (mAUC)",
    **{name: words for goal in GOALS.values() for name, words in goal.figures.items()},
}

_SUFFIXES = {
    "_prior_max": ", the prior's luckiest",
    "_worst_target": ", worst target",
    "_gain": " gain over the prior",
    "_prior": " of the prior alone",
    "_chance": ", by chance",
    "_max": ", most leaked image",
    "_mean": "",
    "_worst": ", worst client",
}

_PURE = ("auc",)
"""Figures in [0, 1] that are not read as percentages."""

_DIFFERENCES = ("agreement_gain", "token_gain")
"""Differences of two shares, read in percentage points."""

_ROLES = {
    "server": "the server",
    "world": "anyone who holds the released model",
    "eavesdropper": "an eavesdropper on the network",
    "aggregator": "the aggregator",
}


def visible(text: str) -> str:
    """Return `text` with every invisible or reordering character written as its code point; newline and tab stay."""
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            character = f"\u27e8U+{ord(character):04X}\u27e9"
        characters.append(character)
    return "".join(characters)


def clip(text: str, limit: int = 120) -> str:
    """Return `text`, or its start and the number of characters left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… (+{len(text) - limit:,} characters)"


def amount(value: float, unit: str = "") -> str:
    """Return a number with its unit, rounded for reading: fractions as percentages, decibels to a tenth."""
    if unit == "bytes":
        return kilobytes(value)
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "fraction":
        return f"{_decimal(100 * value, 1)}{NBSP}%"
    digits = 1
    if abs(value) < 10 and unit != "dB":
        digits = 3
    text = _decimal(value, digits)
    if unit:
        text += f"{NBSP}{clip(unit, 16)}"
    return text


def _decimal(value: float, digits: int) -> str:
    """Return `value` to `digits` decimals, or to two significant digits if those would show a false zero."""
    vanishes = value != 0 and abs(value) < 0.5 * 10.0**-digits
    text = f"{value:,.{digits}f}"
    if vanishes:
        text = f"{value:.2g}"
    return text.replace("-", MINUS)


def kilobytes(n: float) -> str:
    """Return a number of bytes in decimal multiples: 1 kB is 1,000 bytes."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(n) >= size:
            return f"{n / size:,.1f}{NBSP}{unit}"
    return f"{n:,.0f}{NBSP}B"


def duration(seconds: float) -> str:
    """Return a time in seconds or minutes."""
    if seconds < 60:
        return f"{seconds:.1f}{NBSP}s"
    whole = round(seconds)
    return f"{whole // 60}{NBSP}min {whole % 60:02d}{NBSP}s"


def with_interval(figure: Figure) -> str:
    """Return a figure's value and interval in one line, or the reason why there is none."""
    if figure.value is None:
        return f"unavailable ({figure.unavailable})"
    text = measure(figure, figure.value)
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{measure(figure, figure.low)}, {measure(figure, figure.high)}]"


def bracketed(value: float, low: float | None, high: float | None, unit: str) -> str:
    """Return a value with its unit, and both ends of its interval if it has one."""
    text = amount(value, unit)
    if low is None or high is None:
        return text
    return f"{text} [{amount(low, unit)}, {amount(high, unit)}]"


def measure(figure: Figure, value: float) -> str:
    """Return a value of a figure (its own, or an end of its interval) as that figure's readers expect it."""
    name = figure.name.removesuffix("_mean")
    if name in _DIFFERENCES:
        return f"{_decimal(100 * value, 1)}{NBSP}points"
    if name in _PURE:
        return amount(value)
    return amount(value, figure.unit)


def bare(figure: Figure, value: float) -> str:
    """Return an end of a figure's interval without its unit, which stands beside the value; a % stays."""
    return measure(figure, value).removesuffix(f"{NBSP}{figure.unit}")


_LEAST_P = 1e-4


def p_value(p: float, limit: float) -> str:
    """Return a p-value to two digits: "p = 0.033", or "p just under 0.05" where these hide its side."""
    if p < _LEAST_P:
        return f"p < {_LEAST_P:.4f}"
    text = f"{p:.2g}"
    if p != limit and float(text) == limit:
        side = "under" if p < limit else "over"
        return f"p just {side} {limit:g}"
    return f"p = {text}"


def corrected(p: float, limit: float, tests: int) -> str:
    """Return a p-value with what it was corrected for, and its limit."""
    text = p_value(p, limit)
    if tests > 1:
        text += f" after correction for {tests:,} tests"
    return f"{text} (limit {limit:g})"


def detectable(floor: float, one_victim: float | None) -> str:
    """Return a clause with the least AUC that would have been significant, rounded up."""
    clause = f"could have detected AUC {_up(floor)} or more"
    if one_victim is None:
        return clause
    least = _up(one_victim)
    if least >= "1":
        return f"{clause}, and hardly any for one victim alone"
    return f"{clause}, and {least} or more for one victim alone"


def _up(value: float) -> str:
    return f"{math.ceil(100 * value - 1e-9) / 100:.2f}"


def plural(n: int, noun: str) -> str:
    """Return a count with its noun: "1 test", "3 tests"."""
    ending = "" if n == 1 else "s"
    return f"{n} {noun}{ending}"


def label(name: str) -> str:
    """Return a figure's name for readers; an unknown one with its underscores as spaces."""
    if name in _NAMES:
        return _NAMES[name]
    for suffix, words in _SUFFIXES.items():
        base = name.removesuffix(suffix)
        if base != name and base in _NAMES:
            return _NAMES[base] + words
    return clip(name.replace("_", " "), 80)


def level_text(figure: Figure) -> str:
    """Return the level and method of an interval."""
    parts = []
    if figure.confidence is not None:
        parts.append(amount(figure.confidence, "fraction").replace(".0", ""))
    if figure.method:
        parts.append(clip(figure.method, 40))
    return " ".join(parts)


def party(name: str) -> str:
    """Return a party's name in running text: "the server", "client/3", "the server and client/3 colluding"."""
    names = list[str]()
    for part in name.split("+"):
        names.append(_ROLES.get(part, clip(part, 60)))
    if "+" in name:
        return f"{joined(names)} colluding"
    return joined(names)


def sentence(text: str) -> str:
    """Return `text` with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def only_if(needs: Collection[str]) -> str:
    """Return who must follow the protocol for a claim to hold, in a sentence after a space; empty if no one must."""
    if not needs:
        return ""
    follow = "follow"
    if len(needs) == 1 and not next(iter(needs)).startswith("all"):
        follow = "follows"
    return f" It holds only if {joined(clip(who, 60) for who in needs)} {follow} the protocol."


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, runs of three and more as ranges: "1, 4–7"."""
    parts = []
    for run in _runs(numbers):
        if len(run) > 2:
            parts.append(f"{run[0]}\N{EN DASH}{run[-1]}")
        else:
            parts += map(str, run)
    return ", ".join(parts)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return runs


def spans(numbers: Iterable[int]) -> str:
    """Return round numbers as runs of neighbours: "round 4", "rounds 2 to 4 and 7"."""
    runs = _runs(numbers)
    parts = []
    for run in runs:
        ends = dict.fromkeys((run[0], run[-1]))
        parts.append(" to ".join(map(str, ends)))
    noun = "rounds" if sum(map(len, runs)) > 1 else "round"
    return f"{noun} {joined(parts)}"


def joined(parts: Iterable[str], word: str = "and") -> str:
    """Return an English list: "a", "a and b", "a, b and c"."""
    items: Sequence[str] = list(parts)
    if len(items) < 2:
        return "".join(items)
    gap = "" if word.startswith(",") else " "
    return f"{', '.join(items[:-1])}{gap}{word} {items[-1]}"
