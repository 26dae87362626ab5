"""AdamW: its two groups, its first step, and its state by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from minibert import BertConfig, BertForPreTraining, BertForSequenceClassification, UserError
from minibert.adapters import LoraConfig, attach
from minibert.training.optim import (
    OptimizerSettings,
    load_named_state,
    make_optimizer,
    named_state,
    parameter_groups,
    set_learning_rate,
)

SHAPE = BertConfig(vocab_size=41, hidden_size=14, num_hidden_layers=3, num_attention_heads=2, intermediate_size=23)


def test_biases_and_norms_do_not_decay_and_each_parameter_is_in_one_group() -> None:
    model = BertForPreTraining(SHAPE)
    decaying, others = parameter_groups(model, weight_decay=0.37)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.37, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept = ({names[id(parameter)] for parameter in group["params"]} for group in (decaying, others))
    assert kept == {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert decayed == set(names.values()) - kept
    assert len(decaying["params"]) + len(others["params"]) == len(names)  # the tied decoder once
    assert {name.split(".")[0] for name in decayed} == {"bert", "mlm", "nsp"}


def test_frozen_parameters_are_in_no_group() -> None:
    model = BertForSequenceClassification(SHAPE)
    attach(model, LoraConfig(rank=3))
    given = {id(parameter) for group in parameter_groups(model, 0.01) for parameter in group["params"]}
    assert given == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert 0 < len(given) < len(list(model.parameters()))


@pytest.mark.parametrize("gradient", [3e-3, 1.0, 1e4])
def test_the_first_step_moves_every_weight_by_the_learning_rate(gradient: float) -> None:
    """With bias correction the two means are the gradient and its square; without, it would be 3.16 times as far."""
    layer = nn.Linear(5, 3)
    optimizer = make_optimizer(layer, OptimizerSettings(learning_rate=0.01, weight_decay=0.0))
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.full_like(before, gradient)
    layer.weight.grad[1] *= -1
    optimizer.step()
    moved = layer.weight.detach() - before
    torch.testing.assert_close(moved, -0.01 * torch.sign(layer.weight.grad), rtol=1e-4, atol=1e-6)


def test_steps_are_those_of_the_formula() -> None:
    settings = OptimizerSettings(learning_rate=0.03, weight_decay=0.2, beta1=0.7, beta2=0.9, epsilon=1e-3)
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.constant_(layer.bias, 0.5)
    optimizer, gradients = make_optimizer(layer, settings), [0.4, -1.3, 0.2]
    weight, bias, mean, square = 0.5, 0.5, 0.0, 0.0
    for number, gradient in enumerate(gradients, start=1):
        layer.weight.grad, layer.bias.grad = torch.tensor([[gradient]]), torch.tensor([gradient])
        optimizer.step()
        mean, square = 0.7 * mean + 0.3 * gradient, 0.9 * square + 0.1 * gradient**2
        step = 0.03 * (mean / (1 - 0.7**number)) / ((square / (1 - 0.9**number)) ** 0.5 + 1e-3)
        weight, bias = weight * (1 - 0.03 * 0.2) - step, bias - step
        assert layer.weight.item() == pytest.approx(weight, abs=1e-6)
        assert layer.bias.item() == pytest.approx(bias, abs=1e-6)


def test_the_rate_is_set_in_every_group() -> None:
    optimizer = make_optimizer(nn.Linear(2, 3), OptimizerSettings(learning_rate=0.5))
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def test_its_state_by_name_survives_the_disk_to_the_bit(tmp_path: Path) -> None:
    straight, stopped = _trained(steps=5), _trained(steps=2)
    save_file(named_state(*stopped), tmp_path / "state.safetensors")
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    model.load_state_dict(stopped[1].state_dict())
    optimizer = make_optimizer(model, OptimizerSettings())
    load_named_state(optimizer, model, load_file(tmp_path / "state.safetensors"))
    for step in range(2, 5):
        _step(optimizer, model, step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), straight[1].parameters(), strict=True))
    assert named_state(*stopped).keys() == {
        f"{number}.{kind}/{moment}"
        for number in range(2)
        for kind in ("weight", "bias")
        for moment in ("step", "exp_avg", "exp_avg_sq")
    }


def test_state_of_other_parameters_is_refused_by_name() -> None:
    optimizer, model = _trained(steps=1)
    state = named_state(optimizer, model)
    lacking = {key: value for key, value in state.items() if not key.startswith("1.bias")}
    for wrong in (lacking, {**state, "9.weight/step": torch.zeros(())}):
        with pytest.raises(UserError, match=r"differ in (1\.bias|9\.weight)"):
            load_named_state(optimizer, model, wrong)


def test_state_from_before_the_first_update_is_no_state() -> None:
    """A run whose first updates were all left out has weights to resume from, and no moments."""
    model = nn.Linear(2, 3)
    optimizer = make_optimizer(model, OptimizerSettings())
    state = named_state(optimizer, model)
    load_named_state(optimizer, model, state)
    assert state == {}
    assert len(optimizer.state) == 0


def _trained(steps: int) -> tuple[torch.optim.AdamW, nn.Module]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    optimizer = make_optimizer(model, OptimizerSettings())
    for step in range(steps):
        _step(optimizer, model, step)
    return optimizer, model


def _step(optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> None:
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(step))
    model(inputs).pow(3).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
