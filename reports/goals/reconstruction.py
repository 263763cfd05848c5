"""Verdicts and remedies where images were reconstructed."""

from __future__ import annotations

from fdaudit.goals.reconstruction import GOAL
from fdaudit.result import Cell, Remedy
from fdaudit.types import Figure

from ..text import amount
from .identification import RULE as IDENTIFICATION
from .identification import identified, identifies
from .remedy import HIDE_CLIENTS, LABELS_NO_REMEDY
from .rule import (
    PublicRounding,
    Rule,
    RuleInput,
    WorstRecord,
    above,
    against_guessing,
    bounded,
    by_name,
    lower_end,
    significant,
    tested,
    value_of,
)

__all__ = ["RULE"]

_IMAGES = 8
"""Least number of images behind a public mean of image figures."""

PSNR_STRONG = 20.0
"""dB; a root-mean-square pixel error of a tenth of the range."""

GAIN_LEAST = 1.0
"""dB of mean gain over the prior; below it a better choice of prior would explain the images."""

IMAGE_GAIN = 6.0
"""dB above the prior above which a single image counts: half the prior's root-mean-square error."""


GAIN_CERTAIN = 10.0
"""dB; lower end of a gain's interval from which pictures are the records themselves."""


def _clear_images(evidence: RuleInput) -> int:
    """Return how many single images are reconstructed beyond the prior's reach."""
    clear = 0
    for image in evidence.images:
        if image.psnr is None or image.prior_psnr is None:
            continue
        if image.psnr >= PSNR_STRONG and image.psnr - image.prior_psnr >= IMAGE_GAIN:
            clear += 1
    return clear


def _signal(evidence: RuleInput) -> str:
    if clause := _classes_signal(evidence):
        return clause
    gain = by_name(evidence.figures, "psnr_gain")
    if gain is not None and _closer(gain):
        return lower_end(gain, f"0 {gain.unit}".strip())
    clear = _clear_images(evidence)
    if clear:
        return (
            f"{clear} of {len(evidence.images)} images reach {PSNR_STRONG:.0f} dB and stand "
            f"{IMAGE_GAIN:.0f} dB or more above the prior"
        )
    return identified(evidence.figures, evidence.level)


def _closer(gain: Figure) -> bool:
    """Return whether images are closer to the truth than the prior, by the interval and by the least gain."""
    return above(gain, 0.0) and (gain.value or 0.0) >= GAIN_LEAST


def _classes_signal(evidence: RuleInput) -> str:
    """Return a clause that withheld classes were shown, which no guess without the view does better than chance."""
    accuracy = by_name(evidence.figures, "evaluator_accuracy")
    chance = value_of(evidence.figures, "evaluator_chance")
    if accuracy is None or chance is None or not significant(accuracy, evidence.level):
        return ""
    prior = value_of(evidence.figures, "evaluator_prior") or 0.0
    right = accuracy.value or 0.0
    if right <= max(chance, prior):
        return ""
    share, by_chance = amount(right, "fraction"), amount(chance, "fraction")
    return (
        "the attack shows what classes look like of which it was given no record: an independent network recognises "
        f"{share} of its guesses, and {by_chance} by chance{against_guessing(accuracy, evidence)}"
    )


def _certain(evidence: RuleInput) -> bool:
    clear = 2 * _clear_images(evidence) >= len(evidence.images) > 0
    return clear or above(by_name(evidence.figures, "psnr_gain"), GAIN_CERTAIN)


def _telling(evidence: RuleInput) -> bool:
    return bounded("psnr_gain")(evidence) or tested("evaluator_accuracy")(evidence)


def _strong(evidence: RuleInput) -> bool:
    psnr = value_of(evidence.figures, "psnr")
    if identifies(evidence.figures, evidence.level):
        return True
    return _clear_images(evidence) > 0 or (psnr is not None and psnr >= PSNR_STRONG)


def _identified_instead(evidence: RuleInput, gain: Figure) -> str | None:
    """Return that records were identified, where the gain alone would not have decided."""
    if _closer(gain):
        return None
    clause = identified(evidence.figures, evidence.level).partition("; p")[0]
    return f"decided by identification: {clause}" if clause else ""


def _closest_image(cell: Cell) -> WorstRecord | None:
    """Return the image that is closest to the truth."""
    most = by_name(cell.figures, "psnr_max")
    if most is None or most.value is None:
        return None
    return WorstRecord(value=most.value, unit=most.unit, what="closest image")


RULE = Rule(
    goal=GOAL,
    figure="psnr_gain",
    chance=0.0,
    higher=True,
    leaked="could reconstruct private training inputs",
    shown="could show what private classes look like",
    frame="{} closer to the truth than guessing",
    signal=_signal,
    strong=_strong,
    certain=_certain,
    telling=_telling,
    text="The interval of the PSNR gain over the prior lies above 0 dB and the gain reaches "
    f"{GAIN_LEAST:.0f} dB, or single images reach "
    f"{PSNR_STRONG:.0f} dB and stand {IMAGE_GAIN:.0f} dB or more above the prior. Or, of classes that were "
    "withheld from the adversary, an independent network recognises more guesses than chance and the prior "
    f"explain. It is a leak where PSNR reaches {PSNR_STRONG:.0f} dB (pixels off by a tenth of their range, "
    f"root mean square), else a partial leak. {IDENTIFICATION}",
    tabled="psnr",
    beside_worst="psnr",
    below="{} farther from the truth than guessing",
    decided_else=_identified_instead,
    record=_closest_image,
    public=PublicRounding(names=("psnr", "psnr_prior", "psnr_gain"), least=_IMAGES, steps=(1.0,)),
    remedies={
        "updates": Remedy(
            do=HIDE_CLIENTS,
            why="Larger batches and more local steps make the attack harder, and guarantee nothing.",
            tries=("client-noise", "secure-sum"),
        ),
        "model": Remedy(
            do="Limit who gets the model and who may ask it: either shows what its classes look like.",
            why="`dp-sgd` protects single records, and not what a class looks like.",
            tries=("record-noise", "no-questions"),
        ),
        "model to clients": Remedy(
            do="Add noise for whole clients before their models are summed: every client has to receive the sum.",
            why="`dp-sgd` protects single records, and not what a class looks like.",
            tries=("client-noise",),
        ),
        "answers": Remedy(
            do="Clip each client's {kinds} and add `gaussian-noise`.",
            why=f"The attack inverts the values of the answers. {LABELS_NO_REMEDY}",
            tries=("client-noise", "record-noise"),
        ),
        "ensemble": Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}.",
            why="The attack inverts exact values.",
            tries=("client-noise", "record-noise"),
        ),
        "prototypes": Remedy(
            do="Sum each client's {kinds} securely, or add `gaussian-noise` to them.",
            why="A mean over few records is close to each of them.",
            tries=("secure-sum", "record-noise"),
        ),
        "generator": Remedy(
            do="Clip and noise what trains the generator: `sanitized-gradients`.",
            why="A generator repeats records that it was fitted to.",
            tries=("record-noise",),
        ),
        "oracle": Remedy(
            do="Limit and log the questions that are answered.",
            why=f"Each answer tells more of the model. {LABELS_NO_REMEDY}",
            tries=("no-questions", "record-noise"),
        ),
    },
    general=Remedy(
        do="Keep {kinds} from this adversary, or add noise before they are sent.",
        why="Inputs were reconstructed from its view.",
        tries=("record-noise",),
    ),
)
