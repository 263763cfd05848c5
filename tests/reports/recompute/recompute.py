"""Claims about what a report says of a whole run: record, utility, exposure, ledger, checks, gates and its matrix."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score

from . import recompute_statistics as statistics
from .recompute_cells import claim_cell
from .recompute_claims import Claims, Path, leaves
from .recompute_evidence import Array, Evidence
from .recompute_family import claim_family

LEVEL = 0.05
"""Shared by all checks of a run (docs/ledger.md)."""
EPSILON = 1e-4
"""Relative difference that two grids of privacy losses may make to ε."""
SHARES_TRIED = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
SHARES_OF_MU = ((1 / 8, 0.2), (1 / 2, 0.4), (1, 0.4))
"""Of pairs, by docs/ledger.md: shares of them that are guessed, and their parts of the level."""
TESTS = 2
GATES: Mapping[str, tuple[str, str, bool]] = {
    "reconstruction_gain_db": ("reconstruction", "psnr_gain", False),
    "membership_auc": ("membership", "auc", False),
    "membership_tpr_at_1fpr": ("membership", "tpr_at_1fpr", False),
    "label_tv": ("label-distribution", "label_tv", True),
}
"""By gate: whose figure, which, and whether a small value leaks (docs/spec.md)."""


def recompute(evidence: Evidence, document: Any) -> Claims:
    """A claim for every number of a report's JSON, from the run directory."""
    claims, result = Claims(), document["result"]
    for name, seconds in evidence.json("timings.json").items():
        if name == "ended":
            continue  # a day on the page, and no number
        claims.limited(("timings", name), seconds)
    _card(claims, evidence)
    _utility(claims, evidence, result["utility"])
    _traffic(claims, evidence, result)
    for place, cell in enumerate(result["cells"]):
        claim_cell(claims, evidence, place, cell)
    claim_family(claims, evidence, result)
    _ledger(claims, evidence, result)
    _checks(claims, evidence, result)
    _gates(claims, evidence, result)
    _severities(claims, result)
    _matrix(claims, document["matrix"], result["cells"])
    _sentences(claims, document)
    return claims


def _card(claims: Claims, evidence: Evidence) -> None:
    spec, run = evidence.spec, ("result", "run")
    for name, value in leaves({k: v for k, v in spec.items() if k != "seed"}):
        claims.equal((*run, "spec", *name), value)
    claims.equal(
        (*run, "clients"), len({m["sender"] for m in evidence.messages if m["sender"].startswith("client/")})
    )
    claims.equal((*run, "rounds"), evidence.messages[-1]["round"] + 1)
    claims.equal((*run, "messages"), len(evidence.messages))
    claims.equal((*run, "parameters"), sum(t.numel() for t in evidence.kept_model("server").values()))
    claims.equal((*run, "threads"), spec["threads"])
    for k, client in enumerate(evidence.clients):
        counts = np.bincount(evidence.labels[evidence.rows(f"{client}/train")], minlength=10)
        for c, count in enumerate(counts):
            claims.equal(("result", "class_table", k, c), count)


# -- utility ------------------------------------------------------------------------------------------------------


def _utility(claims: Claims, evidence: Evidence, utility: Any) -> None:
    last = {
        row["line"]: max(int(r["round"]) for r in evidence.utility if r["line"] == row["line"])
        for row in evidence.utility
    }
    final = [row for row in evidence.utility if int(row["round"]) == last[row["line"]]]
    true = evidence.labels[evidence.rows("test")]
    for k, row in enumerate(evidence.utility):
        where: Path = ("result", "utility", "curve", k)
        claims.equal((*where, "round"), int(row["round"]))
        predicted = _predicted(evidence, row, last[row["line"]])
        if predicted is not None:
            claims.equal((*where, "accuracy"), float(accuracy_score(true, predicted)))
            claims.equal((*where, "macro_f1"), float(f1_score(true, predicted, average="macro")))
        else:
            right = float(row["accuracy"]) * len(true)
            claims.limited(
                (*where, "accuracy"), round(right) / len(true) - 1e-12, round(right) / len(true) + 1e-12
            )
            claims.limited((*where, "accuracy"), float(row["accuracy"]))
            claims.limited((*where, "macro_f1"), float(row["macro_f1"]))
        if row in final:
            at = ("result", "utility", "final", final.index(row), "figure")
            right = float(row["accuracy"] if predicted is None else accuracy_score(true, predicted)) * len(
                true
            )
            if predicted is None:
                claims.limited((*at, "value"), right / len(true) - 1e-12, right / len(true) + 1e-12)
            else:
                claims.equal((*at, "value"), right / len(true))
            for name, value in zip(
                ("low", "high"), statistics.exact_interval(round(right), len(true)), strict=True
            ):
                claims.equal((*at, name), value, relative=1e-7)
            claims.equal((*at, "n"), len(true))
            claims.equal((*at, "confidence"), 0.95)
    if [(r["line"], r["party"]) for r in final] != [(f["line"], f["party"]) for f in utility["final"]]:
        claims.wrong.append("result/utility/final: other lines and parties than in utility.csv")


def _predicted(evidence: Evidence, row: Mapping[str, str], last: int) -> Array | None:
    """What a party's model after a round says of the test records, where that model was kept or sent."""
    round_, party = int(row["round"]), row["party"]
    if row["line"] != evidence.spec["protocol"]["name"]:
        return None
    trained = [m["round"] for m in evidence.messages if m["kind"] == "release" and m["sender"] == party]
    if round_ == last or (trained and round_ >= max(trained)):
        return evidence.predicted(evidence.kept_model(party))
    sent = evidence.sent_model(round_ + 1) if party == "server" else None
    return None if sent is None else evidence.predicted(sent)


# -- exposure -----------------------------------------------------------------------------------------------------


def _traffic(claims: Claims, evidence: Evidence, result: Any) -> None:
    parties = {p for m in evidence.messages for p in (m["sender"], *m["receivers"])}
    seen = Counter[tuple[str, ...]]()
    sizes = Counter[tuple[str, ...]]()
    sent, delivered = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for m in evidence.messages:
        role = m["sender"].partition("/")[0]
        sent[m["kind"], role] += 1
        delivered[m["kind"], role] += m["bytes_on_wire"] * len(m["receivers"])
        for party in parties | set(evidence.spec["adversaries"]):
            members = set(party.split("+"))
            direction = "sent" if m["sender"] in members else "received"
            if direction == "sent" or members & set(m["receivers"]):
                seen[party, m["kind"], direction, role] += 1
                sizes[party, m["kind"], direction, role] += m["bytes_on_wire"]
    rows = {
        (r["party"], r["kind"], r["direction"], *r["senders"]): k for k, r in enumerate(result["exposure"])
    }
    _by_key(claims, "exposure", rows, {"count": seen, "bytes": sizes})
    rows = {(r["kind"], r["sender_role"]): k for k, r in enumerate(result["wire"])}
    _by_key(claims, "wire", rows, {"messages": sent, "bytes": delivered})


def _by_key(
    claims: Claims,
    table: str,
    rows: Mapping[tuple[str, ...], int],
    columns: Mapping[str, Counter[tuple[str, ...]]],
) -> None:
    for column, counts in columns.items():
        for key, count in counts.items():
            claims.equal(("result", table, rows.get(key, "/".join(key)), column), count)


# -- ε ------------------------------------------------------------------------------------------------------------


def _claim(evidence: Evidence) -> tuple[float, int] | None:
    """ε of DP-SGD by the spec's own settings, and the steps it has; None without it."""
    rules = [d["params"] for d in evidence.spec["defenses"] if d["name"] == "dp-sgd"]
    if not rules:
        return None
    steps = math.ceil(evidence.spec["protocol"]["params"]["local_epochs"] / rules[0]["sample_rate"])
    delta = evidence.spec["privacy"]["delta"]
    noise, rate = rules[0]["noise_multiplier"], rules[0]["sample_rate"]
    return statistics.sampled_gaussians(noise, rate, steps, delta), steps


def _ledger(claims: Claims, evidence: Evidence, result: Any) -> None:
    """Whoever sees anything of a client's sees what its one DP-SGD training gives, or what nothing bounds."""
    claim = _claim(evidence)
    for k, entry in enumerate(result["ledger"]):
        where: Path = ("result", "ledger", k)
        claims.equal((*where, "delta"), evidence.spec["privacy"]["delta"])
        if not claim:
            claims.equal((*where, "message"), _first_upload(evidence, entry["adversary"]))
        if claim:
            claims.equal((*where, "epsilon"), claim[0], relative=EPSILON)
            claims.equal((*where, "contributions", 0, "charges"), claim[1])
            claims.equal((*where, "contributions", 0, "epsilon"), claim[0], relative=EPSILON)
        # The noise is each client's own: whoever else departs, its training costs the same.
        for j, case in enumerate(entry.get("against", ())):
            others = len(evidence.clients) - 1 if case["departs"] == "client" else 1
            claims.equal((*where, "against", j, "number"), others)
            claims.equal((*where, "against", j, "epsilon"), claim[0], relative=EPSILON)


def _first_upload(evidence: Evidence, adversary: str) -> int:
    """The first message that a client other than the adversary computed from its records. Counts are public."""
    others = set(evidence.clients) - set(adversary.split("+"))
    uploads = (m for m in evidence.messages if m["sender"] in others and m["kind"] != "sample_count")
    return next(int(m["seq"]) for m in uploads if "data" in m["inputs"])


def _checks(claims: Claims, evidence: Evidence, result: Any) -> None:
    spec, claim = evidence.spec, _claim(evidence)
    membership = {c["attack"] for c in result["cells"] if c["goal"] == "membership"}
    asked = [a["name"] for a in spec["attacks"] if a["name"] in membership]
    parts = ["candidates", *(["canaries"] if spec["canaries"] else [])]
    views = [e["adversary"] for e in result["ledger"]]
    # What is declared beforehand leaves out what no record could feed; here these are the cells that did not apply.
    counted = [
        c
        for c in result["cells"]
        if c["attack"] in asked
        and c["adversary"] in views
        and c["status"] not in ("not-applicable", "not-requested")
    ]
    tests = len(counted) * len(parts)
    alpha = LEVEL / max(1, TESTS * tests) if claim else LEVEL
    for k, view in enumerate(views):
        where: Path = ("result", "checks", k)
        claims.equal((*where, "confidence"), 1 - alpha)
        claims.equal((*where, "delta"), spec["privacy"]["delta"])
        if not claim:
            continue
        claims.equal((*where, "claimed"), claim[0], relative=EPSILON)
        # Of the claim as it stands there, which is held to its own recomputation above.
        needed = statistics.guesses_needed(result["ledger"][k]["epsilon"], spec["privacy"]["delta"], alpha)
        claims.equal((*where, "needed"), needed)
        shown = _evidence_of(claims, evidence, (*where, "evidence"), view, asked, parts, alpha, result, k)
        if shown:
            largest = [max(values) for values in zip(*shown, strict=True)]
            mu = result["checks"][k]["mu"]
            claims.equal((*where, "bound"), largest[0], absolute=1e-6)
            claims.equal((*where, "power"), largest[1], absolute=1e-6)
            claims.equal((*where, "mu"), largest[2], absolute=1e-5)
            least = min(values[4] for values in shown)
            claims.equal((*where, "p"), min(1.0, TESTS * tests * least), relative=1e-6)
            claims.equal(
                (*where, "gaussian"), statistics.gaussian_epsilon(mu, evidence.spec["privacy"]["delta"]), 1e-6
            )


def _evidence_of(
    claims: Claims,
    evidence: Evidence,
    where: Path,
    view: str,
    attacks: Sequence[str],
    parts: Sequence[str],
    alpha: float,
    result: Any,
    number: int,
) -> list[tuple[float, ...]]:
    """The bounds of ε and μ of every attack on each kind of coins, each with that of a perfect attack, in order."""
    found: list[tuple[float, ...]] = []
    stated, claimed = result["checks"][number]["evidence"], result["ledger"][number]["epsilon"]
    for attack in attacks:
        for part in parts:
            scores = evidence.scores(f"{view}/{attack}", part)
            if not scores:
                continue
            at = (*where, len(found))
            coins, bounds = _bounds(evidence, scores, part, alpha, claimed)
            claims.equal((*at, "coins"), coins)
            claims.equal((*at, "bound"), bounds[0], absolute=1e-6)
            claims.equal((*at, "power"), bounds[1], absolute=1e-6)
            claims.equal((*at, "mu"), bounds[2], absolute=1e-5)
            claims.equal((*at, "mu_power"), bounds[3], absolute=1e-5)
            claims.equal((*at, "p"), bounds[4], relative=1e-6)
            # Of μ as it stands there, which is held to its own recomputation above.
            mu, delta = stated[len(found)]["mu"], evidence.spec["privacy"]["delta"]
            claims.equal((*at, "gaussian"), statistics.gaussian_epsilon(mu, delta), 1e-6)
            found.append(bounds)
    return found


def _bounds(
    evidence: Evidence, scores: Mapping[str, Array], part: str, alpha: float, claimed: float
) -> tuple[int, tuple[float, ...]]:
    delta = evidence.spec["privacy"]["delta"]
    held = {client: evidence.coins(client, part) for client in sorted(scores)}
    given = np.concatenate([scores[c] for c in held])
    member = np.concatenate([held[c].member for c in held])
    pairs = part == "candidates"
    if not pairs:
        r = evidence.spec["canaries"]["guesses"]
        ranks = np.argsort(np.argsort(given, kind="stable"))
        tried = [
            [(v, r) for v in statistics.right_guesses(x, member, r)] for x in (ranks, member.astype(float))
        ]
        coins = len(member)
        of_mu = [[(v, r, 1 / len(of)) for v, r in of] for of in tried]
    else:
        coins = len(member) // 2
        family = sorted({max(1, round(share * coins)) for share in SHARES_TRIED})
        inside, outside = (_by_coin(held, scores, which) for which in (True, False))
        both = ((inside, outside), (np.ones(coins), np.zeros(coins)))
        tried = [[(statistics.right_pairs(*pair, r), r) for r in family] for pair in both]
        parts = Counter[int]()
        for share, weight in SHARES_OF_MU:
            parts[max(1, round(share * coins))] += weight  # type: ignore[assignment]
        of_mu = [[(statistics.right_pairs(*pair, r), r, w) for r, w in parts.items()] for pair in both]
    epsilons = (max(_bound(v, r, coins, delta, alpha / len(of), pairs) for v, r in of) for of in tried)
    mus = (max(_mu(v, r, coins, alpha * w) for v, r, w in of) / (2 if pairs else 1) for of in of_mu)
    p = min(statistics.chance_of(v, r, coins, claimed, delta, pairs) * len(tried[0]) for v, r in tried[0])
    return coins, (*epsilons, *mus, min(1.0, p))


@lru_cache(maxsize=4096)
def _mu(right: int, r: int, coins: int, alpha: float) -> float:
    return statistics.least_mu(right, r, coins, alpha)


@lru_cache(maxsize=4096)
def _bound(right: int, r: int, coins: int, delta: float, alpha: float, pairs: bool) -> float:
    return statistics.least_epsilon(right, r, coins, delta, alpha, pairs)


def _by_coin(held: Mapping[str, Any], scores: Mapping[str, Array], inside: bool) -> Array:
    """Scores of the members, or of the others, in the order of their coins, client by client."""
    found = []
    for client, (member, coin) in held.items():
        chosen = member == inside
        found.append(scores[client][chosen][np.argsort(coin[chosen])])
    return np.concatenate(found)


# -- what follows from the cells ----------------------------------------------------------------------------------


def _gates(claims: Claims, evidence: Evidence, result: Any) -> None:
    asked = {name: threshold for name, threshold in evidence.spec["gates"].items() if threshold is not None}
    for k, row in enumerate(result["gates"]):
        goal, figure, smallest = GATES[row["name"]]
        measured = [
            cell
            for cell in result["cells"]
            if cell["goal"] == goal
            and any(
                f["name"] == figure and f["value"] is not None for t in cell["targets"] for f in t["figures"]
            )
        ]
        values = [
            f["value"]
            for cell in measured
            for target in cell["targets"]
            for f in target["figures"]
            if f["name"] == figure and f["value"] is not None
        ]
        claims.equal(("result", "gates", k, "threshold"), asked.pop(row["name"]))
        if values:
            worst = min(values) if smallest else max(values)
            claims.equal(("result", "gates", k, "value"), worst)
            held = worst >= row["threshold"] if smallest else worst <= row["threshold"]
            proven = {"run": set(), "inconclusive": set()}
            for cell in measured:
                proven[cell["status"]].add(cell["adversary"])
            unproven = sorted(proven["inconclusive"] - proven["run"])
            for m, adversary in enumerate(unproven):
                claims.equal(("result", "gates", k, "inconclusive_for", m), adversary)
            if row["passed"] != (held and not unproven):
                claims.wrong.append(f"gate {row['name']}: passed is {row['passed']} at {worst}")
    claims.wrong += [f"gate {name}: is not in the result" for name in asked]


def _severities(claims: Claims, result: Any) -> None:
    """The factors of each leak's severity by docs/report.md, and the word for their product."""
    cells = {c["id"]: c for c in result["cells"]}
    for k, view in enumerate(result["judgement"]["views"]):
        if view["level"] not in ("leak", "partial"):
            continue
        impact = {"reconstruction": 4, "membership": 3, "label-distribution": 2}[view["goal"]]
        access = 1 if "+" in view["adversary"] else {"world": 3}.get(view["adversary"], 2)
        strength = 1
        if view["level"] == "leak":
            strength = 3 if _beyond_doubt(cells[view["cell"]]) else 2
        for name, factor in (("impact", impact), ("access", access), ("strength", strength)):
            claims.equal(("result", "judgement", "views", k, "severity", name), factor)
        product = impact * access * strength
        word = next(
            w for w, least in (("critical", 24), ("high", 12), ("medium", 5), ("low", 1)) if product >= least
        )
        if view["severity"]["word"] != word:
            claims.wrong.append(f"severity of {view['cell']}: {view['severity']['word']} at {product}")


def _beyond_doubt(cell: Any) -> bool:
    """An AUC above 0.95, a gain above 10 dB, class shares within 0.05, each with its interval; or half the pictures."""
    for part in (cell, *cell["targets"]):
        for figure in part["figures"]:
            low, high = figure["low"], figure["high"]
            if figure["name"] == "auc" and low is not None and low > 0.95:
                return True
            if figure["name"] == "psnr_gain" and low is not None and low > 10:
                return True
            if figure["name"] in ("label_tv", "label_tv_mean") and high is not None and high < 0.05:
                return True
    for target in cell["targets"]:
        clear = [i["psnr"] >= 20 and i["psnr"] - i["prior_psnr"] >= 6 for i in target["images"]]
        if clear and 2 * sum(clear) >= len(clear):
            return True
    return False


def _matrix(claims: Claims, matrix: Sequence[Any], cells: Sequence[Any]) -> None:
    """The deciding figure of all victims and of the worst one, what it is compared with, and the worst record."""
    ran = [c for c in cells if c["status"] == "run"]
    if sorted(line["cell"] for line in matrix) != sorted(c["id"] for c in ran):
        claims.wrong.append("matrix: other cells than those that ran")
    for k, line in enumerate(matrix):
        (cell,) = [c for c in ran if c["id"] == line["cell"]]
        figures = {f["name"]: f["value"] for f in cell["figures"]}
        each = [{f["name"]: f["value"] for f in t["figures"]} for t in cell["targets"]]
        record = None
        if cell["goal"] == "reconstruction":
            worst = max(each, key=lambda f: f["psnr_gain"])["psnr"]
            mean, baseline, record = figures["psnr"], figures["psnr_prior"], figures["psnr_max"]
        elif cell["goal"] == "membership":
            mean, worst, baseline = figures["auc"], max(f["auc"] for f in each), 0.5
            points = [zip(t["roc"]["fpr"], t["roc"]["tpr"], strict=True) for t in cell["targets"]]
            record = max(tpr for of in points for fpr, tpr in of if fpr == 0)
        else:
            mean, worst = figures["label_tv_mean"], min(f["label_tv"] for f in each)
            baseline = figures["label_tv_prior_mean"]
        for name, value in (("mean", mean), ("worst", worst), ("baseline", baseline)):
            claims.equal(("matrix", k, name), value)
        if record is not None:
            claims.equal(("matrix", k, "worst_record", "value"), record)


# -- numbers in sentences -----------------------------------------------------------------------------------------

DECIDING: Mapping[str, tuple[str, ...]] = {
    "reconstruction": ("psnr_gain",),
    "membership": ("auc",),
    "label-distribution": ("label_tv", "label_tv_mean"),
}


def _sentences(claims: Claims, document: Any) -> None:
    """The numbers of each finding, of the reasons that repeat it, and of how far the verdict carries."""
    result = document["result"]
    cells = {c["id"]: c for c in result["cells"]}
    measured = {f["cell"]: f["measured"] for f in document["findings"]}
    for cell, text in measured.items():
        if text:
            (finding,) = [f for f in document["findings"] if f["cell"] == cell]
            _told(claims, f"findings/{cell}", text, _decided(cells[cell], finding["worst_target"]))
    levels = [f["level"] for f in document["findings"]]
    told = [levels.count(level) for level in ("leak", "partial", "possible", "none-seen")]
    untried = [levels.count(level) for level in ("not-applicable", "not-requested", "not-tested")]
    ran = len(levels) - sum(untried)
    counts = [len(levels), *filter(None, untried), *([ran] if any(untried) else []), *told[:2]]
    counts += [*filter(None, told[2:3]), told[3], *filter(None, [ran - sum(told)])]
    stated = [*counts, result["run"]["clients"], result["run"]["rounds"]]
    _told(claims, "verdict/standing", document["verdict"]["standing"], stated)
    for reason in document["verdict"]["reasons"]:
        if reason["cell"] and not reason["text"].endswith(measured[reason["cell"]]):
            claims.wrong.append(f"verdict/reasons: {reason['text']!r} is not the finding of {reason['cell']}")
        if reason["text"].startswith("ε is at most"):
            entries = [e for e in result["ledger"] if e["contributions"]]
            largest = max(e["epsilon"] for e in entries)
            _told(claims, "verdict/reasons", reason["text"], [largest, entries[0]["delta"]])


def _decided(cell: Any, victim: str) -> list[float]:
    """The deciding figure with its interval, of all victims and then of the worst; a PSNR at the end of a gain."""
    (worst,) = [t for t in cell["targets"] if t["target"] == victim]
    told = []
    for figures in (cell["figures"], worst["figures"]):
        (figure,) = [f for f in figures if f["name"] in DECIDING[cell["goal"]]]
        parts = [figure[part] for part in ("value", "low", "high") if figure[part] is not None]
        if cell["goal"] == "reconstruction" and figure["value"] < 0:  # so many dB farther from the truth
            parts = [-figure["value"], *(-figure[end] for end in ("high", "low") if figure[end] is not None)]
        told += parts
    if cell["goal"] == "reconstruction":
        told += [f["value"] for f in worst["figures"] if f["name"] == "psnr"]
    return told


def _told(claims: Claims, where: str, text: str, values: Sequence[float]) -> None:
    """A sentence's numbers, in order, are these, each rounded to the places that are shown."""
    plain = re.sub(r"client/\d+", "", text).replace("\N{MINUS SIGN}", "-").replace(",", "")
    shown = re.findall(r"-?\d+(?:\.(\d+))?(?:e(-?\d+))?", plain)
    numbers = [m[0] for m in re.finditer(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", plain)]
    places = [len(fraction) - int(power or 0) for fraction, power in shown]
    fits = len(numbers) == len(values) and all(
        abs(float(n) - v) <= 0.5001 * 10.0**-p for n, v, p in zip(numbers, values, places, strict=True)
    )
    if not fits:
        claims.wrong.append(f"{where}: {text!r} does not say {list(values)}")
