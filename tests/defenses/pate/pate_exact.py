"""The exact law of a noisy plurality vote, by integration in 40 digits; shares no code with what it checks.

`python tests/defenses/pate/pate_exact.py` prints the constants of `test_pate_rdp.py` (some minutes).
"""

from __future__ import annotations

import mpmath as mp

CASES = {  # histogram, σ or γ
    "gnmax": (((9, 1, 0), 2.0), ((30, 10, 8, 2), 5.0), ((40, 5, 5), 6.0), ((12, 11), 4.0), ((60, 0, 0), 8.0)),
    "lnmax": (((9, 1, 0), 0.8), ((30, 10, 8, 2), 0.3), ((40, 5, 5), 0.25), ((12, 11), 0.5), ((3, 3, 3), 1.0)),
    "threshold": (((9, 1), 2.0), ((12, 0), 3.0), ((3, 1), 1.5), ((0, 0), 2.0)),
}
THRESHOLD = 8
ORDERS = (1.5, 2, 4, 10, 32)


def gaussian(sigma):
    """Density, distribution function, and the points at which to cut an integral over the real line."""
    return (
        lambda z: mp.npdf(z, 0, sigma),
        lambda z: mp.ncdf(z, 0, sigma),
        [sigma * k for k in range(-24, 25, 3)],
    )


def laplace(gamma):
    gamma = mp.mpf(gamma)

    def cdf(z):
        return mp.exp(gamma * z) / 2 if z < 0 else 1 - mp.exp(-gamma * z) / 2

    return lambda z: gamma * mp.exp(-gamma * abs(z)) / 2, cdf, [k / gamma for k in range(-90, 91, 6)]


def law(votes, noise):
    """Probability of each class to have the largest noisy count: ∫ f(z) Π_{j≠i} F(n_i - n_j + z) dz."""
    density, cdf, cuts = noise
    found = []
    for i, n in enumerate(votes):
        others = [m for j, m in enumerate(votes) if j != i]

        def inner(z, n=n, others=others):
            return density(z) * mp.fprod(cdf(n - m + z) for m in others)

        kinks = {mp.mpf(m - n) for m in others}
        found.append(mp.quad(inner, sorted({*map(mp.mpf, cuts), *kinks, mp.mpf(0)}), maxdegree=5))
    return found


def bit(votes, sigma):
    """Probabilities to reach the threshold and to miss it."""
    return [
        mp.ncdf((max(votes) - THRESHOLD) / mp.mpf(sigma)),
        mp.ncdf((THRESHOLD - max(votes)) / mp.mpf(sigma)),
    ]


def divergence(p, q, order):
    """Rényi divergence of p from q."""
    order = mp.mpf(order)
    return mp.log(mp.fsum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (order - 1)


def neighbours(votes):
    """Every histogram that one client makes: its vote moved, withdrawn, or cast after an abstention."""
    classes = range(len(votes))
    steps = [{a: 1} for a in classes] + [{a: -1} for a in classes if votes[a]]
    steps += [{a: -1, b: 1} for a in classes if votes[a] for b in classes if b != a]
    return [tuple(n + step.get(i, 0) for i, n in enumerate(votes)) for step in steps]


def worst(votes, laws, order):
    """The largest divergence of a histogram's law from a neighbour's."""
    here = laws(votes)
    return max(divergence(here, laws(near), order) for near in neighbours(votes))


def laws_of(mechanism, scale):
    """The law of a histogram under one mechanism, each worked out once."""
    known = {}

    def laws(votes):
        if votes not in known:
            noise = {"gnmax": gaussian, "lnmax": laplace}.get(mechanism)
            known[votes] = bit(votes, scale) if noise is None else law(votes, noise(scale))
        return known[votes]

    return laws


def main():
    """Prints q and the worst divergence at each order of every case."""
    mp.mp.dps = 40
    for mechanism, cases in CASES.items():
        for votes, scale in cases:
            laws = laws_of(mechanism, scale)
            here = laws(votes)
            assert abs(mp.fsum(here) - 1) < mp.mpf(10) ** -25, mp.fsum(here) - 1
            q = mp.fsum(here) - max(here) if mechanism != "threshold" else here[0]
            found = [mp.nstr(worst(votes, laws, order), 15) for order in ORDERS]
            back = [mp.nstr(max(divergence(laws(n), here, o) for n in neighbours(votes)), 5) for o in ORDERS]
            print(
                f"    ({mechanism!r}, {votes}, {scale}, {mp.nstr(q, 15)}, ({', '.join(found)})),  # back {back}"
            )


if __name__ == "__main__":
    main()
