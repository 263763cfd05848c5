"""Check what the page on a protocol for five hospitals says of its runs, in any draw."""

from __future__ import annotations

import fdaudit

names = ("fedavg", "fedkd", "selective-fd", "fedkd-uniform")
runs = {name: fdaudit.load(f"runs/{name}") for name in names}


def accuracy(name, line):
    """Accuracy of a line after its last round: the server's model, or else the mean of the clients'."""
    rows = runs[name].utility.query("line == @line")
    last = rows[rows["round"] == rows["round"].max()]
    server = last[last["party"] == "server"]
    return (last if server.empty else server)["accuracy"].mean()


def cell(name, cell):
    """A cell of a run's result."""
    return next(c for c in runs[name].result.cells if c.id == cell)


def figure(name, of, what):
    """A figure of a cell."""
    return next(f.value for f in cell(name, of).figures if f.name == what)


# FedAvg is better than learning alone, in every draw so far. Nothing of the kind is held for the other two.
assert accuracy("fedavg", "fedavg") > accuracy("fedavg", "standalone")

# Class shares: FedKD's aggregator has them exactly, the provider closely from FedAvg's updates.
assert figure("fedkd", "aggregator/label-counts", "label_tv_mean") == 0
assert figure("fedavg", "server/label-updates", "label_tv_mean") < 0.15
assert cell("fedkd", "server/label-counts").status == "not-applicable"
assert cell("fedkd-uniform", "aggregator/label-counts").status == "not-applicable"
assert cell("fedavg", "server/inverting-gradients").status == "not-applicable"

# Who could be asked about membership: the attacks that read messages ran where messages are.
for name, of in (
    ("fedavg", "server/update-projection"),
    ("fedavg", "server/coin-regression"),
    ("fedkd", "aggregator/coin-regression"),
    ("selective-fd", "server/coin-regression"),
):
    assert cell(name, of).status in ("run", "inconclusive"), of

# Traffic, and that nothing can be claimed of any view.
sent = {name: sum(row.bytes for row in runs[name].result.wire) for name in names}
assert sent["fedkd"] * 20 < sent["fedavg"] > 10 * sent["selective-fd"]
assert all(run.ledger("server").epsilon == float("inf") for run in runs.values())
