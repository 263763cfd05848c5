"""The ledger: which paths are charged, against an independent search, and what no walk may overlook."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.accounting.charges import Drawn
from fdaudit.accounting.charging import SUM
from fdaudit.accounting.costs import ORDERS, epsilon
from fdaudit.accounting.ledger import Books, OracleAnswers
from fdaudit.errors import IntegrityError, SpecError
from fdaudit.events import Composed, DiscreteGaussian, Gaussian, NoGuarantee
from fdaudit.spec.privacy import PrivacySpec

from ..helpers.ledger_cases import CLIENT, RECORD, Log, brute_force, dp_sgd, gaussian, laplace, pure

PARTIES = ("server", "aggregator", "client/0", "client/1", "client/2", "world")
INF = math.inf


def books(log: Log, **more: Any) -> Books:
    return Books(log, PARTIES, **more)


# -- random graphs ------------------------------------------------------------------------------------------------

EVENTS = st.sampled_from(
    [
        None, None, None, NoGuarantee(reason="none"), gaussian(1.0), gaussian(4.0), laplace(0.7), pure(0.3),
        gaussian(2.0, covers=("each-client",)), laplace(3.0, covers=("each-client",)), gaussian(3.0, covers=("data",)),
        gaussian(0.5, covers=("messages",)), dp_sgd(), dp_sgd(3.0),
        Composed(parts=(gaussian(2.0), pure(0.1))),
    ]
)  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Log:
    """Up to 12 messages between few parties; each is computed from data, earlier messages it holds, or everything.

    Some are silence, and the last few may be answers of oracles, which have no receivers: who asks gets them.
    """
    log = Log()
    for number in range(size := draw(st.integers(1, 12))):
        oracle = number >= size - 2 and draw(st.booleans())
        sender = draw(st.sampled_from(PARTIES[:4]))
        to = (
            ""
            if oracle
            else draw(st.sampled_from(["server", "client/0 client/1", "aggregator", "world", ""]))
        )
        if not oracle and draw(st.integers(0, 9)) == 0:
            log.add(sender, to, "silence", [])
            continue
        held: list[Any] = [m.seq for m in log if sender in m.parties()]
        choices = [*held, *(["data"] if sender.startswith("client") else [])]
        inputs = draw(
            st.one_of(
                st.just("all"), st.lists(st.sampled_from(choices), unique=True) if choices else st.just([])
            )
        )
        kind = "oracle_answer" if oracle else draw(st.sampled_from(["logits", "hard_labels"]))
        log.add(sender, to, kind, inputs, draw(EVENTS))
    return log


def cut(log: Log) -> tuple[Log, list[OracleAnswers]]:
    """The record, and the answers that follow it: the server may ask."""
    first = next((m.seq for m in log if m.kind == "oracle_answer"), len(log))
    while any(m.kind != "oracle_answer" for m in log[first:]):
        first = next((m.seq for m in log[first + 1 :] if m.kind == "oracle_answer"), len(log))
    server = frozenset({"server"})
    asked = [OracleAnswers(message=m, asked_by=server, heard_by=server, queries=5) for m in log[first:]]
    return Log(log[:first]), asked


@pytest.mark.thorough
@settings(max_examples=120, deadline=None)
@given(
    log=graphs(),
    view=st.sampled_from(["server", "aggregator", "world", "client/1", "server+client/1", "eavesdropper"]),
    transport=st.sampled_from(["plain", "encrypted"]),
)
def test_a_ledger_is_the_least_of_all_valid_ways_to_charge(log: Log, view: str, transport: str) -> None:
    """Never below it; above it only by what a few orders for one cut may miss."""
    relation, delta = "add-or-remove", 1e-5
    members = view.split("+")
    record, asked = cut(log)
    telling = ("logits", "hard_labels") if transport == "plain" else ("logits",)
    seen = [m.seq for m in record if set(members) & set(m.parties())]
    if view == "eavesdropper":
        seen = [m.seq for m in record if m.kind in telling and set(m.receivers) - {m.sender}]
    if "server" in members:
        seen += [o.message.seq for o in asked]
    victims = [p for p in ("client/0", "client/1", "client/2") if p not in members]
    least = max(brute_force(log, seen, v, delta, "record", relation) for v in victims)
    sizes = [("hard_labels", role) for role in ("server", "aggregator", "client")]
    kept = books(record, transport=transport, oracles=asked, fixed_sizes=sizes)
    found = kept.ledger(view, delta=delta, relation=relation, pld=False)  # type: ignore[arg-type]
    if math.isinf(least):
        assert math.isinf(found.epsilon)
        return
    assert found.finite
    assert least - 1e-9 <= found.epsilon <= least * 1.02 + 1e-9


# -- three traps of a naive walk ---------------------------------------------------------------------------------


def rounds_of_dp_sgd(rounds: int) -> Log:
    log, update = Log(), []
    for t in range(rounds):
        w = log.add("server", "client/0", "model_parameters", update, round=t)
        trained = log.add("client/0", "", "release", ["data", w], dp_sgd(), round=t)
        update = [log.add("client/0", "server", "model_update", [trained, w], round=t)]
    return log


def test_two_rounds_compose_although_the_second_release_stands_before_the_first() -> None:
    one, two = (books(rounds_of_dp_sgd(n)).ledger("server") for n in (1, 2))
    assert one.epsilon == pytest.approx(epsilon({dp_sgd(): 1}, 1e-5).value)
    assert two.epsilon == pytest.approx(epsilon({dp_sgd(): 2}, 1e-5).value)
    assert two.epsilon > one.epsilon
    assert two.contributions[0].charges == 20, "steps of both rounds"


def test_an_undefended_client_upstream_of_anothers_dp_sgd_stays_unprotected() -> None:
    log = Log()
    bare = log.add("client/1", "server", "model_update", ["data"])
    w = log.add("server", "client/0", "model_parameters", [bare])
    trained = log.add("client/0", "", "release", ["data", w], dp_sgd())
    log.add("client/0", "world", "model_parameters", [trained])
    found = books(log).ledger("world")
    assert (found.epsilon, found.victim, found.message, found.kind) == (INF, "client/1", bare, "model_update")
    assert "through" in found.cause


def test_noise_on_votes_covers_a_clients_vote_and_not_what_others_voted_after_hearing_of_it() -> None:
    gnmax = gaussian(5.0, covers=("each-client",))
    log = Log()
    told = log.add("client/0", "client/1", "logits", ["data"])  # client/0 tells client/1, who votes on it
    votes = [
        log.add("client/0", "aggregator", "hard_labels", ["data"]),
        log.add("client/1", "aggregator", "hard_labels", ["data", told]),
    ]
    log.add("aggregator", "server", "hard_labels", votes, gnmax)
    found = books(log).ledger("server")
    assert (found.epsilon, found.victim, found.message) == (INF, "client/0", told)

    noised = gaussian(3.0)
    again = Log()
    again.add("client/0", "client/1", "logits", ["data"], noised)
    again.add("client/0", "aggregator", "hard_labels", ["data"])
    again.add("client/1", "aggregator", "hard_labels", ["data", 0])
    again.add("aggregator", "server", "hard_labels", [1, 2], gnmax)
    charged = books(again).ledger("server", relation="add-or-remove")
    assert charged.victim == "client/0"
    want = epsilon({gaussian(3.0, unit="record", relation="add-or-remove"): 1, _as_record(gnmax): 1}, 1e-5)
    assert charged.epsilon == pytest.approx(want.value)


def _as_record(event: Gaussian) -> Gaussian:
    return replace(event, unit="record", relation="add-or-remove")


# -- what counts and what does not -------------------------------------------------------------------------------


def test_post_processing_is_free_and_an_event_counts_once() -> None:
    log = Log()
    trained = log.add("client/0", "", "release", ["data"], dp_sgd())
    for _ in range(50):
        log.add("client/0", "server", "logits", [trained])
    log.add("server", "world", "model_parameters", "all")
    for view in ("server", "world"):
        assert books(log).ledger(view).epsilon == pytest.approx(epsilon({dp_sgd(): 1}, 1e-5).value)


def test_what_reaches_nobody_costs_nobody() -> None:
    log = Log()
    log.add("client/0", "server", "logits", ["data"])
    found = books(log).ledger("world")
    assert (found.epsilon, found.cause, found.contributions) == (0.0, "", ())


def test_members_are_no_victims_and_everybody_else_is() -> None:
    log = Log()
    log.add("client/0", "server", "logits", ["data"])
    assert books(log).ledger("server").victim == "client/0"
    assert books(log).ledger("server+client/0").epsilon == 0.0
    assert books(log).ledger("server+client/1").victim == "client/0"
    whole = books(log).ledger("server+client/0+client/1+client/2")
    assert (whole.epsilon, whole.victim) == (0.0, "")


def test_the_worst_client_is_reported() -> None:
    log = Log()
    for k, scale in enumerate((5.0, 1.0, 3.0)):
        log.add(f"client/{k}", "server", "logits", ["data"], gaussian(scale))
    found = books(log).ledger("server")
    assert found.victim == "client/1"
    assert found.epsilon == pytest.approx(epsilon({gaussian(1.0, unit="record"): 1}, 1e-5).value)


def test_undeclared_inputs_are_everything_that_the_sender_held() -> None:
    log = Log()
    log.add("client/0", "server", "logits", ["data"])
    log.add("server", "client/1", "ensemble_labels", [0], gaussian(1.0))
    log.add("client/1", "world", "logits", "all", gaussian(2.0, covers=("data",)))
    assert books(log).ledger("world").epsilon == pytest.approx(
        epsilon({gaussian(1.0, unit="record"): 1}, 1e-5).value
    ), "client/0 through the ensemble; client/1's own is quieter"
    log.add("server", "world", "model_parameters", "all")
    assert books(log).ledger("world").message == 0


def test_the_cheaper_of_two_gates_is_charged() -> None:
    log = Log()
    trained = log.add("client/0", "", "release", ["data"], dp_sgd(scale=8.0))
    log.add("client/0", "server", "logits", [trained], gaussian(0.2))
    found = books(log).ledger("server")
    assert found.epsilon == pytest.approx(epsilon({dp_sgd(scale=8.0): 1}, 1e-5).value)
    assert [c.kind for c in found.contributions] == ["release"]


def test_counts_cost_nothing_where_a_record_is_replaced_and_everything_where_it_is_removed() -> None:
    log = Log()
    log.add("client/0", "server", "sample_count", ["data"])
    assert books(log).ledger("server", relation="replace-one").epsilon == 0.0
    removed = books(log).ledger("server", relation="add-or-remove")
    assert (removed.epsilon, removed.kind) == (INF, "sample_count")
    assert books(log).ledger("server", unit="client", relation="replace-one").epsilon == INF


def test_a_choice_on_private_data_is_not_for_free() -> None:
    log = rounds_of_dp_sgd(1)
    for choice in ({"tuned_on": "private"}, {"stopped_on": "private"}, {"published": "chosen-on-private"}):
        found = books(log, choices=PrivacySpec(**choice)).ledger("server")
        assert found.epsilon == INF
        assert next(iter(choice)) in found.cause
    assert books(log, choices=PrivacySpec(tuned_on="public")).ledger("server").finite


def test_a_reason_is_repeated_with_what_of_the_message_is_raw() -> None:
    log = Log()
    log.add("client/0", "server", "hard_labels", ["data"], NoGuarantee(reason="NO NOISE"), round=3)
    found = books(log, reveals={("hard_labels", "client"): "THE INDEX"}).ledger("server")
    assert (found.kind, found.victim, found.message) == ("hard_labels", "client/0", 0)
    assert found.cause.endswith("(message 0): NO NOISE; THE INDEX")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(SpecError, match="delta"):
        books(Log()).ledger("server", delta=delta)


# -- units and relations -----------------------------------------------------------------------------------------


def test_what_cannot_be_stated_for_a_unit_is_refused_with_its_reason() -> None:
    log = Log()
    log.add("client/0", "", "release", ["data"], dp_sgd())
    log.add("client/0", "server", "logits", [0])
    client = books(log).ledger("server", unit="client")
    assert client.epsilon == INF
    assert "many records" in client.cause
    replaced, removed = (books(log).ledger("server", relation=r) for r in ("replace-one", "add-or-remove"))
    assert removed.epsilon < replaced.epsilon < 3 * removed.epsilon
    local = Log()
    local.add("client/0", "server", "logits", ["data"], gaussian(1.0))
    removed = books(local).ledger("server", unit="client", relation="add-or-remove")
    assert "was not bounded" in removed.cause


def test_a_removed_and_an_added_record_are_two_steps() -> None:
    log = Log()
    log.add("client/0", "server", "logits", ["data"], Gaussian(sensitivity=1.0, scale=2.0, **RECORD))
    twice = books(log).ledger("server", relation="replace-one")
    assert twice.epsilon == pytest.approx(
        epsilon({Gaussian(sensitivity=2.0, scale=2.0, **RECORD): 1}, 1e-5).value
    )


# -- exact sums, encrypted transport, drawn clients ---------------------------------------------------------------


def secure_sum(noise: float) -> Log:
    log = Log()
    event = Gaussian(sensitivity=2.0, scale=noise, **CLIENT) if noise else NoGuarantee(reason="no noise")
    shares = [log.add(f"client/{k}", "aggregator", "model_update", ["data"], event) for k in range(3)]
    log.add("aggregator", "server", "model_update", shares, **{SUM: True})
    return log


def test_noise_inside_an_exact_sum_adds_up_and_a_member_of_the_coalition_adds_none() -> None:
    for view, honest in (("server", 3), ("server+client/2", 2)):
        found = books(secure_sum(1.5)).ledger(view)
        whole = Gaussian(
            sensitivity=2.0,
            scale=1.5 * math.sqrt(honest),
            unit="record",
            relation="replace-one",
            covers=("each-client",),
        )
        assert found.epsilon == pytest.approx(epsilon({whole: 1}, 1e-5).value)
    alone = Gaussian(sensitivity=2.0, scale=1.5, unit="record", relation="replace-one", covers=("data",))
    assert books(secure_sum(1.5)).ledger("aggregator").epsilon == pytest.approx(
        epsilon({alone: 1}, 1e-5).value
    )


def test_noise_that_was_rounded_before_the_sum_lends_nothing_to_others() -> None:
    rounded = ({"name": "dp-fedavg"}, {"name": "rounding"})
    log = secure_sum(1.5)
    log.change(2, defenses=rounded)
    two = Gaussian(sensitivity=2.0, scale=1.5 * math.sqrt(2), **{**CLIENT, "unit": "record"})
    alone = Gaussian(sensitivity=2.0, scale=1.5, **{**CLIENT, "unit": "record"})
    assert books(log).ledger("server+client/2").epsilon == pytest.approx(epsilon({two: 1}, 1e-5).value)
    worst = books(log).ledger("server")
    assert (worst.victim, worst.epsilon) == ("client/2", pytest.approx(epsilon({alone: 1}, 1e-5).value))


def test_an_exact_sum_without_noise_has_no_epsilon() -> None:
    assert books(secure_sum(0)).ledger("server").epsilon == INF


def test_a_size_tells_nothing_only_where_it_is_declared_to_be_fixed() -> None:
    """What this record shows does not matter: its two messages have one size."""
    log = Log()
    for k in range(2):
        log.add(f"client/{k}", "server", "hard_labels", ["data"])
    fixed = [("hard_labels", "client")]
    declared = books(log, transport="encrypted", fixed_sizes=fixed).ledger("eavesdropper")
    assert declared.epsilon == 0.0
    assert books(log, transport="encrypted").ledger("eavesdropper").epsilon == INF
    assert (
        books(log, transport="encrypted", fixed_sizes=[("hard_labels", "server")])
        .ledger("eavesdropper")
        .epsilon
        == INF
    )
    assert books(log, fixed_sizes=fixed).ledger("eavesdropper").epsilon == INF, "a plain transport"


def test_fixed_sizes_are_assumed_only_of_an_eavesdropper_on_an_encrypted_transport() -> None:
    log = Log()
    log.add("client/0", "server", "hard_labels", ["data"])
    fixed = [("hard_labels", "client")]
    encrypted = books(log, transport="encrypted", fixed_sizes=fixed)
    sentence = "The size of hard_labels is fixed by public settings and tells nothing."
    assert sentence in encrypted.ledger("eavesdropper").assumptions
    assert sentence not in encrypted.ledger("server").assumptions
    assert sentence not in books(log, fixed_sizes=fixed).ledger("eavesdropper").assumptions


def overlapping(*summands: tuple[int, ...], **receivers: str) -> Log:
    log = Log()
    event = Gaussian(sensitivity=1.0, scale=1.0, **CLIENT)
    for k in range(3):
        log.add(f"client/{k}", receivers.get(f"client{k}", "aggregator"), "model_update", ["data"], event)
    for parts in summands:
        log.add("aggregator", "server", "model_update", parts, **{SUM: True})
    return log


def one_gaussian(scale: float, sensitivity: float = 1.0) -> float:
    event = Gaussian(sensitivity=sensitivity, scale=scale, **{**CLIENT, "unit": "record"})
    return epsilon({event: 1}, 1e-5).value


def test_a_sum_hides_a_summand_once() -> None:
    """The difference of sums over {0, 1, 2} and {0, 1} is client/2's message with its own noise alone."""
    found = books(overlapping((0, 1, 2), (0, 1))).ledger("server")
    assert found.epsilon >= one_gaussian(1.0)
    assert books(overlapping((0, 1, 2))).ledger("server").epsilon == pytest.approx(one_gaussian(math.sqrt(3)))
    apart = books(overlapping((0, 1), (2,))).ledger("server")
    assert apart.victim == "client/2"
    assert apart.epsilon == pytest.approx(one_gaussian(1.0))


def test_a_summand_in_clear_hides_nobody_in_the_sum() -> None:
    """What the server holds of client/1 apart from the sum is no noise on client/2's message."""
    log = overlapping((1, 2), client1="aggregator server")
    assert books(log).ledger("server+client/0").victim == "client/1"
    log.change(1, event=Gaussian(sensitivity=1.0, scale=9.0, **CLIENT))
    found = books(log).ledger("server")
    assert (found.victim, found.epsilon) == ("client/2", pytest.approx(one_gaussian(1.0)))
    elsewhere = overlapping((1, 2), client1="aggregator world")
    assert books(elsewhere).ledger("server").epsilon == pytest.approx(one_gaussian(math.sqrt(2)))
    assert books(elsewhere).ledger("server+world").epsilon == pytest.approx(one_gaussian(1.0))


DRAWS = 60


def drawn_log(
    *, of: int = 4, asked: tuple[int, ...] = (0, 1, 2, 3), silent: tuple[int, ...] = (), **event: Any
) -> Log:
    """A server that draws one of four clients in each of 60 steps and publishes what it made of their answers."""
    log, parts = Log(), list[int]()
    release = Gaussian(**{"sensitivity": 2.0, "scale": 30.0, "count": 4, "drawn_from": of, **CLIENT, **event})
    for s in range(DRAWS):
        k = asked[s * 7 % len(asked)]
        request = log.add("server", f"client/{k}", "logit_cotangents", [], drawn_from=of, round=s)
        if k in silent:
            log.add(f"client/{k}", "server", "silence", [], round=s)
        else:
            parts.append(
                log.add(f"client/{k}", "server", "sample_gradients", ["data", request], release, round=s)
            )
    log.add("server", "world", "model_parameters", parts, round=DRAWS)
    return log


FOUR = ("server", *(f"client/{k}" for k in range(4)), "world")


def test_only_who_cannot_tell_who_was_asked_may_count_the_chance() -> None:
    b = Books(drawn_log(), FOUR)
    world, server = b.ledger("world"), b.ledger("server")
    each = Gaussian(
        **{"sensitivity": 2.0, "scale": 30.0, "count": 4, "drawn_from": 4, **CLIENT, "unit": "record"}
    )
    assert server.epsilon == pytest.approx(epsilon({each: DRAWS // 4}, 1e-5).value)
    assert world.epsilon < server.epsilon
    assert world.epsilon == pytest.approx(
        epsilon({Drawn(gaussian=each, clients=4, steps=DRAWS): 1}, 1e-5).value
    )
    assert "4 clients" in world.sampling
    assert world.warnings == ()
    assert b.ledger("client/1+world").epsilon == pytest.approx(server.epsilon)


def test_noise_without_a_draw_assumes_no_sampling() -> None:
    log = Log()
    answers = [log.add(f"client/{k}", "server", "logits", ["data"], gaussian(30.0)) for k in range(4)]
    log.add("server", "world", "model_parameters", answers)
    world = Books(log, FOUR).ledger("world")
    assert world.epsilon == pytest.approx(epsilon({gaussian(30.0): 1}, 1e-5).value)
    assert world.sampling == ""


def two_in_one_step(log: Log) -> None:
    for seq in (2, 3):
        log.change(seq, round=0)


DAMAGES: dict[str, Callable[[Log], object]] = {
    "unrecorded": lambda log: log.change(0, fields={}),
    "unanswered": lambda log: log.change(1, event=None, inputs=(), kind="logits"),
    "two in one step": two_in_one_step,
    "by another": lambda log: log.change(1, sender="client/3"),
    "by another rule": lambda log: log.change(1, event=replace(log[1].event, scale=40.0)),
    "of other clients": lambda log: log.change(0, fields={"drawn_from": 5}),
    "by no number": lambda log: log.change(0, fields={"drawn_from": True}),
    "ended": lambda log: log.add("client/2", "server", "silence", [], round=DRAWS + 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_draw_counts_only_if_the_record_shows_that_it_hid_who_answered(damage: str) -> None:
    log = drawn_log()
    DAMAGES[damage](log)
    found = Books(log, FOUR).ledger("world")
    assert found.sampling == ""
    assert found.epsilon == pytest.approx(Books(log, FOUR).ledger("server").epsilon)
    assert any("is not counted" in line for line in found.warnings)


def test_draws_of_silent_clients_hide_nobody() -> None:
    """Whoever sees that a step changed nothing knows that the one client that answers was not drawn."""
    log = drawn_log(silent=(1, 2, 3))
    found = Books(log, FOUR).ledger("world")
    answered = sum(m.kind == "sample_gradients" for m in log)
    each = Gaussian(**{"sensitivity": 2.0, "scale": 30.0, "count": 4, **CLIENT, "unit": "record"})
    assert 0 < answered < DRAWS
    assert found.epsilon == pytest.approx(epsilon({each: answered}, 1e-5).value)
    assert "silent in round" in found.warnings[0]


def test_a_discrete_gaussian_costs_no_more_than_a_gaussian_does_by_its_orders() -> None:
    log = Log()
    log.add("client/0", "server", "logits", ["data"], DiscreteGaussian(sensitivity=3.0, scale=4.0, **CLIENT))
    found = books(log).ledger("server")
    orders = RdpAccountant(list(ORDERS)).compose(GaussianDpEvent(4.0 / 3.0))
    assert 0.99 * one_gaussian(4.0, 3.0) < found.epsilon <= orders.get_epsilon(1e-5) * (1 + 1e-6)


def test_a_transcript_with_a_gap_or_an_input_from_the_future_is_damage() -> None:
    log = Log()
    for inputs in ([], [5]):
        log.add("client/0", "server", "logits", inputs)
    for damaged in (log, log[1:]):
        with pytest.raises(IntegrityError, match=r"message 1 .* \[5\]"):
            Books(damaged, PARTIES).ledger("server")


def test_plain_data_of_a_ledger() -> None:
    entry = books(secure_sum(0)).ledger("server").entry
    assert entry.epsilon is None
    assert entry.kind == "model_update"


def test_the_worst_of_many_clients_is_priced_in_full() -> None:
    clients = [f"client/{k}" for k in range(4)]
    log = Log()
    for k, client in enumerate(clients):
        scale = 1.0 if k == 3 else 1.35 + 0.2 * k
        log.add(client, "server", "model_update", ("data",), dp_sgd(scale, rate=0.01, count=1000))
    found = Books(log, ["server", *clients]).ledger("server")
    assert found.victim == "client/3"
    assert found.epsilon == pytest.approx(1.8282, abs=1e-3)


@pytest.mark.thorough
def test_a_loud_figure_by_renyi_curves_does_not_make_a_client_the_worst() -> None:
    """By Rényi curves the first client is worse, by loss distributions the last of twelve."""
    clients = [f"client/{k}" for k in range(12)]
    log = Log()
    for k, client in enumerate(clients):
        event = gaussian(2.5, **RECORD) if k == 11 else dp_sgd(1.0 + 0.01 * k, rate=0.01, count=1000)
        log.add(client, "server", "model_update", ("data",), event)
    assert Books(log, ["server", *clients]).ledger("server", pld=False).victim == "client/0"
    found = Books(log, ["server", *clients]).ledger("server")
    exact = max((epsilon({m.event: 1}, 1e-5).value, m.sender) for m in log)
    assert (found.epsilon, found.victim) == exact
