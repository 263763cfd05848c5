"""The rules that decide whether a report calls something a leak: one a goal, with its printed text.

Guarantees:
  * a signal is a test that is significant after correction, an interval above chance or above the prior, a single image
    that no prior guess comes near, or an exact distance of at most half the prior's: never a bare mean;
  * figures are found by the names that `fdaudit.metrics` gives them, including a mean over clients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fdaudit.result import Image, Shares
from fdaudit.types import Figure

from .identification import RULE, identified, identifies
from .text import amount, measure, odds, with_interval

__all__ = [
    "AGREEMENT_STRONG",
    "AUC_STRONG",
    "FAMILY_LEVEL",
    "GAIN_LEAST",
    "IMAGE_GAIN",
    "PSNR_STRONG",
    "RULES",
    "TOKENS_CLEAR",
    "TOKENS_GAP",
    "TPR_MARGIN",
    "TPR_STRONG",
    "TV_STRONG",
    "Rule",
    "RuleInput",
    "beside",
    "by_name",
    "decided_by",
    "framed",
    "single_rates",
    "worth",
]

PSNR_STRONG = 20.0
"""dB; a root-mean-square pixel error of a tenth of the range."""

GAIN_LEAST = 1.0
"""dB of mean gain over the prior; below it a better choice of prior would explain the images."""

IMAGE_GAIN = 6.0
"""dB above the prior above which a single image counts: half the prior's root-mean-square error."""

AUC_STRONG = 0.7
"""Area under the ROC curve above which membership counts as a leak, not a partial one."""

TPR_MARGIN = 2.0
"""Without a p-value, a true-positive rate's interval must exceed this multiple of the false-positive rate to count: the
threshold's own false-positive rate is estimated from few non-members.
"""

TPR_STRONG = 5.0
"""Multiple of the false-positive rate above which membership counts as a leak."""

TV_STRONG = 0.1
"""Total variation distance below which a guessed label distribution counts as a leak."""

AGREEMENT_STRONG = 0.9
"""Share of records with equal answers of copy and model above which a model counts as copied."""

FAMILY_LEVEL = 0.05
"""Probability that any test of a run is significant if nothing leaks."""

TOKENS_CLEAR = 0.9
"""F1 of recovered words from which a text counts as read, if the prior stays `TOKENS_GAP` below: no test is needed."""

TOKENS_GAP = 0.4
"""Least distance of such an F1 to the prior's."""

_EXACT = 5e-4
"""Total variation that reads 0.000."""

_TPR = re.compile(r"tpr_at_(\d+(?:\.\d+)?)fpr")


@dataclass(frozen=True, kw_only=True)
class RuleInput:
    """Input of a rule: the figures of the mean or of one victim, that victim's images, and the class shares.

    The figures carry p-values after correction for all `tests` of the run, so each is compared with `level` itself.
    """

    who: str
    figures: Sequence[Figure]
    images: Sequence[Image] = ()
    shares: Sequence[Shares] = ()
    level: float = FAMILY_LEVEL
    tests: int = 1


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule for the cells of one goal.

    Attributes:
        figure: the deciding figure.
        chance: its value if nothing leaks, if that is one number.
        higher: whether a higher value means a larger leak.
        leaked: what the adversary could do, as a clause that follows its name.
        shown: the same if only classes were shown, no record; empty if the goal has no such finding.
        frame: the deciding figure in a sentence, with a place for its value.
        signal: a clause that says how evidence shows a leak; empty if it shows none.
        strong: whether evidence with a signal shows a grave one.
        telling: whether evidence without a signal is informative.
        text: the rule in words, as the report prints it.
    """

    figure: str
    chance: float | None
    higher: bool
    leaked: str
    shown: str = ""
    frame: str
    signal: Callable[[RuleInput], str]
    strong: Callable[[RuleInput], bool]
    telling: Callable[[RuleInput], bool]
    text: str


def by_name(figures: Sequence[Figure], name: str) -> Figure | None:
    """Return the figure of that name, or its mean over clients, if it has a value; else None."""
    return next((f for f in figures if f.name in (name, f"{name}_mean") and f.value is not None), None)


def single_rates(figures: Sequence[Figure]) -> tuple[float, ...]:
    """Return the false-positive rates at which figures have a measured true-positive rate."""
    return tuple(rate for _, rate in _tprs(figures))


def framed(rule: Rule, figure: Figure) -> str:
    """Return a deciding figure with its interval in a clause."""
    value = figure.value or 0.0
    if rule.figure == "psnr_gain" and value < 0:
        ends = (None if figure.low is None else -figure.low, None if figure.high is None else -figure.high)
        turned = replace(figure, value=-value, low=ends[1], high=ends[0])
        return f"{with_interval(turned)} farther from the truth than guessing"
    if rule.figure == "label_tv" and value < _EXACT:
        return "the class shares were recovered exactly"
    return rule.frame.format(with_interval(figure))


def beside(rule: Rule, figure: Figure, first: Figure) -> str:
    """Return a deciding figure after one that was framed: its value and interval, or in words where one is negative."""
    negative = min(figure.value or 0.0, first.value or 0.0) < 0
    return framed(rule, figure) if rule.figure == "psnr_gain" and negative else with_interval(figure)


def worth(rule: Rule, figure: Figure | None) -> float:
    """Return the size of the leak in a deciding figure, for ordering; minus infinity if there is none."""
    if figure is None or figure.value is None:
        return float("-inf")
    return figure.value if rule.higher else -figure.value


def _value(figures: Sequence[Figure], name: str) -> float | None:
    figure = by_name(figures, name)
    return None if figure is None else figure.value


def _above(figure: Figure | None, bound: float) -> bool:
    return figure is not None and figure.low is not None and figure.low > bound


def _bounded(name: str) -> Callable[[RuleInput], bool]:
    def telling(evidence: RuleInput) -> bool:
        figure = by_name(evidence.figures, name)
        return figure is not None and (figure.low is not None or figure.p is not None)

    return telling


def _lower_end(figure: Figure, bound: str) -> str:
    low = measure(figure, figure.low or 0.0)
    return f"the lower end of the interval, {low}, lies above {bound}"


def _clear_images(evidence: RuleInput) -> int:
    """Return how many single images are reconstructed beyond the prior's reach."""
    return sum(
        image.psnr is not None
        and image.prior_psnr is not None
        and image.psnr >= PSNR_STRONG
        and image.psnr - image.prior_psnr >= IMAGE_GAIN
        for image in evidence.images
    )


def _reconstruction_signal(evidence: RuleInput) -> str:
    if shown := _classes_signal(evidence):
        return shown
    gain = by_name(evidence.figures, "psnr_gain")
    if gain is not None and _closer(gain):
        return _lower_end(gain, f"0 {gain.unit}".strip())
    clear = _clear_images(evidence)
    if clear:
        return (
            f"{clear} of {len(evidence.images)} images reach {PSNR_STRONG:.0f} dB and stand "
            f"{IMAGE_GAIN:.0f} dB or more above the prior"
        )
    return identified(evidence.figures, evidence.level)


def _closer(gain: Figure) -> bool:
    """Return whether images are closer to the truth than the prior, by the interval and by the least gain."""
    return _above(gain, 0.0) and (gain.value or 0.0) >= GAIN_LEAST


def _classes_signal(evidence: RuleInput) -> str:
    """Return a clause that withheld classes were shown, which no guess without the view does better than chance."""
    found = {n: by_name(evidence.figures, f"evaluator_{n}") for n in ("accuracy", "chance", "prior")}
    accuracy, chance = found["accuracy"], found["chance"]
    if accuracy is None or accuracy.p is None or chance is None or not _unlikely(accuracy, evidence):
        return ""
    bound = max(f.value or 0.0 for f in found.values() if f is not None and f is not accuracy)
    if (accuracy.value or 0.0) <= bound:
        return ""
    share, by_chance = (amount(f.value or 0.0, "fraction") for f in (accuracy, chance))
    return (
        "the attack shows what classes look like of which it was given no record: an independent network recognises "
        f"{share} of its guesses, and {by_chance} by chance{_chance(accuracy, evidence)}"
    )


def _reconstruction_telling(evidence: RuleInput) -> bool:
    accuracy = by_name(evidence.figures, "evaluator_accuracy")
    return _bounded("psnr_gain")(evidence) or (accuracy is not None and accuracy.p is not None)


def _reconstruction_strong(evidence: RuleInput) -> bool:
    psnr = _value(evidence.figures, "psnr")
    if identifies(evidence.figures, evidence.level):
        return True
    return _clear_images(evidence) > 0 or (psnr is not None and psnr >= PSNR_STRONG)


def _texts_signal(evidence: RuleInput) -> str:
    f1, prior = _value(evidence.figures, "token_f1"), _value(evidence.figures, "token_f1_prior")
    if f1 is None or prior is None:
        return ""
    told = (
        f"the words recovered have an F1 of {amount(f1, 'fraction')}, the prior's {amount(prior, 'fraction')}"
    )
    if f1 >= TOKENS_CLEAR and f1 - prior >= TOKENS_GAP:
        return told
    gain = by_name(evidence.figures, "token_gain")
    if gain is None or gain.p is None or (gain.value or 0.0) <= 0 or not _unlikely(gain, evidence):
        return ""
    return f"{told}; on other texts of the same classes the same guess does worse{_chance(gain, evidence)}"


def _texts_strong(evidence: RuleInput) -> bool:
    f1, prior = _value(evidence.figures, "token_f1"), _value(evidence.figures, "token_f1_prior")
    return f1 is not None and prior is not None and 1 - f1 <= (1 - prior) / 2


def _texts_telling(evidence: RuleInput) -> bool:
    gain = by_name(evidence.figures, "token_gain")
    return gain is not None and gain.p is not None


def _membership_signal(evidence: RuleInput) -> str:
    auc = by_name(evidence.figures, "auc")
    if (blind := by_name(evidence.figures, "auc_blind")) is not None:
        return _beyond_blind(auc, blind)
    if auc is not None and _beats(auc, 0.5, 0.5, evidence):
        if auc.p is None:
            return _lower_end(auc, "0.5")
        return f"the AUC, {measure(auc, auc.value or 0.0)}, lies above 0.5{_chance(auc, evidence)}"
    found = _rate_above_chance(evidence)
    if found is None:
        return ""
    figure, rate = found
    if figure.p is None:
        low, bound = (amount(v, "fraction") for v in (figure.low or 0.0, TPR_MARGIN * rate))
        return (
            f"the lower end of the true-positive rate, {low}, lies above {bound}, "
            f"{TPR_MARGIN:.0f} times the false-positive rate"
        )
    value, chance = amount(figure.value or 0.0, "fraction"), amount(rate, "fraction")
    return f"the true-positive rate, {value}, lies above {chance}{_chance(figure, evidence)}"


def _rate_above_chance(evidence: RuleInput) -> tuple[Figure, float] | None:
    """Return the first true-positive rate that is significantly above its false-positive rate, with the latter."""
    rates = _tprs(evidence.figures)
    return next(((f, r) for f, r in rates if _beats(f, r, TPR_MARGIN * r, evidence)), None)


def decided_by(rule: Rule, evidence: RuleInput) -> str:
    """Return what decided, in a clause, if the rule's own figure alone would not have; else an empty text."""
    key = by_name(evidence.figures, rule.figure)
    chance = rule.chance
    if key is None or chance is None or by_name(evidence.figures, "auc_blind") is not None:
        return ""
    if rule.figure == "psnr_gain" and not _closer(key):
        told = identified(evidence.figures, evidence.level).partition(". ")[0]
        return f"decided by identification: {told}" if told else ""
    if rule.figure == "auc" and not _beats(key, chance, chance, evidence):
        found = _rate_above_chance(evidence)
        if found is None:
            return ""
        value, rate = amount(found[0].value or 0.0, "fraction"), amount(found[1], "fraction")
        return f"decided by {value} of members found at a false-positive rate of {rate}"
    if key.p is not None and key.low is not None and key.high is not None and key.low <= chance <= key.high:
        return f"guessing would score this well {odds(key.p, evidence.level).partition(';')[0]}"
    return ""


def _beyond_blind(auc: Figure | None, blind: Figure) -> str:
    """Return a clause if an AUC's interval lies above that of a baseline that sees no message; else empty."""
    bound = max(0.5, blind.high if blind.high is not None else 1.0)
    if not _above(auc, bound) or auc is None:
        return ""
    found = f"the interval of the AUC, from {measure(auc, auc.low or 0.0)}, lies above a blind baseline's"
    return (
        f"{found}, up to {measure(blind, bound)}; no coins decided who is a member, so chance is not bounded"
    )


def _beats(figure: Figure, chance: float, bound: float, evidence: RuleInput) -> bool:
    """Return whether a figure is significantly above chance, or without a p-value its interval above `bound`."""
    if figure.p is None:
        return _above(figure, bound)
    return (figure.value or 0.0) > chance and _unlikely(figure, evidence)


def _unlikely(figure: Figure, evidence: RuleInput) -> bool:
    """Return whether chance alone would rarely do as well; a figure without a p-value is judged by its interval."""
    return figure.p is None or figure.p <= evidence.level


def _chance(figure: Figure, evidence: RuleInput) -> str:
    """Return how often guessing would do as well, as a sentence without its stop; empty if unknown."""
    if figure.p is None:
        return ""
    where = f" in one of {evidence.tests:,} tests" if evidence.tests > 1 else ""
    return f". Guessing would score this well{where} {odds(figure.p, evidence.level)}"


def _membership_strong(evidence: RuleInput) -> bool:
    auc = by_name(evidence.figures, "auc")
    if (blind := by_name(evidence.figures, "auc_blind")) is not None:
        return bool(_beyond_blind(auc, blind)) and auc is not None and (auc.value or 0.0) >= AUC_STRONG
    if auc is not None and (auc.value or 0.0) >= AUC_STRONG and _beats(auc, 0.5, 0.5, evidence):
        return True
    return any(
        (f.value or 0.0) >= TPR_STRONG * r and _beats(f, r, r, evidence) for f, r in _tprs(evidence.figures)
    )


def _tprs(figures: Sequence[Figure]) -> Iterator[tuple[Figure, float]]:
    for figure in figures:
        match = _TPR.fullmatch(figure.name.removesuffix("_mean"))
        if match and figure.value is not None:
            yield figure, float(match[1]) / 100


def _labels_signal(evidence: RuleInput) -> str:
    distance, prior = _value(evidence.figures, "label_tv"), _value(evidence.figures, "label_tv_prior")
    if distance is None or prior is None or distance > prior / 2:
        return _class_sets_signal(evidence)
    return f"the distance left, {amount(distance)}, is at most half the prior's, {amount(prior)}"


def _class_sets_signal(evidence: RuleInput) -> str:
    """Return a clause that the classes that clients hold are named exactly, by an unlikely guess; else empty.

    Guessing sets of the right sizes names them with a chance of Π 1 / binomial(C, k), which is corrected by Bonferroni.
    """
    chance = 1.0
    for shares in evidence.shares:
        held, guessed = (tuple(v > 0 for v in part) for part in (shares.truth, shares.guess))
        if held != guessed:
            return ""
        chance /= math.comb(len(held), sum(held))
    if not evidence.shares or chance * evidence.tests > evidence.level:
        return ""
    return f"the classes held are named exactly; guessing would do so {odds(chance, evidence.level)}"


def _labels_strong(evidence: RuleInput) -> bool:
    distance = _value(evidence.figures, "label_tv")
    return distance is not None and distance <= TV_STRONG


def _labels_telling(evidence: RuleInput) -> bool:
    return None not in (_value(evidence.figures, "label_tv"), _value(evidence.figures, "label_tv_prior"))


def _extraction_signal(evidence: RuleInput) -> str:
    gain = by_name(evidence.figures, "agreement_gain")
    if gain is None or gain.p is None or (gain.value or 0.0) <= 0 or not _unlikely(gain, evidence):
        return ""
    above = measure(gain, gain.value or 0.0)
    return f"the copy agrees with the model {above} more than the baseline does{_chance(gain, evidence)}"


def _extraction_strong(evidence: RuleInput) -> bool:
    agreement = by_name(evidence.figures, "agreement")
    return agreement is not None and (agreement.value or 0.0) >= AGREEMENT_STRONG


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "reconstruction": Rule(
            figure="psnr_gain",
            chance=0.0,
            higher=True,
            leaked="could reconstruct private training inputs",
            shown="could show what private classes look like",
            frame="{} closer to the truth than guessing",
            signal=_reconstruction_signal,
            strong=_reconstruction_strong,
            telling=_reconstruction_telling,
            text="The interval of the PSNR gain over the prior lies above 0 dB and the gain reaches "
            f"{GAIN_LEAST:.0f} dB, or single images reach "
            f"{PSNR_STRONG:.0f} dB and stand {IMAGE_GAIN:.0f} dB or more above the prior. Or, of classes that were "
            "withheld from the adversary, an independent network recognises more guesses than chance and the prior "
            f"explain. It is a leak where PSNR reaches {PSNR_STRONG:.0f} dB (pixels off by a tenth of their range, "
            f"root mean square), else a partial leak. {RULE}",
        ),
        "text-reconstruction": Rule(
            figure="token_gain",
            chance=0.0,
            higher=True,
            leaked="could recover words of private texts",
            frame="F1 of recovered words {} above guessing",
            signal=_texts_signal,
            strong=_texts_strong,
            telling=_texts_telling,
            text="Distinct words recovered fit the true texts better, by F1, than the most frequent auxiliary "
            "words do, and better than they fit as many other texts of the same classes, significantly after "
            f"correction. Or their F1 reaches {TOKENS_CLEAR:.0%} and stands {TOKENS_GAP:.0%} above the prior's. It is "
            "a leak where F1 closes half of the prior's distance to 100 % or more, else a partial leak.",
        ),
        "membership": Rule(
            figure="auc",
            chance=0.5,
            higher=True,
            leaked="could tell which records were trained on",
            frame="AUC {}",
            signal=_membership_signal,
            strong=_membership_strong,
            telling=_bounded("auc"),
            text="The AUC lies above 0.5, or the true-positive rate at a stated false-positive rate lies above that "
            "rate, and this holds after correction: in a run that leaks nothing, any figure of any attack does so with "
            f"a chance of at most {FAMILY_LEVEL:.0%}. Scores without a p-value count by their interval instead. "
            "Where no coins decided who is a member, the AUC's interval must lie above that of a baseline that sees no "
            "message. "
            "It is a leak where such an AUC reaches "
            f"{AUC_STRONG:.2f} or such a rate {TPR_STRONG:.0f} times the false-positive rate, "
            "else a partial leak.",
        ),
        "label-distribution": Rule(
            figure="label_tv",
            chance=None,
            higher=False,
            leaked="could tell how clients' data divide among the classes",
            frame="class shares guessed to within a total variation of {}",
            signal=_labels_signal,
            strong=_labels_strong,
            telling=_labels_telling,
            text="The total variation distance to the true class shares is at most half the prior's; it is "
            "exact for a client, so it has no interval. Or the classes held are named exactly, where guessing sets of "
            f"their sizes would do so, in as many tests, with a chance of at most {FAMILY_LEVEL:.0%}. It is a leak "
            f"where the distance is at most {TV_STRONG:.1f}, else a partial leak.",
        ),
        "model-extraction": Rule(
            figure="agreement_gain",
            chance=0.0,
            higher=True,
            leaked="could copy a model that it was not given",
            frame="agreement with the model {} above the baseline",
            signal=_extraction_signal,
            strong=_extraction_strong,
            telling=_bounded("agreement_gain"),
            text="A copy agrees with the model on more test records than the baseline does (a model fitted to "
            "auxiliary records, or the most frequent class), by McNemar's exact test after correction. "
            f"It is a leak where the two agree on {AGREEMENT_STRONG:.0%} of the records or more, "
            "else a partial leak.",
        ),
    }
)
"""The rules, by goal. Cells of a goal without a rule get no verdict: they read inconclusive."""
