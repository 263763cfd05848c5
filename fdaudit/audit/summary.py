"""The conclusion: collects the content of a run directory in `result.json`, from which reports are made."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fdaudit import deviations
from fdaudit.audit.containment import contained
from fdaudit.audit.ledgers import books_of, keep_terms
from fdaudit.audit.utility.table import reference_near_chance, utility_of
from fdaudit.config import validate
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.evaluation.clock import kept_budget
from fdaudit.evaluation.stage import to_come
from fdaudit.evaluation.unfinished import unfinished, waiting
from fdaudit.federation.rehearsal import roles_of
from fdaudit.handout.oracle_access import accesses
from fdaudit.limits import open_file
from fdaudit.metrics import bytes_on_wire
from fdaudit.planning.recorded import USES
from fdaudit.reports.judgement.judgement import judged
from fdaudit.result import (
    SCHEMA,
    Budget,
    Cell,
    Departure,
    Exposure,
    ModelHash,
    OracleRow,
    OutOfScope,
    Part,
    Recording,
    Reproduce,
    Result,
    RunCard,
    Silence,
    TriedRemedy,
    Twin,
    Unfinished,
    UntriedDeviation,
    Utility,
    check_gates,
    derived_from_data,
    exposed_rows,
    read_cell,
    told_anew,
)
from fdaudit.scoring.claimed import claimed_by
from fdaudit.scoring.claims import check_claims
from fdaudit.scoring.family import family_of
from fdaudit.scoring.goals.membership import NO_COINS
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.unused_members import unused_members
from fdaudit.storage.files import load_json, save_json
from fdaudit.storage.timings import note_ended, read_ended
from fdaudit.storage.vault import Vault
from fdaudit.transcript.messages import DEVIATION, Message, role

if TYPE_CHECKING:
    from fdaudit.accounting.ledger import Ledger
    from fdaudit.adversary.view import View
    from fdaudit.planning.case import Case

__all__ = [
    "OUT_OF_SCOPE",
    "conclude",
    "keep_remedies",
    "keep_twin",
    "keep_untried",
    "provisional_result",
]

_P = TypeVar("_P", bound=Part)
_REMEDIES, _TWIN, _UNTRIED = "remedies.json", "twin.json", "untried.json"

OUT_OF_SCOPE: tuple[OutOfScope, ...] = (
    OutOfScope(
        name="property inference",
        what="properties of a client's records other than their class shares (Ateniese 2015)",
    ),
    OutOfScope(name="attribute inference", what="a missing attribute of a known record (Fredrikson 2014)"),
    OutOfScope(
        name="linkage of clients over rounds",
        what="which anonymous messages come from one client, or one client's device or site",
    ),
    OutOfScope(
        name="other deviations",
        what="what a party could send against its protocol beyond the deviations that fdaudit ships",
    ),
    OutOfScope(
        name="poisoning and backdoors",
        what="clients that harm the model (Bagdasaryan 2020): its integrity",
    ),
    OutOfScope(name="evasion", what="inputs made to be misclassified: its integrity"),
    OutOfScope(
        name="side channels",
        what="time, energy, sizes of compressed messages, memory of a client's machine",
    ),
)
"""Attacks that no run tries, each with what it is after: the coverage table cannot name what is not registered."""


def conclude(run: RunDirectory) -> Result:
    """Write `result.json` and return the result."""
    cells = _stored(run.path)
    attacks = {attack.name: attack for attack in run.case.attacks}
    stored = {cell.id for cell in cells}
    # The cells of an interrupted attack stage that have no outcome, not even an earlier one.
    for cell in waiting(run.vault):
        adversary, _, name = cell.rpartition("/")
        if cell not in stored and name in attacks:
            cells.append(to_come(run.case, adversary, attacks[name]))
    result = _collected(run, cells, unfinished(run.vault))
    keep_terms(run)
    path = run.path / "result.json"
    before = path.read_bytes() if path.is_file() else b""
    save_json(path, result.plain(), indent=1)
    if path.read_bytes() != before or not read_ended(run.path):
        note_ended(run.path)
    return result


def keep_remedies(vault: Vault, tried: Sequence[TriedRemedy]) -> None:
    """Keep in a vault the remedies that were tried, which later results of the run have."""
    save_json(vault.directory / _REMEDIES, {"remedies": [one.plain() for one in tried]}, indent=1)


def keep_twin(vault: Vault, twin: Twin) -> None:
    """Keep in a vault how a run compares with its honest twin, which later results of the run have."""
    save_json(vault.directory / _TWIN, {"twin": [twin.plain()]}, indent=1)


def _kept(vault: Vault, name: str, part: type[_P], again: str) -> tuple[_P, ...]:
    """Return the parts in a file of a vault; none if there is no such file.

    Args:
        vault: the vault.
        name: the file's name; its only member has the same name without the ending.
        part: the class of the parts.
        again: how they are made again, in a clause.

    Raises:
        RunError: the file holds something else.
    """
    path, what = vault.directory / name, name.removesuffix(".json")
    if not path.exists() and not path.is_symlink():
        return ()
    try:
        parts = []
        for one in load_json(path)[what]:
            checked = validate(part, one, name)
            parts.append(checked)
        return tuple(parts)
    except (IntegrityError, OSError, SpecError, KeyError, TypeError):
        raise RunError(name, str(path), f"holds no {what}", f"Remove the file, and {again}.") from None


def provisional_result(run: RunDirectory, to_come: Sequence[Cell]) -> Result:
    """Return the result of an attack stage that goes on, without writing it.

    Args:
        run: the run.
        to_come: the cells that have no outcome yet.
    """
    cells = _stored(run.path)
    attacked = sum(cell.status != "not-requested" for cell in cells)
    stage = Unfinished(done=attacked, of=attacked + len(to_come))
    return _collected(run, [*cells, *to_come], stage)


def _stored(path: Path) -> list[Cell]:
    """Return the cells of a run that have an outcome."""
    files = sorted((path / "attacks").glob("*.json"))
    return [read_cell(load_json(file), f"attacks/{file.name}") for file in files]


def _collected(run: RunDirectory, cells: Sequence[Cell], stage: Unfinished | None) -> Result:
    """Return the result of a run with these cells; `stage` says how far its attacks came, if not to their end."""
    case, cells = run.case, tuple(cells)
    spec, card, messages = case.spec, case.protocol.card, run.messages
    silences = _silences(messages)
    ledgers = _ledgers(run)
    costs = tuple(ledger.entry for ledger in ledgers)
    utility = utility_of(run.path, case) if case.origin == "simulation" else Utility()
    accessible = accesses(case)
    oracles = []
    for access in accessible:
        answers = ", ".join(access.answers)
        oracles.append(OracleRow(name=access.name, available_to=access.available_to, answers=answers))
    views = [run.view(party) for party in dict.fromkeys([*case.parties, *spec.adversaries])]
    budget = _budget(run, cells)
    class_table = None
    if not case.missing("records"):
        class_table = tuple(map(tuple, case.splits.class_table.tolist()))
    twins = _kept(run.vault, _TWIN, Twin, "make it again: `fdaudit twin RUN`")
    unjudged = Result(
        schema=SCHEMA,
        auditor_only=True,
        run=_run_card(run, silences, "provisional" if stage else run.manifest["status"]),
        class_table=class_table,
        class_names=tuple(case.dataset.class_names),
        utility=utility,
        exposure=_exposure(views, messages, case),
        views=contained(views, accessible, spec.transport, case.forms),
        wire=bytes_on_wire(messages),
        assumptions=card.trust,
        oracles=tuple(oracles),
        ledger=costs,
        checks=check_claims(run, ledgers, claimed_by(case)),
        remedies=_kept(run.vault, _REMEDIES, TriedRemedy, "try the remedies again: `fdaudit remedy RUN`"),
        twin=next(iter(twins), None),
        cells=cells,
        unfinished=stage,
        budget=budget,
        family=family_of(run, cells),
        gates=check_gates(spec.gates.model_dump(), cells, costs, utility.final, card.name),
        out_of_scope=OUT_OF_SCOPE,
        limits=(
            *_limits(case),
            *reference_near_chance(utility, case),
            *_interruptions(run, silences, stage, budget),
        ),
        reproduce=_reproduce(case.origin),
    )
    return judged(unjudged)


def _budget(run: RunDirectory, cells: Sequence[Cell]) -> Budget | None:
    """Return the budget of the attack stage, without what other settings of an attack run since have replaced."""
    clock = kept_budget(run.vault)
    if clock is None:
        return None
    budget, settings = clock.budget, []
    for reduced in budget.settings:
        params = [cell.params for cell in cells if cell.attack == reduced.attack]
        if any(numbers.get(reduced.setting) == reduced.number for numbers in params):
            settings.append(reduced)
    untested = {cell.attack for cell in cells if cell.status == "not-tested"}
    left_out = [one for one in budget.left_out if one.attack in untested]
    return budget.model_copy(update={"settings": tuple(settings), "left_out": tuple(left_out)})


def _exposure(views: Sequence[View], log: Sequence[Message], case: Case) -> tuple[Exposure, ...]:
    """Return what each view shows of the log, a row for each kind of message."""
    private, rows = derived_from_data(case.charged(log)), list[Exposure]()
    for view in views:
        anew = told_anew(log, [m.seq for m in view.messages], private)
        misfit = case.forms.unread_in(view.messages)
        rows += exposed_rows(view.messages, view.name, private, misfit, anew)
    return tuple(rows)


def _run_card(run: RunDirectory, silences: tuple[Silence, ...], status: str) -> RunCard:
    """Return the system card: what was run, on which data, and with which code."""
    case, manifest = run.case, run.manifest
    spec, protocol, execution = case.spec, case.protocol, case.execution
    commitments = manifest["commitments"]
    changed = Counter(message.sender for message in run.messages if DEVIATION in message.fields)
    departures = []
    for entry in spec.deviations:
        departure = Departure(party=entry.party, name=entry.name, messages=changed[entry.party])
        departures.append(departure)
    recording = None
    if manifest.get("recording") is not None:
        recording = _recording(run, manifest["recording"])
    rounds = _rounds_run(run) if case.origin == "simulation" else manifest["recording"]["rounds"]
    record = spec.record if isinstance(spec.record, str) else f"rounds {list(spec.record.rounds)}"
    model, parameters = "not stated", 0
    if case.networks is not None:
        model = spec.model.name
        parameters = sum(tensor.numel() for tensor in case.initial().values())
    return RunCard(
        name=spec.name,
        status=status,
        profile=spec.profile,
        protocol=protocol.card.name,
        protocol_summary=(protocol.__doc__ or "").strip().split("\n")[0],
        roles=tuple(roles_of(protocol, case.protocol_config)),
        deviations=protocol.card.differences,
        dataset=spec.dataset.name,
        dataset_provenance=case.dataset.provenance,
        task=case.dataset.task.name,
        clients=spec.clients,
        rounds=rounds,
        model=model,
        client_models=tuple(m.name for m in spec.client_models),
        silences=silences,
        departures=tuple(departures),
        parameters=parameters,
        head=manifest["head"],
        messages=manifest["messages"],
        record=record,
        transport=spec.transport,
        spec=spec.public(commitments["seed"]),
        spec_sha256=manifest["spec_sha256"],
        versions=manifest["versions"],
        device=execution.device,
        threads=execution.threads,
        strategy=execution.strategy,
        seed_commitment=commitments["seed"],
        release=spec.release,
        data_commitment=commitments.get("data", ""),
        model_hashes=_model_hashes(run.vault),
        origin=case.origin,
        recording=recording,
    )


def _recording(run: RunDirectory, stated: Mapping[str, Any]) -> Recording:
    """Return what the manifest says of a recording, with the members that no message used."""
    uses: dict[int, list[int]] | None = None
    if run.vault.has(USES):
        uses = {}
        for seq, records in run.vault.load(USES).items():
            uses[int(seq)] = records.tolist()
    unused = unused_members(run.case, run.messages, uses)
    untried = tuple(_untried(run.case, run.vault))
    return validate(Recording, stated, "recording").model_copy(update={"unused": unused, "untried": untried})


def keep_untried(vault: Vault, measured: Sequence[UntriedDeviation]) -> None:
    """Keep in a vault what deviations gained on a stand-in, which later results of the recording have."""
    save_json(vault.directory / _UNTRIED, {"untried": [one.plain() for one in measured]}, indent=1)


def _untried(case: Case, vault: Vault) -> Iterator[UntriedDeviation]:
    """Yield the shipped deviations that change messages which a recorded system sends, with what was measured."""
    measured: dict[tuple[str, str], UntriedDeviation] = {}
    for one in _kept(vault, _UNTRIED, UntriedDeviation, "measure again: `fdaudit active RUN`"):
        measured[one.name, one.role] = one
    senders = {(m["from"], m["kind"]) for m in case.declared_messages}
    for name in deviations.REGISTRY.names():
        card = deviations.REGISTRY.describe(name)
        for who in card.roles:
            kinds = []
            for kind in card.changes:
                if (who, kind) in senders:
                    kinds.append(kind)
            if kinds:
                bare = UntriedDeviation(name=name, role=who, kinds=tuple(kinds), attacks=card.read_by)
                yield measured.get((name, who), bare)


def _model_hashes(vault: Vault) -> tuple[ModelHash, ...]:
    """Return the SHA-256 of the final models that non-clients hold, as safetensors: a release is recognised by it.

    A client's own model has no digest here: it would confirm a guess of the client's records and settings.
    """
    hashes = []
    for name in vault.names("models"):
        party = name.removeprefix("models/")
        if role(party.replace("-", "/")) == "client":
            continue
        path = vault.directory / f"models/{party}.safetensors"
        try:
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise IntegrityError([f"vault/models/{path.name} cannot be read: {error.strerror}"]) from None
        hashes.append(ModelHash(party=party, sha256=digest.hexdigest()))
    return tuple(hashes)


def _ledgers(run: RunDirectory) -> list[Ledger]:
    """Return the ledgers of the spec's adversaries and of each non-client party."""
    books = books_of(run)
    choices = books.choices
    ledgers = []
    for view in books.views:
        ledger = books.ledger(view, delta=choices.delta, unit=choices.unit, relation=choices.relation)
        ledgers.append(replace(ledger, against=books.against(ledger)))
    return ledgers


def _rounds_run(run: RunDirectory) -> int:
    checkpoint = run.vault.load_round()
    return int(checkpoint["round"]) + 1 if checkpoint else 0


def _interruptions(
    run: RunDirectory, silences: Sequence[Silence], stage: Unfinished | None, attack_time: Budget | None
) -> Iterator[str]:
    """Yield notes on silent parties, a spent privacy budget, an attack stage before its end, and a budget of time."""
    for silence in silences:
        rounds_of = silence.rounds
        yield (
            f"{silence.party} went silent in {len(rounds_of)} rounds (first {rounds_of[0]}, last {rounds_of[-1]}): "
            "they were completed without what it did not send."
        )
    case = run.case
    rounds, finished = case.protocol_config.rounds, _rounds_run(run)
    budget = case.spec.privacy.budget
    if budget is not None and finished < rounds:
        limit = f"The budget of ε = {budget.epsilon:g} for {budget.adversary}"
        if budget.against:
            limit += f", also if a departing role is {' or '.join(budget.against)},"
        ended = f"{limit} ended the run after {finished} of {rounds} rounds"
        yield f"{ended}: another would have passed it. What is published at the end was not published."
    if stage is not None:
        unknown = (
            "What the others would find is not known, and the correction for many tests does not count them."
        )
        yield f"Provisional: {stage.words}. {unknown}"
    if attack_time is not None:
        yield f"The attacks had a {attack_time.words}. More time may find more."


def _silences(log: Sequence[Message]) -> tuple[Silence, ...]:
    """Return the parties that went silent, with their rounds, from the transcript."""
    rounds_of: dict[str, list[int]] = {}
    for message in log:
        if message.kind == "silence":
            rounds_of.setdefault(message.sender, []).append(message.round)
    silences = []
    for party, rounds in rounds_of.items():
        silence = Silence(party=party, rounds=tuple(rounds))
        silences.append(silence)
    return tuple(silences)


def _limits(case: Case) -> list[str]:
    spec, attacked = case.spec, case.splits.clients[: case.spec.victims]
    pairs = [len(client.members) for client in attacked]
    if not max(pairs):
        resolution = "No matched pairs were set aside: nothing was measured about membership."
    elif case.design == "observational":
        resolution = NO_COINS
    else:
        y = case.dataset.y
        members = torch.cat([client.members for client in attacked])
        others = torch.cat([client.non_members for client in attacked])
        about = case.dataset.task.labels.about_pairs(y[members], y[others])
        resolution = (
            f"Membership rests on {min(pairs)} to {max(pairs)} matched pairs a victim: a true-positive rate at a "
            f"false-positive rate below {1 / max(pairs):.1%} cannot be measured and is refused. {about}"
        ).strip()
    return [
        "One run with one seed: intervals speak of these records and victims, not of other partitions or seeds.",
        f"{spec.victims} of {spec.clients} clients were attacked, the first ones, fixed before the run.",
        resolution,
        "Parties were honest but curious; an adversary that deviates from the protocol may learn more.",
        *_assumed_beforehand(case),
        "An attack that found nothing bounds nothing: a stronger one may exist.",
        "The record finds damage and edits; unsigned, it proves neither who made it nor that the run was honest.",
    ]


def _assumed_beforehand(case: Case) -> Iterator[str]:
    """Yield what adversaries were assumed to hold, and the public samples that reached parties without a message."""
    if not case.missing("auxiliary"):
        yield "Adversaries were assumed to hold auxiliary records from the clients' own distribution."
    if not case.protocol.card.needs_public or not len(case.public):
        return
    samples = f"{len(case.public):,} public samples"
    if case.public_labels is not None:
        samples += " and their labels"
    clients, once = case.spec.clients, case.public.numel()
    yield (
        f"Every party held the {samples} before the first message, and no count of bytes "
        f"includes them. A copy for each of {clients} clients is {clients * once:,} bytes in all, at one byte a value."
    )


def _reproduce(origin: str) -> Reproduce:
    if origin == "recording":
        return Reproduce(
            commands=("fdaudit verify RUN", "fdaudit attack RUN --all", "fdaudit report RUN"),
            notes=(
                "The federation ran elsewhere: fdaudit can repeat the attacks on its record, not the federation.",
                "The attacks need this run's vault, which holds what was brought, the seed and the secret.",
            ),
        )
    return Reproduce(
        commands=(
            "fdaudit verify RUN",
            "fdaudit run RUN/spec.yaml --seed-from RUN --out AGAIN",
            "fdaudit report RUN",
        ),
        notes=(
            "The second command needs this run's vault, which holds its seed and its secret.",
            "On the same machine, with the versions above, it ends with the same head, byte for byte.",
        ),
    )
