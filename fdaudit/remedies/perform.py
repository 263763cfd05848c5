"""Try the remedies of a run's findings: run the same federation with each, attack it again, and compare.

Guarantees:
  * every remedied run is a `rerun` of the run, so nothing but the remedy differs;
  * settings are chosen on auxiliary records alone (`tuning`);
  * the attacks that found the leaks are the first that a budget keeps: their figures stand beside those before;
  * a remedy that was not run is listed with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude, keep_remedies
from fdaudit.errors import FdauditError, RunError, SpecError, UsageError
from fdaudit.evaluation.budget import seconds_of
from fdaudit.federation.rehearsal import rehearse
from fdaudit.planning.simulated import references_of, simulated_case
from fdaudit.progress import no_progress
from fdaudit.remedies.rerun import refuse_rerun, rerun
from fdaudit.remedies.trials import TOGETHER, TRIALS
from fdaudit.remedies.tuning import FOLDS, TunableSettings, mean_utility, tune
from fdaudit.reports.judgement.judgement import findings_of, standings_of
from fdaudit.reports.judgement.verdict import Finding
from fdaudit.reports.run.findings import FrontFinding, found_by
from fdaudit.reports.run_figures import final_figure, utility
from fdaudit.reports.text import joined
from fdaudit.result import Effect, Result, TriedRemedy
from fdaudit.spec.schema import AttackSpec
from fdaudit.storage.locks import writing
from fdaudit.storage.scratch import scratch
from fdaudit.types import Figure

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.progress import Tick
    from fdaudit.spec.schema import Spec
    from fdaudit.training.trainer import Parameters

__all__ = ["EPSILON", "try_remedies"]

EPSILON = 8.0
"""ε of a remedy with noise, unless another is asked for."""
_TUNING = 0.35
"""Share of a remedy's time for the choice of its settings."""
_LEAST = 15.0
"""Seconds without which no further remedy is begun."""
_SEVERITIES = ("critical", "high")
"""Severities whose findings' remedies are tried."""

_LEAKS = ("leak", "partial", "possible")
"""Levels at which something is still learnt."""

_UNTUNED = TunableSettings(params={}, clip=1.0)
"""Stands for the settings of a remedy that has none."""

Pairs = dict[tuple[str, str], None]
"""Adversaries and goals whose findings a remedy is for."""


@dataclass(frozen=True, kw_only=True)
class _Ground:
    """What all remedies of a run share.

    Attributes:
        run: the run.
        out: where remedied runs go.
        epsilon: ε of a remedy with noise.
        alone: mean utility of clients that train alone with the run's own settings.
        tick: progress.
    """

    run: Run
    out: Path
    epsilon: float
    alone: float
    tick: Tick


def try_remedies(
    run: Run,
    out: Path,
    *,
    epsilon: float = EPSILON,
    budget: str | None = None,
    tick: Tick = no_progress,
) -> tuple[TriedRemedy, ...]:
    """Try the remedies of a run's findings, and keep in the run what came of them.

    Args:
        run: a finished run of a spec.
        out: the directory of the remedied runs; it must not exist yet.
        epsilon: ε of a remedy with noise, for what it protects.
        budget: how long all of it may take, such as `15m`; by default as long as it takes.
        tick: progress.

    Raises:
        RunError: another system ran the federation, or the directory exists.
        UsageError: the budget is no duration, or ε no positive number.
    """
    until = float("inf")
    if budget is not None:
        until = time.monotonic() + seconds_of(budget)
    if not 0 < epsilon < float("inf"):
        raise UsageError("epsilon", epsilon, "is no positive number", "Give an ε such as 8.")
    refuse_rerun(run, out, "with a remedy")
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another directory.")
    alone = utility(run.result.utility.final, "standalone").mean or _alone(run.case)
    ground = _Ground(run=run, out=out, epsilon=epsilon, alone=alone, tick=tick)
    pairs_by_remedy = _pairs_by_remedy(found_by(run.result))
    outcomes = list[TriedRemedy]()
    chosen: dict[str, TunableSettings] = {}
    weights = {name: _weight(ground, name) for name in pairs_by_remedy}
    waiting = 1.0 + sum(weights.values())  # one more for all together
    all_pairs: Pairs = {}
    for name, pairs in pairs_by_remedy.items():
        share = weights[name] / waiting
        if share == 0 or until == float("inf"):
            end = until
        else:
            now = time.monotonic()
            least = _LEAST + 2 * ground.run.timings.get("federation", 0.0)
            end = min(until, now + max(least, share * (until - now)))
        outcomes.append(_tried(ground, (name,), pairs, chosen, end))
        waiting -= weights[name]
        all_pairs |= pairs
        _keep(run, outcomes)
    if together := _together(outcomes):
        outcomes.append(_tried(ground, together, all_pairs, chosen, until))
        _keep(run, outcomes)
    return tuple(outcomes)


def _alone(case: Case) -> float:
    """Return the mean utility of clients that train alone: the line `standalone`, which the run did not have."""
    ((protocol, config),) = references_of(
        ("standalone",), case.spec.clients, case.protocol, case.protocol_config, case.spec.preset
    )
    models: dict[str, Parameters] = {}
    with scratch("remedy") as folder:
        rehearse(
            folder / "transcript",
            protocol=protocol,
            config=config,
            common=case.common,
            data=[case.records(client) for client in case.clients],
            seed=case.seed,
            adversary="client/0",
            models=models,
        )
    return mean_utility(case, protocol, models, case.test)


def _weight(ground: _Ground, name: str) -> float:
    """Return a remedy's share of the time, over that of one without settings; 0 if it does not fit the protocol."""
    case, trial = ground.run.case, TRIALS[name]
    try:
        simulated_case(trial.change(case, case.spec, ground.epsilon, _UNTUNED), case.secrets)
    except SpecError:
        return 0.0
    return 1.0 if trial.clip is None else 3.0


def _keep(run: Run, outcomes: Sequence[TriedRemedy]) -> None:
    with writing(run.directory):
        keep_remedies(run.opened.vault, outcomes)
        run.concluded(conclude(run.opened))


def _pairs_by_remedy(findings: Iterable[FrontFinding]) -> dict[str, Pairs]:
    """Return the remedies to try, those of the gravest finding first, with the adversaries and goals of their findings.

    Args:
        findings: the gravest first.
    """
    pairs_by_remedy: dict[str, Pairs] = {}
    for finding in findings:
        if finding.severity not in _SEVERITIES:
            continue
        pairs = dict.fromkeys(product(finding.adversaries, finding.goals))
        for name in finding.remedy.tries:
            pairs_by_remedy.setdefault(name, {}).update(pairs)
    return pairs_by_remedy


def _together(outcomes: Sequence[TriedRemedy]) -> tuple[str, ...]:
    """Return the remedies to combine: those that served alone, if something is still leaked under each of them."""
    all_pairs = set[tuple[str, str]]()
    for outcome in outcomes:
        all_pairs.update((effect.adversary, effect.goal) for effect in outcome.effects)
    useful = set[str]()
    for outcome in outcomes:
        if outcome.state != "run" or not outcome.kept or outcome.name not in TOGETHER:
            continue
        useful.add(outcome.name)
        leaks = any(effect.level in _LEAKS for effect in outcome.effects)
        if not leaks and len(outcome.effects) == len(all_pairs):
            return ()
    if len(useful) < 2:
        return ()
    names = list[str]()
    for name in TOGETHER:
        if name in useful:
            names.append(name)
    return tuple(names)


def _tried(
    ground: _Ground, names: tuple[str, ...], pairs: Pairs, chosen: dict[str, TunableSettings], until: float
) -> TriedRemedy:
    """Return what came of remedies that are tried at once, or why they were not run.

    Args:
        ground: what all remedies share.
        names: one remedy, or several that are combined.
        pairs: the adversaries and goals whose findings they are for.
        chosen: settings by remedy, for those that have been tuned; receives this one's.
        until: when it has to end.
    """
    parts = list[str]()
    for name in names:
        parts.append(TRIALS[name].words.format(epsilon=ground.epsilon))
    words = joined(parts)
    title = names[0] if len(names) == 1 else "together"
    nothing = TriedRemedy(name=title, words=words, state="no-time")
    if until - time.monotonic() < _LEAST:
        return nothing.model_copy(update={"reason": "the budget left no time for it"})
    try:
        return _run(ground, nothing, names, pairs, chosen, until)
    except SpecError as error:
        reason = f"{error.field} {error.problem}"
        return nothing.model_copy(update={"state": "not-applicable", "reason": reason})
    except FdauditError as error:
        return nothing.model_copy(update={"state": "failed", "reason": str(error)})


def _run(
    ground: _Ground,
    nothing: TriedRemedy,
    names: tuple[str, ...],
    pairs: Pairs,
    chosen: dict[str, TunableSettings],
    until: float,
) -> TriedRemedy:
    case, count = ground.run.case, 0

    def remedied(own: TunableSettings | None = None) -> Spec:
        spec = case.spec
        for name in names:
            settings = own or chosen.get(name, _UNTUNED)
            spec = TRIALS[name].change(case, spec, ground.epsilon, settings)
        return spec

    (name, *others) = names
    if not others and (clip := TRIALS[name].clip) is not None:
        limit = time.monotonic() + _TUNING * (until - time.monotonic())
        if time.monotonic() + FOLDS * ground.run.timings.get("federation", 0.0) > limit:
            return nothing.model_copy(update={"reason": "the budget left no time to tune it"})
        tuned = tune(case, lambda s: simulated_case(remedied(s), case.secrets), clip, limit, ground.tick)
        chosen[name], count = tuned.settings, tuned.tried
    spec = _attacked(ground.run, remedied(), nothing, pairs)
    seconds = until - time.monotonic()
    budget = None if seconds == float("inf") else f"{max(seconds, 1.0):.0f}s"
    again = rerun(ground.run, spec, ground.out / nothing.name, tick=ground.tick, budget=budget)
    after, command = again.run.result, again.command
    left_out: tuple[str, ...] = ()
    if after.budget is not None:
        left_out = tuple(one.attack for one in after.budget.left_out)
        # Without a budget all attacks run, those that this one left out too. Reduced settings come again by it alone.
        if after.budget.settings:
            command += f" --budget {budget}"
    before = final_figure(ground.run.result)
    same = all(TRIALS[name].same_training for name in names)
    return nothing.model_copy(
        update={
            "state": "run",
            "settings": joined(chosen[name].words for name in names if name in chosen),
            "settings_tried": count,
            "command": command,
            "utility_before": before,
            "utility": before if same else final_figure(after),
            "alone": ground.alone,
            "left_out": left_out,
            "effects": tuple(_effects(ground.run.result, after, pairs, same_training=same)),
        }
    )


def _attacked(run: Run, spec: Spec, nothing: TriedRemedy, pairs: Pairs) -> Spec:
    """Return a remedied spec with the adversaries and the goals of its findings alone.

    All attacks of these goals run that the run's own spec asks for; a budget keeps those that found the leaks first.
    """
    before = _by_pair(run.result)
    # As dictionaries, for the order of the findings.
    adversaries: dict[str, None] = {}
    goals: dict[str, None] = {}
    finders: dict[str, None] = {}
    for adversary, goal in pairs:
        adversaries[adversary] = goals[goal] = None
        finding = before[adversary, goal][1]
        if finding is not None:
            finders[finding.cell.attack] = None
    attacks = list[AttackSpec]()
    for plan in run.case.attacks:
        if plan.params is not None and plan.card.goal in goals:
            attacks.append(AttackSpec(name=plan.asked or plan.name, params=dict(plan.params)))
    return spec.model_copy(
        update={
            "name": f"{spec.name}, {nothing.words}"[:200],
            "adversaries": tuple(adversaries),
            "attacks": tuple(attacks),
            "references": (),
            "power": False,
            "limits": spec.limits.model_copy(update={"first": tuple(finders)}),
            "privacy": spec.privacy.model_copy(update={"tuned_on": "public"}),
        }
    )


def _effects(before: Result, after: Result, pairs: Pairs, *, same_training: bool) -> Iterator[Effect]:
    """Yield what changed for each adversary and goal."""
    then, now, findings = _by_pair(before), _by_pair(after), findings_of(after)
    for _, goal in pairs:
        released = then.get(("world", goal))
        if same_training and released is not None and released[0] in _LEAKS:
            now.setdefault(("world", goal), released)
            # An eavesdropper gets what everybody gets, whatever the transport.
            if now.get(("eavesdropper", goal), released)[0] not in _LEAKS:
                now["eavesdropper", goal] = released
    # Seconds of a budget that would hold an attack which the budget of the remedied run left out.
    needed: dict[str, float | None] = {}
    if after.budget is not None:
        needed = {one.attack: one.needed for one in after.budget.left_out}
    budgets = {entry.adversary: entry for entry in after.ledger or ()}
    for adversary, goal in pairs:
        _, old = then[adversary, goal]
        level, new = now.get((adversary, goal), ("not-applicable", None))
        if old is None:
            continue
        attack = old.cell.attack
        fields: dict[str, Any] = {}
        if new is not None:
            fields |= {"attack_after": new.cell.attack, "after": _figure(new, old)}
        again = _again(old, adversary, findings)
        if again is not None:
            fields |= {"again": again.cell.status, "again_figure": _figure(again, old)}
        if attack in needed:
            fields["needed"] = needed[attack]
        entry = budgets.get(adversary)
        if entry is not None:
            fields["unit"] = entry.unit
            if entry.rests_on_noise:
                fields["epsilon"] = entry.epsilon
        before_figure = _figure(old, old)
        yield Effect(
            adversary=adversary, goal=goal, attack=attack, before=before_figure, level=level, **fields
        )


def _again(old: Finding, adversary: str, findings: Sequence[Finding]) -> Finding | None:
    """Return what the attack behind a finding found after: against its own adversary, or else against another."""
    for name in (old.cell.adversary, adversary):
        for finding in findings:
            if finding.cell.attack == old.cell.attack and finding.cell.adversary == name:
                return finding
    return None


def _by_pair(result: Result) -> dict[tuple[str, str], tuple[str, Finding | None]]:
    """Return the level of each adversary and goal, and the gravest finding."""
    standings = standings_of(result, findings_of(result))
    return {(s.adversary, s.goal): (s.level, s.finding) for s in standings}


def _figure(finding: Finding, like: Finding) -> Figure | None:
    """Return the deciding figure of a finding: of all victims or of the worst, as another finding is stated."""
    return (finding.key if like.together else finding.worst_key) or finding.key
