"""A claim for every number of a report's JSON: where it stands, and what it must be.

Guarantees:
  * `differences` names every number that no claim is about, every claim about a number that is not there, and every
    number that is not what its claim says;
  * a claim that cannot recompute a number says so by a pattern of `LIMITED`, whose reason is given there, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Path = tuple[str | int, ...]

LIMITED: Mapping[str, str] = {
    r"timings/.*": "A clock was read once; compared with timings.json.",
    r"result/cells/\d+/params/.*": "Settings with defaults filled in; compared with the cell's file, and "
    "where the spec sets one with the spec.",
    r"result/cells/\d+/canaries/queries/.*": "Questions about canaries; compared with the cell's file.",
    r"result/cells/\d+/targets/\d+/shares/guess/\d+": "What an attack answered, kept nowhere but in its cell's file: "
    "compared with that, and held to lie in [0, 1].",
    r"result/cells/\d+/targets/\d+/images/\d+/guessed_label": "What an attack answered, kept nowhere but in its "
    "cell's file; compared with that.",
    r"result/cells/\d+/targets/\d+/images/\d+/(psnr|ssim)": "The guess is kept as a picture of 8 bits only: it "
    "must lie where their rounding allows. Means, gains and maxima are recomputed from it exactly.",
    r"result/cells/\d+/targets/\d+/images/\d+/(rank|gallery)": "Galleries are drawn, and a rank may hang on a grey "
    "level of a guess that is kept with 8 bits: within the gallery. A victim's rate and interval follow from them.",
    r"result/cells/\d+/(targets/\d+/)?figures/\d+/(p|value \((rank|chance)\))": "Draws of records in place of the "
    "true ones, whose law is tested in tests/metrics/test_identification.py: compared with the cell's file.",
    r"result/cells/\d+/figures/\d+/value \(Fréchet\)": "Its images are kept with 8 bits: within 1 %.",
    r"result/cells/\d+/controls/.*": "A control's data are made and thrown away: compared with the file of the "
    "attack's controls; its ends hold its value between them.",
    r"result/utility/curve/\d+/(accuracy|macro_f1)": "Models of references, and of the server before the end where "
    "nobody was sent them, are not kept: compared with utility.csv, and a whole number of test records right.",
    r"result/utility/final/\d+/figure/value": "As above, of references.",
}
"""What is held to less than a recomputation, and why: by a pattern of paths."""


class Claim(NamedTuple):
    """A number must lie between these, both included; `limit` is the pattern of `LIMITED`, if any."""

    low: float
    high: float
    limit: str


class Claims:
    """What is claimed about one document."""

    def __init__(self) -> None:
        self.made: dict[Path, list[Claim]] = {}
        self.wrong: list[str] = []

    def equal(self, path: Path, value: float, relative: float = 1e-9, absolute: float = 1e-12) -> None:
        """The number at a path is this, but for rounding."""
        slack = absolute + relative * abs(value)
        self._add(path, Claim(float(value) - slack, float(value) + slack, ""))

    def limited(self, path: Path, low: float, high: float | None = None, mark: str = "") -> None:
        """The number at a path lies between these, or is this one; `LIMITED` says why no more is claimed."""
        text = text_of(path) + (f" ({mark})" if mark else "")
        (pattern,) = [p for p in LIMITED if re.fullmatch(p, text)][:1] or [""]
        if not pattern:
            self.wrong.append(f"{text}: held to less than a recomputation without a reason in LIMITED")
        self._add(path, Claim(float(low), float(low if high is None else high), pattern))

    def _add(self, path: Path, claim: Claim) -> None:
        self.made.setdefault(path, []).append(claim)

    @property
    def limits(self) -> set[str]:
        """The patterns of `LIMITED` that were needed."""
        return {claim.limit for claims in self.made.values() for claim in claims} - {""}


def text_of(path: Path) -> str:
    """A path as text."""
    return "/".join(map(str, path))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Every number of a plain object with its path; truth values are none."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def differences(document: Any, claims: Claims) -> list[str]:
    """What is wrong with a document by these claims, a line each; empty where every number is claimed and right."""
    found, seen = list(claims.wrong), set()
    for path, value in leaves(document):
        seen.add(path)
        if path not in claims.made:
            found.append(f"{text_of(path)}: {value!r} is claimed by no recomputation")
        found += [
            f"{text_of(path)}: {value!r} is not in [{claim.low!r}, {claim.high!r}]"
            for claim in claims.made.get(path, [])
            if not (claim.low <= value <= claim.high and math.isfinite(value))
        ]
    found += [
        f"{text_of(p)}: is recomputed, but no number stands there" for p in claims.made if p not in seen
    ]
    return found
