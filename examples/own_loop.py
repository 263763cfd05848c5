"""Record a training loop that is not fdaudit's, check the record, and attack what its server saw.

    python examples/own_loop.py RECORD

Three sites train on digits in plain PyTorch. Lines marked `# recorder` are all that recording adds to the loop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradients, InvertingGradientsConfig
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import view_of
from fdaudit.models import architecture
from fdaudit.recording.record import check_record, read_record
from fdaudit.recording.recorder import Recorder  # recorder
from fdaudit.spec.schema import ModelSpec
from fdaudit.types import AttackTask, Reconstruction

SITES, ROUNDS, BATCH, LR = 3, 2, 2, 0.1
CLIENTS = [f"client/{k}" for k in range(SITES)]


class Net(nn.Module):
    """The system's own network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 10) for images (n, 1, 8, 8)."""
        out: Tensor = self.head(self.body(x))
        return out


def private_batch(site: int, t: int) -> tuple[Tensor, Tensor]:
    """Return the two records (x, y) that a site trains on in a round."""
    digits, first = load_digits(), 100 * site + BATCH * t
    rows = slice(first, first + BATCH)
    return torch.from_numpy(digits.images[rows]).float()[:, None] / 16, torch.from_numpy(digits.target[rows])


def federate(record: Path) -> None:
    """Train for two rounds, and record every message."""
    torch.manual_seed(1)
    model = Net()
    names = [name for name, _ in model.named_parameters()]
    with Recorder(record, ["server", *CLIENTS]) as recorder:  # recorder
        for t in range(ROUNDS):
            recorder.round(t)  # recorder
            sent = recorder.send("server", CLIENTS, "model_parameters", model.state_dict())  # recorder
            uploads = []
            for site, client in enumerate(CLIENTS):
                x, y = private_batch(site, t)
                gradient = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
                upload = dict(zip(names, gradient, strict=True))
                recorder.send(client, "server", "gradient", upload, inputs=["data", sent.seq])  # recorder
                uploads.append(gradient)
            with torch.no_grad():
                for parameter, *parts in zip(model.parameters(), *uploads, strict=True):
                    parameter -= LR * torch.stack(parts).mean(0)


def attack(record: Path, iterations: int = 2000) -> tuple[Reconstruction, ...]:
    """Return what a server that kept its messages can reconstruct of each site's first batch."""
    found = read_record(record)
    settings = {"lr": LR, "batch_size": BATCH, "local_steps": 1}
    view = view_of(found.transcript, "server", parties=found.parties, hyperparameters=settings)
    network = architecture(ModelSpec(name="import:own_loop:Net"), (1, 8, 8), 10)
    method = InvertingGradients(InvertingGradientsConfig(iterations=iterations, restarts=4))
    task = AttackTask(targets=tuple(CLIENTS), challenges={})
    return method.run(
        view, Knowledge(architecture=network, classes=10), task, torch.Generator().manual_seed(0)
    )


def recovered(guess: Reconstruction) -> list[float]:
    """Return the PSNR in dB of each private image by the closest guess, which only somebody with the truth can."""
    x, _ = private_batch(int(guess.target.partition("/")[2]), 0)
    error = (guess.images[None] - x[:, None]).square().flatten(2).mean(2)
    return [float(v) for v in -10 * error.min(1).values.log10()]


def main(record: Path) -> None:
    """Record, check, attack, and print what came back."""
    federate(record)
    checked = check_record(record)
    print("\n".join(checked.findings) or "intact", *checked.notes, sep="\n")  # noqa: T201
    for guess in attack(record):
        shown = " ".join(f"{value:.0f} dB" for value in recovered(guess))
        print(f"{guess.target}: {shown}, labels {guess.labels.tolist()}")  # type: ignore[union-attr]  # noqa: T201


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(Path(sys.argv[1]))
