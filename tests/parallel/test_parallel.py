"""Jobs side by side: the same bits as one after the other, failures seen, threads given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from fdaudit.errors import TrainingDivergedError
from fdaudit.models import architecture
from fdaudit.parallel.threads import side_by_side
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Fitted, Job, Trainer, draw_batches, parameters_of

from ..helpers.network_double import NetworkDouble

SHAPE, CLASSES = (1, 16, 16), 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _trainer(threads: int, model: str = "cnn-strided", memory_format: str = "channels_last") -> Trainer:
    execution = Execution.resolve(
        device="cpu", threads=threads, strategy="loop", memory_format=memory_format, convolutions=True
    )
    return Trainer(architecture(ModelSpec(name=model), SHAPE, CLASSES), execution)


def _jobs(count: int, model: str = "cnn-strided") -> list[Job]:
    start = parameters_of(architecture(ModelSpec(name=model), SHAPE, CLASSES).build(child(1, "start")))
    jobs = []
    for k in range(count):
        generator = child(1, "job", k)
        x = torch.rand(40, *SHAPE, generator=generator)
        y = torch.randint(CLASSES, (40,), generator=generator)
        batches = draw_batches(40, 8, steps=4, generator=generator)
        jobs.append(Job(party=f"client/{k}", parameters=start, x=x, targets=y, batches=batches, anchor=start))
    return jobs


def _same(a: list[Fitted], b: list[Fitted]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p.losses, q.losses)
        and p.parameters.keys() == q.parameters.keys()
        and all(torch.equal(p.parameters[n], q.parameters[n]) for n in p.parameters)
        for p, q in zip(a, b, strict=True)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "fit"),
    [
        ("cnn-strided", Fit(lr=0.1, momentum=0.9)),
        ("cnn-strided", Fit(lr=0.01, optimizer="adam", mu=0.1)),
        ("resnet8", Fit(lr=0.1)),
    ],
)
def test_jobs_side_by_side_end_bit_for_bit_as_one_after_the_other(model: str, fit: Fit) -> None:
    jobs = _jobs(5, model)
    alone = [_trainer(1, model).fit([job], fit)[0] for job in jobs]
    assert not torch.equal(alone[0].losses, alone[1].losses)
    assert _same(_trainer(1, model).fit(jobs, fit), alone)
    trainer = _trainer(3, model)
    for _ in range(2):  # which thread and copy a job meets differs from time to time
        assert _same(trainer.fit(jobs, fit), alone)
        assert _same(trainer.fit(jobs[::-1], fit), alone[::-1])


def test_gradients_side_by_side_equal_those_of_autograd() -> None:
    jobs = _jobs(5)
    found = _trainer(3).gradients(jobs, Fit(lr=0.1))
    module = architecture(ModelSpec(name="cnn-strided"), SHAPE, CLASSES).build(child(1, "start"))
    for job, fitted in zip(jobs, found, strict=True):
        module.zero_grad()
        batch = job.batches[0]
        torch.nn.functional.cross_entropy(module(job.x[batch]), job.targets[batch]).backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(fitted.parameters[name], parameter.grad)


def test_a_diverging_job_is_named_wherever_it_ran() -> None:
    jobs = _jobs(4)
    jobs[2].x[:] = float("nan")
    with pytest.raises(TrainingDivergedError, match=r"^client/2: .* step 0"):
        _trainer(2).fit(jobs, Fit(lr=0.1))


def test_inputs_and_parameters_of_jobs_stay_as_they_were() -> None:
    jobs = _jobs(4)
    before = [(j.x.clone(), {n: t.clone() for n, t in j.parameters.items()}) for j in jobs]
    _trainer(2).fit(jobs, Fit(lr=0.1))
    for job, (x, parameters) in zip(jobs, before, strict=True):
        assert torch.equal(job.x, x)
        assert all(torch.equal(job.parameters[n], t) for n, t in parameters.items())


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_colour_images_meet_the_network_in_its_memory_format(memory_format: str) -> None:
    seen = []
    wanted = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format

    class Spy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Conv2d(3, CLASSES, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.is_contiguous(memory_format=wanted))
            return self.inner(x).flatten(1)

    execution = Execution(device="cpu", threads=1, strategy="loop", memory_format=memory_format)  # type: ignore[arg-type]
    trainer = Trainer(NetworkDouble(Spy, (3, 8, 8)), execution)
    seen.clear()  # of the rehearsal
    job = Job(
        party="client/0",
        parameters=parameters_of(Spy()),
        x=torch.rand(20, 3, 8, 8, generator=child(1, "x")),
        targets=torch.zeros(20, dtype=torch.int64),
        batches=(torch.tensor([3, 1, 2]), torch.tensor([5, 5])),
    )
    trainer.fit([job], Fit(lr=0.1))
    trainer.gradients([job], Fit(lr=0.1))
    trainer.predict(job.parameters, job.x)
    assert seen == [True] * 4


def test_results_keep_the_order_of_the_pieces_and_no_two_threads_share_means() -> None:
    lock, busy, clashes = threading.Lock(), set[int](), []

    def work(mean: int, piece: int) -> int:
        with lock:
            clashes.append(mean in busy)
            busy.add(mean)
        time.sleep(0.002 * (piece % 3))
        with lock:
            busy.discard(mean)
        return piece * piece

    assert side_by_side(work, range(20), [0, 1, 2]) == [n * n for n in range(20)]
    assert not any(clashes)


def test_the_callers_threads_are_given_back_and_workers_have_one_each() -> None:
    torch.set_num_threads(2)
    assert side_by_side(lambda _, piece: torch.get_num_threads(), range(4), [0, 1]) == [1] * 4
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda _, piece: 1 // piece, [1, 0, 2], [0, 1])
    assert torch.get_num_threads() == 2
