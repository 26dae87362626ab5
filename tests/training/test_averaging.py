"""Averages of weights: the closed form, the weights back to the bit, and checkpoints by hand."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minibert import UserError
from minibert.training.averaging import AveragingSettings, Ema, mean_of_checkpoints


def test_an_average_is_that_of_the_closed_form() -> None:
    model, decay = nn.Linear(5, 3), 0.83
    ema, history = Ema(model, decay), list[Tensor]()
    for _ in range(23):
        _move(model)
        ema.update(model)
        history.append(model.weight.detach().double().clone())
        shares = [
            (1 - decay) * decay ** (len(history) - 1 - i) / (1 - decay ** len(history)) for i in range(len(history))
        ]
        expected = sum(share * weight for share, weight in zip(shares, history, strict=True))
        assert sum(shares) == pytest.approx(1.0)
        torch.testing.assert_close(ema.state()["weight"].double(), expected, rtol=0, atol=1e-6)


def test_after_one_update_the_average_is_the_weights_and_before_it_those_of_the_start() -> None:
    model = nn.Linear(5, 3)
    ema, start = Ema(model, 0.999), model.weight.detach().clone()
    _move(model)
    assert torch.equal(ema.state()["weight"], start)
    ema.update(model)
    assert torch.equal(ema.state()["weight"], model.weight)


def test_the_model_has_the_averages_inside_and_its_own_weights_after_whatever_happens() -> None:
    model = nn.Linear(5, 3)
    ema = Ema(model, 0.5)
    for _ in range(3):
        _move(model)
        ema.update(model)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with ema.swapped_in(model):
        assert all(torch.equal(weight, ema.state()[name]) for name, weight in model.state_dict().items())
        assert not torch.equal(model.weight, before["weight"])
    with contextlib.suppress(KeyboardInterrupt), ema.swapped_in(model):
        raise KeyboardInterrupt
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_frozen_weights_are_not_averaged() -> None:
    model = nn.Sequential(nn.Linear(5, 3).requires_grad_(False), nn.Linear(3, 2))
    assert Ema(model, 0.9).state().keys() == {"1.weight", "1.bias"}


def test_the_names_are_those_of_one_process_without_a_wrapper() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(nn.Linear(5, 3))
        assert Ema(wrapped, 0.9).state().keys() == {"weight", "bias"}
    finally:
        dist.destroy_process_group()


def test_an_average_goes_on_from_its_state_to_the_bit() -> None:
    model = nn.Linear(5, 3)
    straight = Ema(model, 0.9)
    for _ in range(4):
        _move(model)
        straight.update(model)
    resumed = Ema(nn.Linear(5, 3), 0.9)
    resumed.load({name: average.clone() for name, average in straight.state().items()}, straight.updates)
    _move(model)
    straight.update(model)
    resumed.update(model)
    assert all(torch.equal(average, resumed.state()[name]) for name, average in straight.state().items())
    with pytest.raises(UserError, match="differ in bias"):
        resumed.load({"weight": model.weight}, 1)


def test_the_mean_of_checkpoints_is_that_of_float64_in_the_dtype_that_was_stored(tmp_path: Path) -> None:
    weights = [torch.randn(3, 5) * 10**k for k in range(3)]
    # In half precision, 2048 + 1 is 2048: a sum in it would lose every 1.
    halves = [torch.tensor(value, dtype=torch.float16) for value in (2048.0, 1.0, 1.0)]
    paths = [
        _checkpoint(tmp_path / f"step-{k}", weight=weight, half=half, counter=torch.tensor([k]))
        for k, (weight, half) in enumerate(zip(weights, halves, strict=True))
    ]
    mean = mean_of_checkpoints(paths)
    by_hand = [sum(numbers) / 3 for numbers in zip(*(weight.flatten().tolist() for weight in weights), strict=True)]
    assert torch.equal(mean["weight"], torch.tensor(by_hand).view(3, 5))
    assert torch.equal(mean["half"], torch.tensor(2050 / 3, dtype=torch.float16))
    assert mean["counter"].tolist() == [2]
    assert mean.keys() == {"weight", "half", "counter"}


def test_checkpoints_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    one = _checkpoint(tmp_path / "one", weight=torch.ones(3, 5))
    more = _checkpoint(tmp_path / "more", weight=torch.ones(3, 5), bias=torch.ones(3))
    other = _checkpoint(tmp_path / "other", weight=torch.ones(5, 3))
    with pytest.raises(UserError, match="only one of them has bias"):
        mean_of_checkpoints([one, more])
    with pytest.raises(UserError, match=r"other .* weight is \[5, 3\] and \[3, 5\]"):
        mean_of_checkpoints([one, other])
    with pytest.raises(UserError, match=r"absent/model\.safetensors: cannot be read"):
        mean_of_checkpoints([one, tmp_path / "absent"])


def test_an_average_that_never_moves_is_refused() -> None:
    with pytest.raises(UserError, match=r"averaging\.ema_decay: 1\.0"):
        AveragingSettings(ema_decay=1.0)


@torch.no_grad()
def _move(model: nn.Module) -> None:
    for weight in model.parameters():
        weight += torch.randn_like(weight)


def _checkpoint(directory: Path, **tensors: Tensor) -> Path:
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    return directory
