"""Class-level scores: values by hand, who is compared with whom, and the baseline's honesty."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import UsageError
from fdaudit.metrics import PSNR_CEILING, AuxiliaryPool, nearest_records, score_class_reconstruction
from fdaudit.metrics.images import class_reconstruction


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("FDAUDIT_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


def _flat(*values: float) -> torch.Tensor:
    """Constant 8x8 images."""
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 8, 8).clone()


def _score(guess, labels, x, y, aux=None, aux_y=None, seed: int = 0, **more):
    return score_class_reconstruction(
        guess, labels, x, y, aux, np.random.default_rng(seed), auxiliary_labels=aux_y, **more
    )


RECORDS, CLASSES = _flat(0.1, 0.3, 0.8, 0.5), torch.tensor([0, 0, 1, 2])


def test_values_by_hand() -> None:
    """0.2 is 0.1 from both records of class 0; 0.6 is 0.2 from class 1's only one, though 0.1 from class 2's."""
    score = _score([_flat(0.25, 0.6)], [torch.tensor([0, 1])], [RECORDS], [CLASSES])
    assert [r.truth for r in score.images] == [1, 2]
    assert [r.psnr for r in score.images] == pytest.approx(
        [-20 * np.log10(0.05), -20 * np.log10(0.2)], abs=1e-4
    )
    assert score.figures["mse"].value == pytest.approx((0.05**2 + 0.2**2) / 2, abs=1e-6)
    assert score.figures["psnr"].value == pytest.approx(-10 * np.log10(0.05 * 0.2), abs=1e-4)
    assert "class-level" in score.figures["psnr"].note
    assert score.figures["psnr_gain"].value is None
    assert "no auxiliary data" in score.figures["psnr_gain"].unavailable


def test_the_baseline_by_hand() -> None:
    """Without spread inside a class every strategy that knows the class shows its constant."""
    aux, aux_y = _flat(0.2, 0.2, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9), torch.tensor([0] * 4 + [1] * 4)
    score = _score([_flat(0.1, 0.8)], [torch.tensor([0, 1])], [RECORDS], [CLASSES], aux, aux_y)
    assert score.figures["psnr"].value == PSNR_CEILING
    assert score.figures["psnr_prior"].value == pytest.approx(20.0, abs=1e-4)
    assert score.figures["psnr_gain"].value == pytest.approx(80.0, abs=1e-4)
    assert score.strategies["psnr"] == ("class-mean",)


def test_the_baseline_guesses_once_by_a_strategy_that_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    aux, aux_y = _flat(0.2, 0.2, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9), torch.tensor([0] * 4 + [1] * 4)
    given = [_flat(0.1, 0.8)], [torch.tensor([0, 1])], [RECORDS], [CLASSES], aux, aux_y
    _score(*given)  # chooses the strategies, which is done once for a pool
    played = list[str]()
    real = AuxiliaryPool.guess
    monkeypatch.setattr(AuxiliaryPool, "guess", lambda self, s, *a: played.append(s) or real(self, s, *a))
    _score(*given)
    assert played == ["class-mean"]


def test_a_guess_is_compared_with_the_records_of_its_class_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = list[int]()
    real = class_reconstruction._nearest
    monkeypatch.setattr(
        class_reconstruction, "_nearest", lambda guess, records: searches.append(1) or real(guess, records)
    )
    _score([_flat(0.25, 0.6)], [torch.tensor([0, 1])], [RECORDS], [CLASSES])
    assert len(searches) == 2  # one a class


def test_a_class_that_auxiliary_data_lack_is_guessed_from_the_others() -> None:
    aux, aux_y = _flat(0.2, 0.2, 0.9, 0.9), torch.tensor([0, 0, 1, 1])
    score = _score([_flat(0.5)], [torch.tensor([2])], [RECORDS], [CLASSES], aux, aux_y)
    assert set(score.strategies["mse"]) <= {"class-mean", "grand-mean"}  # the mean of all, for such a class
    assert score.figures["mse_prior"].value == pytest.approx(0.05**2, abs=1e-6)


def test_classes_that_a_target_lacks_are_left_out_and_counted() -> None:
    guess, labels = _flat(0.1, 0.8, 0.0), torch.tensor([0, 1, 7])
    score = _score([guess], [labels], [RECORDS], [CLASSES])
    assert [r.guess for r in score.images] == [0, 1]
    assert "1 guesses of classes" in score.figures["psnr"].note
    nothing = _score([guess[2:]], [labels[2:]], [RECORDS], [CLASSES])
    assert nothing.images == ()
    assert nothing.figures["psnr_gain"].value is None
    assert "no target holds" in nothing.figures["psnr"].unavailable


def test_each_target_is_scored_on_its_own_records_and_the_worst_is_named() -> None:
    x, y = [RECORDS[:2], RECORDS[2:3]], [CLASSES[:2], CLASSES[2:3]]
    guess, labels = [_flat(0.3), _flat(0.3)], [torch.tensor([0]), torch.tensor([1])]
    score = _score(guess, labels, x, y, targets=["client/0", "client/1"])
    assert [r.target for r in score.images] == ["client/0", "client/1"]
    assert score.images[0].psnr == PSNR_CEILING
    assert score.images[1].psnr == pytest.approx(-20 * np.log10(0.5), abs=1e-4)
    assert "client/0" in score.figures["psnr_worst_target"].note


def test_guesses_of_one_class_of_one_target_are_resampled_together() -> None:
    same = _score([_flat(0.1, 0.12, 0.14)], [torch.zeros(3).long()], [RECORDS], [CLASSES])
    assert same.figures["psnr"].n == 1
    assert same.figures["psnr"].low is None
    two = _score([_flat(0.11, 0.12, 0.7)], [torch.tensor([0, 0, 1])], [RECORDS], [CLASSES])
    assert two.figures["psnr"].n == 2


@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), m=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_nearest_record_is_the_nearest(seed: int, n: int, m: int) -> None:
    g = torch.Generator().manual_seed(seed)
    guess, records = torch.rand(m, 1, 3, 3, generator=g), torch.rand(n, 1, 3, 3, generator=g)
    found = nearest_records(guess, records)
    apart = torch.cdist(guess.flatten(1).double(), records.flatten(1).double())
    assert torch.allclose(apart.gather(1, found[:, None])[:, 0], apart.min(1).values)


@pytest.mark.thorough
@given(seed=st.integers(0, 2**31), fill=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_records_of_other_classes_and_an_order_of_records_change_nothing(seed: int, fill: float) -> None:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.rand(6, 1, 8, 8, generator=g), torch.tensor([0, 0, 0, 1, 1, 1])
    guess, labels = torch.rand(2, 1, 8, 8, generator=g), torch.tensor([0, 1])
    aux, aux_y = torch.rand(12, 1, 8, 8, generator=g), torch.arange(12) % 2
    plain = _score([guess], [labels], [x], [y], aux, aux_y).figures
    order = torch.randperm(6, generator=g)
    more_x, more_y = torch.cat([x[order], _flat(fill)]), torch.cat([y[order], torch.tensor([5])])
    again = _score([guess], [labels], [more_x], [more_y], aux, aux_y).figures
    for name in ("psnr", "ssim", "psnr_prior", "psnr_gain", "mse_gain"):
        assert again[name].value == pytest.approx(plain[name].value, abs=1e-9)


def test_auxiliary_records_themselves_gain_nothing_over_the_baseline() -> None:
    """Guesses drawn as the baseline draws them: the interval of the gain does not lie above 0."""
    g = torch.Generator().manual_seed(3)
    y = torch.arange(400) % 10
    template = torch.rand(10, 1, 8, 8, generator=g)
    x = (template[y] + 0.2 * torch.randn(400, 1, 8, 8, generator=g)).clamp(0, 1)
    aux, aux_y, mine, own = x[:200], y[:200], x[200:], y[200:]
    first = torch.stack([aux[aux_y == c][0] for c in range(10)])
    gain = _score([first], [torch.arange(10)], [mine], [own], aux, aux_y).figures["psnr_gain"]
    assert gain.value < 0
    assert gain.low < 0


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^guess_images: "):
        _score([RECORDS], [], [RECORDS], [CLASSES])
    with pytest.raises(UsageError):
        _score([RECORDS], [CLASSES[:2]], [RECORDS], [CLASSES])
