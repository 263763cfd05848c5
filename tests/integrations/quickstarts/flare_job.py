"""Run a job in NVIDIA FLARE's simulator: flare_job.py vision|tabular FOLDER. It writes RECORD and TRUTH there."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner
from nvflare.recipe import SimEnv

from fdaudit.integrations.nvflare import JobRecord, NotingFilter
from quickstarts.tabular import zeros
from quickstarts.vision import Net

HERE, SITES = Path(__file__).parent, 2


def main(which: str, folder: str) -> None:
    """Train for two rounds."""
    script, arguments = str(HERE / "flare_client.py"), f"{which} {folder}"
    record = JobRecord(f"{folder}/RECORD", truth=f"{folder}/TRUTH")
    notes = NotingFilter(f"{folder}/TRUTH")
    if which == "vision":
        torch.manual_seed(0)
        recipe = FedAvgRecipe(
            name=which,
            model=Net(),
            min_clients=SITES,
            num_rounds=2,
            train_script=script,
            train_args=arguments,
        )
        record.add_to(recipe)
        recipe.add_client_output_filter(notes, tasks=["train"])
        recipe.execute(SimEnv(num_clients=SITES, workspace_root=f"{folder}/workspace"))
        return
    job = FedJob(which, min_clients=SITES)
    start = dict(zip(("coef", "intercept"), zeros(), strict=True))
    job.to_server(FedAvg(num_clients=SITES, num_rounds=2, model={n: a.tolist() for n, a in start.items()}))
    job.to_server(record)
    job.to_clients(ScriptRunner(script=script, script_args=arguments, framework=FrameworkType.NUMPY))
    job.to_clients(notes, filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.simulator_run(f"{folder}/workspace", n_clients=SITES)


if __name__ == "__main__":
    main(*sys.argv[1:])
