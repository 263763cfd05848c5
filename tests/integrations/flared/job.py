"""Run a job in NVIDIA FLARE's simulator: job.py FOLDER RECORD CLIENTS SITE...

RECORD may be `none`. CLIENTS are the names that have numbers beforehand, with commas; it may be empty.
"""

from __future__ import annotations

import os
import sys

from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from parts import Averaging, Trainer

from fdaudit.integrations.nvflare import JobRecord, NotingFilter

STEPS = {"north": 0.25, "south": 0.5}


def main(folder: str, record: str, clients: str, *sites: str) -> None:
    """Average for the rounds that the environment names; the sites answer in the order in which they are named."""
    named = clients.split(",") if clients else []
    job = FedJob("tiny", min_clients=len(sites))
    job.to_server(Averaging(folder, len(sites), int(os.environ["ROUNDS"])))
    if record != "none":
        job.to_server(JobRecord(record, truth=f"{folder}/truth", clients=named))
    for i, site in enumerate(sites):
        job.to(Trainer(f"{folder}/sites", STEPS[site], i * 0.5), site, tasks=["train"])
        notes = NotingFilter(f"{folder}/notes-{site}")
        job.to(notes, site, filter_type=FilterType.TASK_RESULT, tasks=["train"])
    sys.exit(job.simulator_run(f"{folder}/workspace", threads=len(sites)))


if __name__ == "__main__":
    main(*sys.argv[1:])
