"""Cost of reading the record with many parties: one log for all of them, against a log read for each.

A makes every party's view, the exposure table and the first ledger as a conclusion does, from a log that is parsed
once. B makes the views and the table alone and reads the log for each party, as former versions did. The record is of
a federation of so many clients, with messages like FedAvg's but no payloads. A also runs with half of the clients and
the same rounds: a ratio near 2 shows that time grows with the delivered messages and no faster.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _pairs import HEADS, compare, table

from fdaudit.accounting.ledger import Books
from fdaudit.adversary.view import view_of
from fdaudit.result import derived_from_data, exposed_rows
from fdaudit.transcript import log
from fdaudit.transcript.messages import DATA, Message
from fdaudit.transcript.transcript import Transcript, read_messages

SETTINGS = {"lr": 0.1}


def parties(clients: int) -> tuple[str, ...]:
    return ("server", *(f"client/{k}" for k in range(clients)))


def write(folder: Path, clients: int, rounds: int) -> Path:
    """A transcript of so many rounds: a broadcast, and from each client a count and an update."""
    uploads: tuple[int, ...] = ()
    everybody = parties(clients)[1:]
    with Transcript(folder, secret=bytes(32), keep=lambda round: False) as transcript:
        for number in range(rounds):
            common = {"seq": 0, "round": number, "step": 0}
            sent = Message(
                **common, sender="server", receivers=everybody, kind="model_parameters", inputs=uploads
            )
            model, _ = transcript.append(sent, {})
            uploads = ()
            for client in everybody:
                for kind, inputs in (("sample_count", (DATA,)), ("model_update", (DATA, model))):
                    draft = Message(**common, sender=client, receivers=("server",), kind=kind, inputs=inputs)
                    uploads += (transcript.append(draft, {})[0],)
    return folder


def conclude(folder: Path, clients: int) -> None:
    """All that a conclusion makes of the log, which is parsed once."""
    log._last.clear()
    messages = log.read_log(folder).messages
    private = derived_from_data(messages)
    for party in parties(clients):
        view = view_of(folder, party, parties=parties(clients), hyperparameters=SETTINGS)
        exposed_rows(view.messages, party, private)
    Books(messages, parties(clients)).ledger("server")


def read_for_each(folder: Path, clients: int) -> None:
    """The views and the exposure table, the log read for each party."""
    private = derived_from_data(read_messages(folder))
    for party in parties(clients):
        seen = [m for m in read_messages(folder) if party in m.parties()]
        exposed_rows(seen, party, private)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=75)
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        whole = write(Path(home) / "whole", options.clients, options.rounds)
        half = write(Path(home) / "half", options.clients // 2, options.rounds)

        def at_once() -> None:
            conclude(whole, options.clients)

        fewer = compare(at_once, lambda: conclude(half, options.clients // 2), pairs=max(options.pairs, 5))
        before = compare(
            at_once, lambda: read_for_each(whole, options.clients), pairs=options.pairs, warm_up=0
        )
    messages = options.rounds * (1 + 2 * options.clients)
    print(f"{options.clients} clients, {messages:,} messages")
    rows = [
        before.row("parsed once, with a ledger / read for each party"),
        fewer.row("all clients / half of them"),
    ]
    print(table(HEADS, rows))
    print("targets: below 0.1; at most 3")


if __name__ == "__main__":
    main()
