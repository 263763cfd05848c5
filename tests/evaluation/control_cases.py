"""Tiny federations on which controls are tried, with random guesses in place of an attack's own.

`python -m tests.evaluation.control_cases` writes the outcomes of all controls beside this file. A change that only
moves or renames code leaves that file as it was. Most attacks take too long here: what a control hands to them, what
their oracle would answer and how their guesses are scored takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fdaudit.evaluation.controls import controls
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.goals.model_extraction import Extraction
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.isolation import trials
from fdaudit.isolation.frames import Frame, Tensors
from fdaudit.isolation.schema import packed, packed_guesses
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec
from fdaudit.training.trainer import parameters_of

from ..helpers.doubles import in_a_thread
from ..helpers.mask_cases import write_masks
from ..helpers.run_cases import known
from ..helpers.table_cases import write_table
from ..helpers.text_cases import write_texts

OUTCOMES = Path(__file__).with_name("control_outcomes.json")
_SPLITS = {"test": 0.2, "proxy": 0.1, "auxiliary": 0.3, "candidates": 4}
_DIGITS: Mapping[str, Any] = {
    "attacks": "all",
    "adversaries": ["server", "world", "eavesdropper"],
    "dataset": {"name": "digits", "limit": 150},
    "splits": _SPLITS,
    "queries": 20,
}
_GRADIENTS = {"name": "fedavg", "params": {"rounds": 2, "upload": "gradient", "batch_size": 4}}
_UPDATES = {
    "name": "fedavg",
    "params": {
        "rounds": 2,
        "batch_size": 4,
        "local_steps": 2,
        "optimizer": "adam",
        "send_state": True,
        "weighting": "samples",
    },
}
_TRANSFORMER = {"name": "transformer", "params": {"width": 16, "heads": 2, "depth": 1}}
_UNET = {"name": "unet", "params": {"width": 8, "depth": 1}}

_FEDERATIONS: Mapping[str, Mapping[str, Any]] = {
    "gradients": {**_DIGITS, "protocol": _GRADIENTS},
    "updates": {**_DIGITS, "protocol": _UPDATES},
    "answers": {
        **_DIGITS,
        "auxiliary": {"inversion": "class-disjoint", "others": "shifted"},
        "protocol": {"name": "fedmd", "params": {"rounds": 2}},
    },
    "bits": {**_DIGITS, "protocol": {"name": "selective-fd", "params": {"rounds": 1}}},
    "masks": {**_DIGITS, "model": _UNET, "protocol": _UPDATES, "partition": {"name": "by-site"}},
    "rows": {**_DIGITS, "protocol": _GRADIENTS},
    "texts": {**_DIGITS, "model": _TRANSFORMER, "protocol": _GRADIENTS},
}
_DATA = {
    "masks": lambda folder: {"name": f"masks:{write_masks(folder / 'discs.npz', 60)}"},
    "rows": lambda folder: {"name": f"table:{write_table(folder / 'rows.csv')}"},
    "texts": lambda folder: {"name": f"text:{write_texts(folder / 'texts.csv', 160)}", "length": 8},
}
"""Where records are written to a file."""

QUICK = (
    "answers/brep-mi answers",
    "answers/candidate-answers",
    "answers/paired-logits",
    "bits/accept-set",
    "bits/label-counts",
    "gradients/analytic",
    "gradients/class-gan",
    "gradients/coin-regression",
    "gradients/extraction-hard",
    "gradients/generator-leakage",
    "gradients/logan",
    "gradients/neuron-updates",
    "gradients/pixel-comparison",
    "gradients/pixel-matching",
    "gradients/prototype-regression",
    "gradients/rehearsed-regression",
    "gradients/update-projection",
    "masks/loss-threshold",
    "rows/analytic",
    "texts/tag",
    "updates/inverting-gradients",
)
"""One of each kind of control and of guess, by federation, attack and setting."""
REAL = (
    "answers/candidate-answers really",
    "bits/label-counts really",
    "gradients/analytic really",
    "gradients/extraction-soft really",
    "gradients/generator-leakage really",
    "gradients/ideal-soft really",
    "gradients/logan really",
    "gradients/loss-threshold really",
    "gradients/neuron-updates really",
    "gradients/pixel-comparison really",
    "gradients/pixel-matching really",
    "gradients/prototype-regression really",
    "rows/analytic really",
    "texts/embedding-rows really",
)
"""Attacks that are run, because they are quick."""
_AS_ELSEWHERE = ("comparisons", "discriminator", "generated", "neurons", "scores", "tables", "uploads")
"""Kinds of controls that depend on no protocol and on no assumption."""


def names() -> list[str]:
    """Return the names of all controls that differ: every attack on one federation, and others where more matters."""
    every = list(REAL)
    for federation in _FEDERATIONS:
        case = case_of(federation)
        for plan in case.attacks:
            kind = plan.card.control["on"]
            if case.dataset.task.name not in plan.card.tasks:
                continue
            if federation == "gradients" or kind not in _AS_ELSEWHERE:
                every.append(f"{federation}/{plan.name}")
            if federation in ("answers", "bits") and plan.card.control.get("through") == "oracle":
                every.append(f"{federation}/{plan.name} answers")
    return every


@cache
def case_of(federation: str) -> Any:
    """Return the case of one of the tiny federations."""
    with tempfile.TemporaryDirectory() as folder:
        spec = small_spec(**_FEDERATIONS[federation])
        if federation in _DATA:
            spec["dataset"] = _DATA[federation](Path(folder))
        return simulated_case(load_spec(spec), known(7))


def main() -> None:
    """Write the outcomes of all controls."""
    outcomes = dict[str, Any]()
    for name in names():
        outcomes[name] = outcome(name) if name in QUICK + REAL else digest(outcome(name))
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(outcomes.items())]
    text = ",\n".join(lines)
    OUTCOMES.write_text(
        f'{{"machine": {json.dumps(machine())}, "outcomes": {{\n{text}\n}}}}\n', encoding="utf-8"
    )


def digest(value: Any) -> str:
    """Return a short digest of JSON values."""
    return hashlib.sha256(canonical(value)).hexdigest()[:16]


def machine() -> str:
    """Return what decides the last bits of a figure: the processor, whose maker libraries ask for too, and PyTorch."""
    capability = torch.backends.cpu.get_cpu_capability()
    info, kind = Path("/proc/cpuinfo"), list[str]()
    if info.exists():
        kind = re.findall(
            r"(?m)^(?:vendor_id|cpu family|model)\s*:\s*(.+)$", info.read_text(encoding="utf-8")
        )[:3]
    processor = " ".join(kind) or platform.processor()
    return f"{platform.machine()}, {processor}, {capability}, PyTorch {torch.__version__}"


def outcome(name: str, *, applies: bool = True) -> dict[str, Any]:
    """Return the outcome of an attack's controls on a federation, and a digest of what the attack was given.

    Args:
        name: federation, attack and setting, as in `QUICK`; or an attack that is run, as in `REAL`.
        applies: whether the attack says that it applies.
    """
    federation, _, rest = name.partition("/")
    attack, _, setting = rest.partition(" ")
    case = case_of(federation)
    (plan,) = (plan for plan in case.attacks if plan.name == attack)
    if setting == "really":
        with in_a_thread():
            outcomes, given = controls(plan, case), []
    else:
        with guessing_at_random(case, applies) as given:
            outcomes = controls(plan, case, setting)
    return {"given": digest(given), **{name: control.plain() for name, control in outcomes.items()}}


@contextmanager
def guessing_at_random(case: Any, applies: bool) -> Iterator[list[str]]:
    """Let no attack run: random guesses stand for its own. Yield a list that gets a digest of each trial."""
    digests = list[str]()

    def answered(kind: str, plan: Any, view: Any, trial: Any, reply: Any) -> Frame:
        tensors = Tensors()
        fields = json.loads(json.dumps(packed(trial, tensors)))
        if fields["knowledge"]["rehearse"] is not None:
            del fields["knowledge"]["rehearse"]["own"]  # a temporary directory
        if reply is not None:
            tensors.named["reply"] = reply(case.auxiliary[0][:3], None)
        digests.append(_given(plan, view, fields, tensors.named))
        if not applies:
            return Frame("not-applicable", {"reason": "it does not like the view"}, {})
        sent = Tensors()
        return Frame(
            "guesses", {"guesses": packed_guesses(_guesses(plan, case, view, trial), sent)}, sent.named
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "_answered", answered)
        yield digests


def _given(plan: Any, view: Any, trial: Any, tensors: Mapping[str, Any]) -> str:
    """Return a digest of what an attack was given; of messages without their salted digests."""
    stated = [plan.name, dict(plan.params), trial, view.name, list(view.parties), dict(view.hyperparameters)]
    sha256 = hashlib.sha256(canonical(stated))
    for tensor in tensors.values():
        sha256.update(tensor.contiguous().numpy().tobytes())
    for message in view.messages:
        sha256.update(canonical([message.round, message.sender, list(message.receivers), message.kind]))
        for name, tensor in sorted(view.tensors(message).items()):
            sha256.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return sha256.hexdigest()


def _guesses(plan: Any, case: Any, view: Any, trial: Any) -> list[Any]:
    """Return a random guess about each target; two draws of one seed are the same on every machine."""
    draws = torch.Generator().manual_seed(trial.seed)
    guesses = list[Any]()
    for target in trial.task.targets:
        messages = tuple(m.seq for m in view.messages if m.sender == target)
        shape = case.dataset.input_shape
        match plan.card.goal_on(case.dataset.task.name):
            case "membership":
                scores = torch.rand(len(trial.task.challenges[target].y), generator=draws)
                guesses.append(Membership(target=target, scores=scores.double()))
            case "model-extraction":
                copy = parameters_of(case.architecture.build(draws))
                guesses.append(Extraction(target=target, parameters=copy))
            case "label-distribution":
                shares = torch.rand(case.dataset.classes, generator=draws).double()
                guesses.append(LabelDistribution(target=target, distribution=shares / shares.sum()))
            case "text-reconstruction":
                texts = torch.randint(3, 20, (4, *shape), generator=draws)
                words = texts.unique()
                guesses.append(TextReconstruction(target=target, messages=messages, words=words, texts=texts))
            case "row-reconstruction":
                rows = torch.rand(4, *shape, generator=draws)
                guesses.append(RowReconstruction(target=target, messages=messages, rows=rows))
            case "reconstruction":
                labels = None
                count = 4
                if plan.card.control["on"] == "classes":
                    labels, messages = torch.arange(case.dataset.classes), ()
                    count = case.dataset.classes
                images = torch.rand(count, *shape, generator=draws)
                guesses.append(Reconstruction(target=target, messages=messages, images=images, labels=labels))
    return guesses


if __name__ == "__main__":
    main()
