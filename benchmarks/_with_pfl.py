"""FedAvg by pfl-research's simulator: `SimulatedBackend`, `FederatedAveraging`, its PyTorch model, one process."""

from __future__ import annotations

import itertools

import torch
from _fedavg import BATCH, LR, SEED, Data, batches
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.models import Architecture
from fdaudit.rng import child


class Classifier(nn.Module):
    """The network with the two methods that pfl-research asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Simulator:
    """One central iteration a call; local evaluation, which the other sides do not do, is only in the first.

    pfl-research takes consecutive rows as batches: a client's records are handed to it in the order of the round's
    batches.
    """

    def __init__(self, network: Architecture, data: Data, layout: torch.memory_format) -> None:
        self._data = {k: (d.x.contiguous(memory_format=layout), d.y) for k, d in data.items()}
        built = network.build(child(SEED, "initial-parameters")).to(memory_format=layout)
        self._network = Classifier(built)
        self._model = PyTorchModel(
            self._network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self._network.parameters(), lr=1.0),
        )
        order = itertools.cycle(data)
        users = FederatedDataset(self._records, lambda: next(order))
        self._backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._fit = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR)
        self._round = 0

    def __call__(self) -> None:
        asked = NNAlgorithmParams(
            central_num_iterations=self._round + 1,
            evaluation_frequency=1 << 30,
            train_cohort_size=len(self._data),
            val_cohort_size=None,
        )
        self._algorithm.run(asked, self._backend, self._model, self._fit, send_metrics_to_platform=False)
        self._round += 1

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self._network.network.named_parameters())

    def _records(self, k: str) -> PyTorchTensorDataset:
        x, y = self._data[k]
        rows = torch.cat(batches(len(y), self._round, k))
        return PyTorchTensorDataset((x[rows], y[rows]), user_id=k)
