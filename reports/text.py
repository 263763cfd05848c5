"""Numbers and names as a reader sees them: units, intervals, and no invisible characters.

Guarantees:
  * `visible` leaves no control, format, bidirectional-override or surrogate character in a text: each is
    written as its code point, so that nothing can reorder or hide what a page says;
  * a number is rounded for reading only; the page carries the exact value beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from fdaudit.types import Figure

__all__ = [
    "FIGURE_NAMES",
    "amount",
    "clip",
    "duration",
    "joined",
    "kilobytes",
    "label",
    "party",
    "visible",
    "with_interval",
]

NBSP = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"

FIGURE_NAMES = {
    "accuracy": "Accuracy",
    "auc": "Area under the ROC curve",
    "balanced_accuracy": "Balanced accuracy",
    "chebyshev": "Chebyshev distance",
    "epsilon_lower_bound": "ε from below",
    "kl": "KL divergence",
    "label_accuracy": "Labels recovered",
    "lpips": "LPIPS distance",
    "macro_f1": "Macro F1",
    "mse": "Mean squared error",
    "prior_psnr": "PSNR of the prior alone",
    "prior_total_variation": "Total variation of the prior alone",
    "psnr": "PSNR",
    "psnr_gain": "PSNR gain over the prior",
    "ssim": "SSIM",
    "total_variation": "Total variation distance",
    "total_variation_gain": "Total variation gain over the prior",
    "tpr_at_0.1fpr": "True positives at 0.1 % false positives",
    "tpr_at_10fpr": "True positives at 10 % false positives",
    "tpr_at_1fpr": "True positives at 1 % false positives",
}
"""Names of figures as a reader sees them; any other name is shown with its underscores as spaces."""

_ROLES = {
    "server": "the server",
    "world": "anyone who holds the released model",
    "eavesdropper": "an eavesdropper on the network",
    "aggregator": "the aggregator",
}


def visible(text: str) -> str:
    """`text` with every invisible or reordering character written as its code point; newline and tab stay."""
    return "".join(c if _harmless(c) else f"\u27e8U+{ord(c):04X}\u27e9" for c in text)


def _harmless(c: str) -> bool:
    return c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def clip(text: str, limit: int = 120) -> str:
    """`text`, or its start and the number of characters left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… (+{len(text) - limit:,} characters)"


def amount(value: float, unit: str = "") -> str:
    """A number with its unit, rounded for reading: fractions as percentages, decibels to a tenth."""
    if unit == "bytes":
        return kilobytes(value)
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "fraction":
        return f"{_decimal(100 * value, 1)}{NBSP}%"
    digits = 1 if unit == "dB" else 3 if abs(value) < 10 else 1
    return _decimal(value, digits) + (f"{NBSP}{unit}" if unit else "")


def _decimal(value: float, digits: int) -> str:
    """`value` to `digits` decimals, or to two significant digits where those would show a false zero."""
    if value and abs(value) < 0.5 * 10.0**-digits:
        text = f"{value:.1e}"
    else:
        text = f"{value:,.{digits}f}"
    return text.replace("-", MINUS)


def kilobytes(n: float) -> str:
    """A number of bytes in decimal multiples: 1 kB is 1,000 bytes."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(n) >= size:
            return f"{n / size:,.1f}{NBSP}{unit}"
    return f"{n:,.0f}{NBSP}B"


def duration(seconds: float) -> str:
    """A time in seconds or minutes."""
    if seconds < 60:
        return f"{seconds:.1f}{NBSP}s"
    whole = round(seconds)
    return f"{whole // 60}{NBSP}min {whole % 60:02d}{NBSP}s"


def with_interval(figure: Figure) -> str:
    """A figure's value and interval in one line, or the reason why there is none."""
    if figure.value is None:
        return f"unavailable ({figure.unavailable})"
    text = amount(figure.value, figure.unit)
    if figure.low is None or figure.high is None:
        return text
    low, high = amount(figure.low, figure.unit), amount(figure.high, figure.unit)
    level = "" if figure.confidence is None else f"{figure.confidence:.0%} interval ".replace("%", f"{NBSP}%")
    return f"{text} ({level}{low} to {high})"


def label(name: str) -> str:
    """A figure's name as a reader sees it."""
    known = FIGURE_NAMES.get(name)
    return known if known else clip(name.replace("_", " "), 80)


def party(name: str) -> str:
    """A party in running text: "the server", "client/3", "the server with client/3"."""
    return " with ".join(_ROLES.get(part, clip(part, 60)) for part in name.split("+"))


def joined(parts: Iterable[str], word: str = "and") -> str:
    """An English list: "a", "a and b", "a, b and c"."""
    items: Sequence[str] = list(parts)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"
