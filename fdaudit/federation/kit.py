"""Everything that a protocol from outside imports, in one place.

`fdaudit`'s own protocols use the same names from the modules where they are defined. FedGEN alone imports this module,
to be an example that the tests also run as a package from outside.
"""

from fdaudit.errors import ProtocolError
from fdaudit.federation.client_models import ClientModels, draw_job, sample_clients
from fdaudit.federation.local_settings import LocalSteps, LocalTraining
from fdaudit.federation.local_training import Basis, LocalTrainings, joined
from fdaudit.federation.protocol import (
    CURIOUS,
    PRIVATE_ROUNDS,
    PRIVATE_TRAINING,
    RELEASED_MODEL,
    FederatedProtocol,
    PartyData,
    ProtocolConfig,
    Round,
    Setting,
    arrived,
)
from fdaudit.federation.simple import Computed, SimpleProtocol, mean
from fdaudit.federation.state import basis_of, keep_basis, put, take
from fdaudit.models.conditional import shared_network
from fdaudit.models.network import feature_width, seed_from, seeded
from fdaudit.registry import ProtocolCard, SimpleProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.private_step import Guard, per_sample_gradients
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Fit, Fitted, Job, Parameters, draw_batches, parameters_of
from fdaudit.transcript.messages import ALL, DATA
from fdaudit.transcript.wire import Delivery

__all__ = [
    "ALL",
    "CURIOUS",
    "DATA",
    "PRIVATE_ROUNDS",
    "PRIVATE_TRAINING",
    "RELEASED_MODEL",
    "Basis",
    "ClientModels",
    "Computed",
    "Delivery",
    "FederatedProtocol",
    "Fit",
    "Fitted",
    "Guard",
    "Job",
    "Learner",
    "LocalSteps",
    "LocalTraining",
    "LocalTrainings",
    "Optimizer",
    "Parameters",
    "PartyData",
    "ProtocolCard",
    "ProtocolConfig",
    "ProtocolError",
    "Round",
    "Setting",
    "SimpleProtocol",
    "SimpleProtocolCard",
    "arrived",
    "basis_of",
    "child",
    "child_seed",
    "draw_batches",
    "draw_job",
    "feature_width",
    "joined",
    "keep_basis",
    "mean",
    "parameters_of",
    "per_sample_gradients",
    "put",
    "sample_clients",
    "seed_from",
    "seeded",
    "shared_network",
    "take",
]
