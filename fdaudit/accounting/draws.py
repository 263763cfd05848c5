"""Draws of clients: whether the record shows that they hide who took part.

Guarantees:
  * a draw counts only if it is on record, fresh in its step, and every drawn client answered;
  * one silent client ends the credit for every draw of a fixed size: silence shows who was drawn;
  * chance counts only if no answer depends on earlier chance except through noisy sums. A client that remembers when it
    was drawn could tell in a later round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fdaudit.accounting.charges import parts_of
from fdaudit.events import DrawnGaussian, Gaussian, Mechanism, NoGuarantee, SampledGaussian
from fdaudit.transcript.messages import ALL, DATA, DRAWN, Message, role

__all__ = ["Draws", "mechanisms", "named", "remembering", "silence", "unfit_sums"]


def mechanisms(message: Message) -> tuple[Mechanism, ...]:
    """Return the mechanisms of a message's event; an empty tuple without an event or a guarantee."""
    event = message.event
    if event is None or isinstance(event, NoGuarantee):
        return ()
    return parts_of(event)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The draws of one client of many for a release of its own, as the record shows them.

    A draw hides who answered only if every client would have answered alike. So all draws are on record, each drawn
    client answered, once a step and by one and the same release, and no client went silent at any time: a client that
    does not answer changes what is released, and an answer then shows that another one was drawn.

    Attributes:
        steps: by number of clients drawn from, how many draws there were.
        problem: why the draws are worth nothing; empty otherwise.
    """

    steps: Mapping[int, int]
    problem: str = ""

    @classmethod
    def of(cls, messages: Sequence[Message], clients: int) -> Draws:
        """Return the draws of a record of so many clients, and the first reason why they are worth nothing."""
        requests = [m for m in messages if DRAWN in m.fields]
        problem = _unfit_draws(requests, messages, clients)
        steps = Counter[int]()
        if not problem:
            steps.update(m.fields[DRAWN] for m in requests)
        return cls(steps=steps, problem=problem)


def _unfit_draws(requests: Sequence[Message], messages: Sequence[Message], clients: int) -> str:
    """Return why draws do not hide who answered, or an empty text."""
    for request in requests:
        drawn_from = request.fields[DRAWN]
        if type(drawn_from) is not int or not 1 < drawn_from <= clients:
            return f"a draw on record is not one of at most {clients} clients"
    problem = silence(messages)
    if problem:
        return problem
    answers = list[tuple[Message, Gaussian]]()
    for message in messages:
        for event in mechanisms(message):
            if isinstance(event, Gaussian) and event.drawn_from > 1:
                answers.append((message, event))
    rules = {(answer.event, answer.kind, len(mechanisms(answer))) for answer, _ in answers}
    if len(rules) > 1 or any(count > 1 for _, _, count in rules):
        return "not all drawn clients release by the same rule"
    unanswered, steps = dict[tuple[int, int, tuple[str, ...], int], int](), set[tuple[int, int]]()
    for m in requests:
        unanswered[m.round, m.step, m.receivers, m.fields[DRAWN]] = m.seq
        steps.add((m.round, m.step))
    if len(steps) < len(requests):
        return "a step draws more than one client"
    for answer, event in answers:
        seq = unanswered.pop((answer.round, answer.step, (answer.sender,), event.drawn_from), None)
        if seq is None or not (answer.inputs == ALL or seq in answer.inputs):
            return f"the draw of {answer.sender} in round {answer.round}, step {answer.step} is not on record"
    if unanswered:
        round, step, receivers, _ = next(iter(unanswered))
        return f"{', '.join(receivers)} was drawn in round {round}, step {step}, and did not answer"
    return ""


def silence(messages: Sequence[Message]) -> str:
    """Return which client was silent first, or an empty text."""
    for m in messages:
        if m.kind == "silence" and role(m.sender) == "client":
            return f"{m.sender} was silent in round {m.round}, which shows when it was drawn"
    return ""


def unfit_sums(messages: Sequence[Message], clients: int) -> str:
    """Return why noisy sums do not hide which clients were drawn, or an empty text.

    Each sum names one request of its step among its inputs. The request went to as many clients as were drawn, and
    states from how many. The sum has one message of each of these clients among its inputs, and of no other.

    Args:
        messages: the whole record.
        clients: number of clients of the federation.
    """
    problem = silence(messages) or remembering(messages)
    if problem:
        return problem
    steps = set[tuple[int, int]]()
    for whole in messages:
        if not any(isinstance(event, DrawnGaussian) for event in mechanisms(whole)):
            continue
        problem = _unfit_sum(whole, messages, clients)
        if problem:
            return f"the sum in round {whole.round}, step {whole.step} {problem}"
        if (whole.round, whole.step) in steps:
            return f"round {whole.round}, step {whole.step} has more than one sum"
        steps.add((whole.round, whole.step))
    return ""


def _unfit_sum(whole: Message, messages: Sequence[Message], clients: int) -> str:
    """Return why one noisy sum does not hide which clients were drawn, or an empty text."""
    event = whole.event
    if not isinstance(event, DrawnGaussian) or event.count != 1:
        return "is not one release alone"
    if event.clients > clients:
        return f"draws from {event.clients} clients, and there are {clients}"
    if not any("without replacement" in str(d.get("sampling", "")) for d in whole.defenses):
        return "does not state its draw"
    if whole.kind != "release" or whole.receivers or role(whole.sender) == "client":
        return "is not made inside a server"
    if whole.inputs == ALL:
        return "does not state its inputs"
    here = (whole.sender, whole.round, whole.step)
    requests, answering = list[Message](), list[str]()
    for m in named(whole, messages):
        if DRAWN in m.fields and (m.sender, m.round, m.step) == here:
            requests.append(m)
        if role(m.sender) == "client":
            answering.append(m.sender)
    if len(requests) != 1 or requests[0].fields[DRAWN] != event.clients:
        return "has no request of a draw on record"
    receivers = sorted(requests[0].receivers)
    if len(receivers) != event.drawn or any(role(party) != "client" for party in receivers):
        return f"asked {len(receivers)} parties, and {event.drawn} clients were drawn"
    if sorted(answering) != receivers:
        return "is not over one answer of each drawn client"
    return ""


def remembering(messages: Sequence[Message]) -> str:
    """Return which answer in a noisy sum may depend on who took part earlier, or an empty text.

    Composition needs every step's answers to be functions of the clients' data and of earlier sums. An answer may name
    its sender's data, the sender's own releases of this step, and messages that are computed from noisy sums alone.
    """
    public = set[int]()
    for m in messages:
        if _is_sum(m) or (role(m.sender) != "client" and _within(m, public)):
            public.add(m.seq)
    for whole in filter(_is_sum, messages):
        for part in named(whole, messages):
            if part.seq in public:
                continue
            here = (part.sender, part.round, part.step)
            known = set(public)
            for m in named(part, messages):
                is_own = m.kind == "release" and (m.sender, m.round, m.step) == here
                if is_own and _within(m, public, data=True):
                    known.add(m.seq)
            if role(part.sender) != "client" or not _within(part, known, data=True):
                where = f"round {part.round}, step {part.step}"
                return f"{part.kind} of {part.sender} in {where} may depend on who took part before"
        if whole.inputs == ALL:
            return f"the sum in round {whole.round}, step {whole.step} does not state its inputs"
    return ""


def _is_sum(message: Message) -> bool:
    """Return whether a message is a noisy sum over clients that took part by chance."""
    return any(
        isinstance(e, DrawnGaussian)
        or (isinstance(e, SampledGaussian) and e.unit == "client" and e.sample_rate < 1)
        for e in mechanisms(message)
    )


def named(message: Message, messages: Sequence[Message]) -> list[Message]:
    """Return the messages that one names among its inputs."""
    if message.inputs == ALL:
        return []
    return [messages[int(i)] for i in message.inputs if i != DATA]


def _within(message: Message, known: Collection[int], *, data: bool = False) -> bool:
    """Return whether a message was computed from known messages only, and from its sender's data if that is allowed."""
    if message.inputs == ALL or (DATA in message.inputs and not data):
        return False
    return all(int(i) in known for i in message.inputs if i != DATA)
