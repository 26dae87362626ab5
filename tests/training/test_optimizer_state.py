"""What an optimizer holds, by name: it fits any order of the parameters, any device and any layout."""

from pathlib import Path

import processes
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from minibert import UserError
from minibert.training.optim import OptimizerSettings, make_optimizer
from minibert.training.optimizer_state import load_named_state, named_state
from minibert.training.sharding import like, plain_name, whole, whole_state


def model(seed: int = 2) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 7))


def step(optimizer: torch.optim.Optimizer, model: nn.Module, number: int) -> None:
    model(torch.randn(7, 5, generator=torch.Generator().manual_seed(number))).pow(3).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(steps: int) -> tuple[torch.optim.Optimizer, nn.Module]:
    network = model()
    optimizer = make_optimizer(network, OptimizerSettings())
    for number in range(steps):
        step(optimizer, network, number)
    return optimizer, network


def equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def test_it_goes_where_the_parameters_are_whatever_their_order() -> None:
    optimizer, network = trained(2)
    other = model()
    other.load_state_dict(network.state_dict())
    reversed_order = torch.optim.AdamW(list(other.parameters())[::-1], lr=1e-3, weight_decay=0.01)
    load_named_state(reversed_order, other, named_state(optimizer, network))
    assert equal(named_state(reversed_order, other), named_state(optimizer, network))
    assert [group["lr"] for group in reversed_order.param_groups] == [1e-3]


def test_the_step_is_where_the_optimizer_wants_it_and_the_moments_where_the_parameter_is() -> None:
    """A fused step counts on the device of its parameter, any other on the CPU."""
    optimizer, network = trained(2)
    state = named_state(optimizer, network)
    for fused, place in ((True, "meta"), (False, "cpu")):
        elsewhere = model().to("meta")
        there = torch.optim.AdamW(elsewhere.parameters(), lr=1e-3)
        there.param_groups[0]["fused"] = fused
        load_named_state(there, elsewhere, state)
        moments = there.state[elsewhere[0].weight]
        assert {name: tensor.device.type for name, tensor in moments.items()} == {
            "step": place,
            "exp_avg": "meta",
            "exp_avg_sq": "meta",
        }


def test_frozen_parameters_have_no_state_and_need_none() -> None:
    network = model()
    network[0].requires_grad_(False)
    optimizer = make_optimizer(network, OptimizerSettings())
    step(optimizer, network, 0)
    state = named_state(optimizer, network)
    assert {name.split(".")[0] for name in state} == {"1", "2"}
    load_named_state(optimizer, network, state)
    with pytest.raises(UserError, match=r"the optimizer state in the checkpoint and the model differ in 0\.bias"):
        load_named_state(*trained(0), state)


def test_names_are_those_without_what_wraps_the_parts() -> None:
    assert plain_name("_orig_mod.layers.0._checkpoint_wrapped_module.weight") == "layers.0.weight"
    compiled = torch.compile(model())
    assert whole_state(compiled).keys() == model().state_dict().keys()


def test_what_is_not_cut_up_stays_as_it_is() -> None:
    tensor = torch.arange(7.0)
    assert whole(tensor) is tensor
    assert like(tensor, torch.zeros(3)) is tensor


def test_state_is_whole_when_saved_and_cut_again_when_loaded(tmp_path: Path) -> None:
    ended = processes.call_all(_cut_and_whole, str(tmp_path), said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    straight, network = trained(5)
    expected = {**whole_state(network), **named_state(straight, network)}
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


def _cut_and_whole(folder: str) -> None:
    """Two steps, out to whole tensors and in again, three steps; with three rows for two processes, and seven."""
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    optimizer, network = _cut(model())
    for number in range(2):
        step(optimizer, network, number)
    weights, state = whole_state(network), named_state(optimizer, network)
    assert not any(isinstance(tensor, DTensor) for tensor in [*weights.values(), *state.values()])
    fresh = model(seed=3)
    fresh.load_state_dict(weights)
    optimizer, network = _cut(fresh)
    load_named_state(optimizer, network, state)
    assert equal(named_state(optimizer, network), state)
    local = optimizer.state[network[2].weight]["exp_avg"].to_local()
    assert len(local) == (4 if accelerator.is_main_process else 3)
    for number in range(2, 5):
        step(optimizer, network, number)
    torch.save(
        {**whole_state(network), **named_state(optimizer, network)}, Path(folder) / f"{accelerator.process_index}.pt"
    )
    accelerator.end_training()


def _cut(network: nn.Module) -> tuple[torch.optim.Optimizer, nn.Module]:
    fully_shard(network, mesh=init_device_mesh("cpu", (2,)))
    return make_optimizer(network, OptimizerSettings()), network
