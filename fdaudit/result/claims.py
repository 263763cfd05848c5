"""Claims and tests in a result: ε of each view, checks of claims from below, and p-values corrected for all tests."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fdaudit.result.part import AUDITOR, Audience, Part, Shown, is_empty

__all__ = [
    "Adjusted",
    "AgainstActive",
    "ByCoins",
    "ByThemselves",
    "Check",
    "ClaimVerdict",
    "Contribution",
    "Evidence",
    "Family",
    "LedgerEntry",
]

ClaimVerdict = Literal["contradicted", "consistent", "inconclusive", "nothing-claimed", "not-checked"]


class Contribution(Part):
    """The share of one kind of message in the ε of the worst-affected client."""

    _audience: ClassVar[Audience] = "public"

    kind: str
    sender: str
    """Role of the sender."""
    mechanism: str
    """Class of the privacy event."""
    charges: int
    """How many mechanisms are charged."""
    epsilon: float
    """Their cost without the rest."""


class AgainstActive(Part):
    """What is left of a claimed ε if parties depart from the protocol, in what they send and to whom."""

    _audience: ClassVar[Audience] = "public"

    departs: str
    """Role of the parties that depart: `server`, `aggregator`, or `client` for clients other than the victim."""
    number: int
    """How many of them depart."""
    holds: bool
    """Whether the claim holds as it is."""
    epsilon: float | None
    """The ε that may be stated then; None: none."""
    why: str = ""
    """Why none; empty otherwise."""

    @property
    def who(self) -> str:
        """Return who departs, in words."""
        if self.departs != "client":
            return f"the {self.departs}"
        return "one other client" if self.number == 1 else "all other clients"

    @property
    def condition(self) -> str:
        """Return the case as a clause, `If the server departs from the protocol`."""
        depart = "depart" if self.who.startswith("all") else "departs"
        return f"If {self.who} {depart} from the protocol"


class LedgerEntry(Part):
    """ε of one adversary's view for one unit of the worst client; `None` means infinite, with its cause."""

    _audience: ClassVar[Audience] = "public"

    adversary: str
    epsilon: float | None
    delta: float | None = None
    unit: str = ""
    """What changes between neighbours: one record of a client, a group of records, or all of it."""
    relation: str = ""
    """How it changes."""
    victim: str = ""
    """The worst client, or empty when every client is a member of the adversary."""
    cause: str = ""
    """Why ε is infinite; empty otherwise."""
    message: int | None = None
    """`seq` of the first message that makes ε infinite."""
    kind: str = ""
    """Its kind."""
    accountant: str = ""
    """The rule that gave ε, with its version."""
    contributions: tuple[Contribution, ...] = ()
    sampling: str = ""
    """The sampling that the figure assumes, and the actual sampling."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gdp: float | None = None
    """μ of μ-GDP for every client; only if all charges are plain Gaussians, since μ is then exact."""
    zcdp: float | None = None
    """ρ of ρ-zCDP for every client; only if all charges are Gaussians or discrete Gaussians."""
    against: tuple[AgainstActive, ...] = Field(default=(), exclude_if=is_empty)
    """What is left of ε if parties depart from the protocol; empty if it rests on no noise."""

    @property
    def withstands(self) -> tuple[str, ...]:
        """Return who may depart from the protocol without harm to the claim, in words."""
        names = list[str]()
        for case in self.against:
            if case.holds:
                names.append(case.who)
        return tuple(names)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return who must follow the protocol for the claim to hold, in words."""
        names = dict[str, None]()
        for case in self.against:
            if case.holds:
                continue
            name = f"the {case.departs}"
            if case.departs == "client":
                name = "all other clients"
            names[name] = None
        return tuple(names)

    @property
    def rests_on_noise(self) -> bool:
        """Return whether ε is finite because of noise, and not because the view has nothing private in it."""
        return self.epsilon is not None and bool(self.contributions)


class Evidence(Part):
    """Result of one attack on one kind of coins: lower bounds of ε and of μ, and those of a perfect attack."""

    attack: str
    on: str
    """`candidates` of the membership challenge, or `canaries`."""
    design: str
    """How membership was decided."""
    coins: int
    """Fair coins that were tossed."""
    bound: float
    """Lower bound on ε, in the terms of the claim."""
    power: float
    """The bound that a perfect attack, which knows every coin, would have shown."""
    mu: float = 0.0
    """The view is not μ'-GDP for any μ' below this, in the terms of the claim."""
    mu_power: float = 0.0
    """The same, of a perfect attack."""
    gaussian: float = 0.0
    """ε at the claim's δ of a mechanism that is exactly `mu`-GDP."""
    p: float = 1.0
    """Upper bound on the probability that either test shows as much if the claim holds; for one test."""


class Check(Part):
    """The verdict on one view's claim of ε, from what the attacks achieved; bounds hold at `confidence` each."""

    _audience: ClassVar[Audience] = "public"

    adversary: str
    claimed: float | None
    """ε of the ledger; None if it is infinite."""
    delta: float | None = None
    """δ of both."""
    unit: str = ""
    """What the claim protects."""
    relation: str = ""
    """Which records are neighbours."""
    verdict: ClaimVerdict
    reason: Annotated[str, Shown("auditor", instead="")]
    """The verdict in one sentence."""
    confidence: float
    """Of each bound, after the correction for the number of tests in the run."""
    bound: Annotated[float | None, AUDITOR] = None
    """The largest of the attacks' bounds; None if none gave scores."""
    power: Annotated[float | None, AUDITOR] = None
    """The largest bound that a perfect attack could have shown."""
    needed: Annotated[int | None, AUDITOR] = None
    """Number of correct guesses, without errors, that would contradict the claim; None if no number would."""
    gdp: float | None = None
    """μ that the ledger claims; None if it states ε alone."""
    mu: Annotated[float | None, AUDITOR] = None
    """The largest of the attacks' bounds of μ; None if none gave scores."""
    gaussian: Annotated[float | None, AUDITOR] = None
    """ε at δ of a mechanism that is exactly `mu`-GDP."""
    p: Annotated[float | None, AUDITOR] = None
    """Upper bound on the probability that any test of the run shows as much if all its claims hold."""
    evidence: Annotated[tuple[Evidence, ...], AUDITOR] = ()
    """By attack and kind of coins."""
    source: str = ""
    """Who claims it, if the claim is a recorded system's own and not the ledger's."""


class Adjusted(Part):
    """A figure's p-value after correction for all tests of the run; of all victims if `target` is None."""

    cell: str
    target: str | None = None
    figure: str
    p: float
    floor: float | None = None
    """The least AUC that would have been significant; None if even a perfect one would not."""


class ByCoins(Part):
    """Membership figures, tested by joint re-flips of the known coins; each `floor` is the largest of all cells."""

    level: float
    coins: int
    reflips: int
    statistics: int
    floor: float | None = None
    floor_one_victim: float | None = None


class ByThemselves(Part):
    """Figures that carry a p-value of their own, corrected by Holm's method."""

    level: float
    tests: int


class Family(Part):
    """All tests of a run: the probability that any is significant if nothing leaks is at most `level`."""

    level: float
    by_coins: ByCoins | None = None
    by_themselves: ByThemselves | None = None
    adjusted: tuple[Adjusted, ...] = ()

    @property
    def tests(self) -> int:
        """Return the number of tested figures."""
        return len(self.adjusted)
