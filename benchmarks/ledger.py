"""Cost of the ledger of a long run: seconds for one view of 10,000 messages, by the kind of protection.

No pairs: there is no other ledger to compare with. Target: under 10 s.
"""

from __future__ import annotations

import argparse
import time

from _pairs import table

from fdaudit.accounting.ledger import Books
from fdaudit.events import Event, Gaussian, SampledGaussian
from fdaudit.transcript.messages import Message

DP_SGD = SampledGaussian(
    sensitivity=1.0,
    scale=1.0,
    sample_rate=0.05,
    count=10,
    unit="record",
    relation="add-or-remove",
    covers=("data",),
)
NOISE = Gaussian(
    sensitivity=1.0, scale=50.0, unit="client", relation="replace-one", covers=("data", "messages")
)


class Log(list[Message]):
    """A log under construction."""

    def send(
        self, sender: str, receivers: tuple[str, ...], kind: str, inputs: object, event: Event | None = None
    ) -> int:
        """Add one message; return its number."""
        seq = len(self)
        self.append(
            Message(
                seq=seq,
                round=0,
                step=0,
                sender=sender,
                receivers=receivers,
                kind=kind,
                inputs=inputs,
                event=event,
            )  # type: ignore[arg-type]
        )
        return seq


def fedavg(clients: list[str], rounds: int, defence: str) -> Log:
    """Return rounds of FedAvg: trained with DP-SGD, with noise on each update, or also with inputs left undeclared."""
    log, uploads = Log(), list[int]()
    for _ in range(rounds):
        w = log.send(
            "server",
            tuple(clients),
            "model_parameters",
            "all" if defence == "undeclared" else tuple(uploads),
        )
        uploads = []
        for k in clients:
            if defence == "dp-sgd":
                trained = log.send(k, (), "release", ("data", w), DP_SGD)
                uploads.append(log.send(k, ("server",), "model_update", (trained, w)))
            else:
                inputs = "all" if defence == "undeclared" else ("data", w)
                uploads.append(log.send(k, ("server",), "model_update", inputs, NOISE))
    return log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--messages", type=int, default=10_000)
    options = parser.parse_args()
    clients = [f"client/{k}" for k in range(options.clients)]
    rows = []
    for defence, each in (("dp-sgd", 2), ("noise on updates", 1), ("undeclared", 1)):
        log = fedavg(clients, options.messages // (1 + each * options.clients), defence)
        start = time.perf_counter()
        found = Books(log, ["server", *clients, "world"]).ledger("server")
        rows.append([defence, f"{len(log):,}", f"{time.perf_counter() - start:.1f}", f"{found.epsilon:.3g}"])
    print(f"the server's ledger, {options.clients} clients, worst of all")
    print(table(("between view and data", "messages", "seconds", "ε"), rows))
    print("target: under 10 s")


if __name__ == "__main__":
    main()
