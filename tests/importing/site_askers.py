"""Askers that try to get records, classes and members out of a site's answers, and what each gets.

`python -m tests.importing.site_askers` prints the rows of `docs/results/site-askers.csv`. Each asker has the source
code, may send any number of files, and spends the whole budget of the party that it asks about. Undefended means exact
figures, as the auditor's own scorer gives them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.errors import UsageError
from fdaudit.importing.coarse_scores import MOST_ANSWERS, coarse_shares
from fdaudit.metrics import psnr, score_label_distribution, score_reconstruction
from fdaudit.storage.answered import LEDGER

from .site_cases import Asker, Two, two

__all__ = ["Row", "rows"]

VICTIM = "client/0"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    asker: str
    asked: int | str
    got: str
    prior: str
    undefended: str


# -- class shares -------------------------------------------------------------------------------------------------


def shares_of(made: Two) -> Tensor:
    """Return the victim's true class shares (C,)."""
    return made.opened.label_shares(VICTIM)


def shares_by_one_class_each(asker: Asker) -> Tensor:
    """Ask for a guess of one class at a time: what is left is one minus its share. Return the shares (C,)."""
    classes = torch.eye(10, dtype=torch.float64)
    left = torch.tensor([asker.about_shares(one.tolist())[0] for one in classes], dtype=torch.float64)
    found = (1 - left).clamp(min=0)
    return found / found.sum().clamp(min=1e-9)


def parcels_by_any_number_of_questions(made: Two) -> Tensor:
    """Return what an asker without a budget ends with: the parcels themselves, of which every answer is a function."""
    y, classes = made.source.case.records(VICTIM)[1], made.source.case.dataset.classes
    return coarse_shares(class_counts(y, classes))


def share_by_bisection(asker: Asker, prior: Tensor) -> float:
    """Ask about one class with guesses that move the rounding's edges, and return its share.

    A guess of `1 - d` for class 0 and `d` for a class that has more than `d` leaves `1 - d - share`.
    """
    low, high = 0.0, 1.0
    other = int(prior[1:].argmax()) + 1
    shift = 0.0
    for _ in range(MOST_ANSWERS):
        guess = torch.zeros(10, dtype=torch.float64)
        guess[0], guess[other] = 1 - shift, shift
        left, _ = asker.about_shares(guess.tolist())
        # Rounded up to 0.05: the true distance lies in (left - 0.05, left].
        low, high = max(low, 1 - shift - left), min(high, 1 - shift - left + 0.05)
        if high <= low:  # the answers are about parcels, and contradict each other elsewhere
            break
        middle = (low + high) / 2
        shift = (1 - middle - left) % 0.05 if left else 0.0
    return (low + high) / 2


# -- images -------------------------------------------------------------------------------------------------------


def grey(n: int) -> Tensor:
    return torch.full((n, 1, 8, 8), 0.5)


def behind(made: Two) -> tuple[Tensor, list[int]]:
    """Return the records behind the victim's first message, and the message."""
    messages = made.uploads(VICTIM)[:1]
    return made.opened.behind(VICTIM, messages)[0], messages


def membership(made: Two, asker: Asker, *, inside: bool, known: int = 0) -> list[float]:
    """Return the answers for a candidate that is, or is not, behind a message, with a prior for the other records.

    Args:
        made: the federation.
        asker: the asker.
        inside: whether the candidate is behind the message.
        known: how many other records of the message the asker has already.
    """
    x, messages = behind(made)
    other = made.opened.behind("client/1", made.uploads("client/1")[:1])[0]
    candidate = x[-1:] if inside else other[:1]
    auxiliary = made.run.case.auxiliary[0]
    answers = []
    for number in range(MOST_ANSWERS // 2):
        fill = auxiliary.mean(0, keepdim=True).expand(len(x) - 1 - known, -1, -1, -1)
        if number % 2:
            fill = auxiliary[number : number + len(x) - 1 - known]
        answers.append(asker.about_images(torch.cat([x[:known], candidate, fill]), messages))
    return answers


def climbed(made: Two, asker: Asker, start: Tensor, moves: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return the images that a hill climb ends with: a move is kept if the answer does not fall."""
    _, messages = behind(made)
    best, reached = start, asker.about_images(start, messages)
    for number in range(MOST_ANSWERS - 1):
        tried = moves(best, number).clamp(0, 1)
        answer = asker.about_images(tried, messages)
        if answer > reached:
            best, reached = tried, answer
    return best


def noise(scale: float) -> Callable[[Tensor, int], Tensor]:
    def moves(images: Tensor, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        return images + scale * torch.randn(images.shape, generator=generator)

    return moves


def nearest(images: Tensor, records: Tensor) -> float:
    """Return the PSNR of the closest pair, in dB, at most 100."""
    pairs = [psnr(image.expand_as(records), records).max() for image in images]
    return min(100.0, float(torch.stack(pairs).max()))


# -- undefended ---------------------------------------------------------------------------------------------------


def exact_most(made: Two, images: Tensor) -> float:
    """Return the PSNR of the most leaked image in dB, as the auditor's own scorer gives it."""
    records, _ = behind(made)
    figures = score_reconstruction(images, records, None, np.random.default_rng(0)).figures
    return figures["psnr_max"].value or 0.0


def rebuilt_by_exact_figures(made: Two) -> float:
    """Return the largest pixel error of a record that 65 exact answers rebuild.

    One image is asked about, then the image with one pixel changed, 64 times. The mean squared error is linear in the
    record.
    """
    x, _ = behind(made)
    base = made.run.case.auxiliary[0][:1].double().clamp(0.2, 0.8)
    step = 0.01

    def squares(image: Tensor) -> tuple[float, int]:
        errors = (x.double() - image).square().flatten(1).mean(1)
        return float(errors.min()), int(errors.argmin())

    whole, place = squares(base)
    found = torch.zeros(64, dtype=torch.float64)
    for pixel in range(64):
        moved = base.clone().flatten()
        moved[pixel] += step
        change = 64 * (squares(moved.view_as(base))[0] - whole)
        found[pixel] = base.flatten()[pixel] - (change - step**2) / (2 * step)
    return float((found - x[place].double().flatten()).abs().max())


def shares_by_exact_figures(made: Two) -> float:
    """Return the largest error of class shares from ten exact answers."""
    truth = shares_of(made)
    left = [
        score_label_distribution(truth, one)["label_tv"].value or 0.0
        for one in torch.eye(10, dtype=torch.float64)
    ]
    return float((1 - torch.tensor(left, dtype=torch.float64) - truth).abs().max())


# -- the budget ---------------------------------------------------------------------------------------------------


def answered_under_other_names(made: Two, asker: Asker) -> int:
    """Return how often a site answers about one party's images under other names, adversaries and messages."""
    messages, answers = made.uploads(VICTIM), 0
    for number in range(MOST_ANSWERS + 5):
        subset = messages[number % 3 :] or messages
        adversary = ("server", "eavesdropper", "server+client/1")[number % 3]
        records = made.opened.behind(VICTIM, subset)[0]
        try:
            asker.about_images(grey(len(records)), subset, name=f"other-{number}", adversary=adversary)
        except UsageError as error:
            if "answers about" not in str(error):
                raise
            continue
        answers += 1
    return answers


def answers_until_refused(asker: Asker) -> int:
    """Return how often a site answers about class shares until it refuses."""
    for number in range(3 * MOST_ANSWERS):
        try:
            asker.about_shares([0.1] * 10)
        except UsageError:
            return number
    return 3 * MOST_ANSWERS


# -- the table ----------------------------------------------------------------------------------------------------


@dataclass
class _Site:
    """A site for one asker: a copy of the truth, and counts of its own."""

    made: Two
    base: Path
    number: int = 0

    def asker(self) -> Asker:
        self.number += 1
        place = self.base / f"asker-{self.number}"
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        truth = Path(shutil.copytree(self.made.truth, place / "truth"))
        (truth / LEDGER).unlink(missing_ok=True)
        return Asker(self.made, place, [truth])


def rows(made: Two, base: Path) -> list[Row]:
    """Return the lines of the table."""
    site = _Site(made, base)
    return [*_share_rows(made, site), *_image_rows(made, site), *_budget_rows(made, site)]


def _share_rows(made: Two, site: _Site) -> list[Row]:
    truth = shares_of(made)
    auxiliary = made.run.case.auxiliary[1]
    prior = torch.bincount(auxiliary, minlength=10).double() / len(auxiliary)
    uniform = float((truth - 0.1).abs().max())
    found = shares_by_one_class_each(asker := site.asker())
    one_each = Row(
        "class shares: one class each",
        asker.asked,
        f"largest error {float((found - truth).abs().max()):.3f}",
        f"equal shares {uniform:.3f}",
        f"{shares_by_exact_figures(made):.0e} with 10 requests",
    )
    share = share_by_bisection(asker := site.asker(), prior)
    bisected = Row(
        "one class: bisection at rounding edges",
        asker.asked,
        f"error {abs(share - float(truth[0])):.3f}",
        f"equal shares {abs(float(truth[0]) - 0.1):.3f}",
        "exact with 1 request",
    )
    parcels = parcels_by_any_number_of_questions(made)
    unlimited = Row(
        "class shares: both ledgers are gone",
        "any",
        f"largest error {float((parcels - truth).abs().max()):.3f}",
        f"equal shares {uniform:.3f}",
        f"{shares_by_exact_figures(made):.0e} with 10 requests",
    )
    return [one_each, bisected, unlimited]


def _image_rows(made: Two, site: _Site) -> list[Row]:
    x, _ = behind(made)
    auxiliary = made.run.case.auxiliary[0]
    other = made.opened.behind("client/1", made.uploads("client/1")[:1])[0][:1]
    exact = [exact_most(made, torch.cat([c, grey(7)])) for c in (x[-1:], other)]
    found = []
    for known in (0, 2, len(x) // 2):
        told = [membership(made, site.asker(), inside=inside, known=known) for inside in (True, False)]
        found.append(
            Row(
                f"is this record behind that message? {known} of its {len(x)} records known",
                len(told[0]),
                f"inside {max(told[0]):g} dB, outside {max(told[1]):g} dB",
                "no difference",
                f"inside {exact[0]:g} dB, outside {exact[1]:.1f} dB with 1 request",
            )
        )
    start = auxiliary.mean(0, keepdim=True).expand(len(x), -1, -1, -1)
    half = torch.cat([x[: len(x) // 2], auxiliary[: len(x) - len(x) // 2]])
    for what, begin, scale in (
        ("rebuild: climb from the mean auxiliary image", start, 0.1),
        ("rebuild: climb from auxiliary images", auxiliary[: len(x)], 0.1),
        ("rebuild: climb to others with half of the records known", half, 0.1),
        ("refine a reconstruction that leaks", noise(0.1)(x, 99).clamp(0, 1), 0.02),
    ):
        end = climbed(made, asker := site.asker(), begin, noise(scale))
        error = rebuilt_by_exact_figures(made)
        own = slice(len(x) // 2, None) if begin is half else slice(None)
        found.append(
            Row(
                what,
                asker.asked,
                f"closest record {nearest(end[own], x[own]):.2f} dB",
                f"where it began {nearest(begin[own], x[own]):.2f} dB",
                f"largest pixel error {error:.0e} with 65 requests",
            )
        )
    return found


def _budget_rows(made: Two, site: _Site) -> list[Row]:
    named = answered_under_other_names(made, asker := site.asker())
    tried = asker.asked
    other = site.asker()
    first = answers_until_refused(other)
    (other.truth[0] / LEDGER).unlink()
    removed = answers_until_refused(other)
    elsewhere = other.folder / "copied"
    shutil.copytree(other.truth[0], elsewhere)
    (elsewhere / LEDGER).unlink(missing_ok=True)
    copied = answers_until_refused(Asker(made, other.folder / "more", [elsewhere]))
    os.environ["XDG_STATE_HOME"] = str(other.folder / "another-user")
    moved = answers_until_refused(Asker(made, other.folder / "most", [elsewhere]))
    anywhere = "no limit"
    return [
        Row("other names, adversaries, messages", tried, f"{named} answers", "", anywhere),
        Row("the ledger beside the truth is removed", first + 1, f"{removed} more answers", "", anywhere),
        Row("a second copy of the truth, same user", first + 1, f"{copied} more answers", "", anywhere),
        Row("a copy without its ledger, another user", first + 1, f"{moved} more answers", "", anywhere),
    ]


def table(lines: Sequence[Row]) -> str:
    """Return the lines as Markdown."""
    head = "| Asker | Requests | Best it got | Prior | Undefended |\n| --- | --- | --- | --- | --- |"
    return "\n".join(
        [head, *(f"| {r.asker} | {r.asked} | {r.got} | {r.prior} | {r.undefended} |" for r in lines)]
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    kept = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        skewed = {"name": "dirichlet", "alpha": 0.5}
        made = two(Path(folder), dataset={"name": "digits", "limit": 400}, partition=skewed)
        print(table(rows(made, Path(folder) / "askers")))
    if kept is not None:
        os.environ["XDG_STATE_HOME"] = kept


if __name__ == "__main__":
    main()
