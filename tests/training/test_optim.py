"""AdamW, LAMB and Muon: their groups, their steps by formula, and their state by name."""

import copy
from collections.abc import Iterable
from pathlib import Path

import processes
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minibert import BertConfig, BertForPreTraining, BertForSequenceClassification, UserError
from minibert.adapters import BitFitConfig, LoraConfig, attach
from minibert.training.averaging import Ema
from minibert.training.lamb import Lamb
from minibert.training.muon import hidden_matrices
from minibert.training.optim import OptimizerSettings, make_optimizer, parameter_groups, set_learning_rate
from minibert.training.optimizer_state import load_named_state, named_state

KINDS = ("adamw", "lamb", "muon")
MOMENTS = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "lamb": ("step", "exp_avg", "exp_avg_sq"),
    "muon": ("momentum_buffer",),
}
SHAPE = BertConfig(vocab_size=41, hidden_size=14, num_hidden_layers=3, num_attention_heads=2, intermediate_size=23)


class Net(nn.Module):
    """Layers between an embedding and a decoder that is tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(17, 5)
        self.layers = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.norm = nn.LayerNorm(5)
        self.decoder = nn.Linear(5, 17)
        self.decoder.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.decoder(self.norm(hidden))


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_each_parameter_of_the_model_once_and_decays_matrices_alone(kind: str) -> None:
    model = BertForPreTraining(SHAPE)
    optimizer = make_optimizer(model, OptimizerSettings(kind=kind, weight_decay=0.37))
    given = [(id(weight), group["weight_decay"]) for group in optimizer.param_groups for weight in group["params"]]
    assert sorted(given) == sorted((id(weight), 0.37 if weight.dim() == 2 else 0.0) for weight in model.parameters())


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


def test_steps_of_adamw_are_those_of_the_formula() -> None:
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


def test_steps_of_lamb_are_those_of_algorithm_2_for_matrices_and_of_adam_for_vectors() -> None:
    settings = OptimizerSettings(kind="lamb", learning_rate=0.03, weight_decay=0.2, beta1=0.7, beta2=0.9, epsilon=1e-3)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    with torch.no_grad():
        model[1].bias.zero_()
    slow = [_SlowLamb(weight, settings, adapts=weight.dim() == 2) for weight in model.parameters()]
    optimizer = make_optimizer(model, settings)
    for _ in range(7):
        for weight, formula in zip(model.parameters(), slow, strict=True):
            weight.grad = torch.randn_like(weight)
            formula.step(weight.grad.flatten().tolist())
        optimizer.step()
        for weight, formula in zip(model.parameters(), slow, strict=True):
            assert weight.flatten().tolist() == pytest.approx(formula.values, abs=2e-6)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (3.0, 0.0), (0.0, 0.0)])
def test_the_ratio_of_lamb_is_1_where_a_norm_is_0(weight: float, gradient: float) -> None:
    matrix = nn.Parameter(torch.full((3, 2), weight))
    optimizer = Lamb([matrix], lr=0.5, eps=1e-30)
    matrix.grad = torch.full_like(matrix, gradient)
    optimizer.step()
    torch.testing.assert_close(matrix.detach(), torch.full((3, 2), weight - 0.5 * gradient))


def test_muon_trains_the_matrices_of_the_layers_and_no_other() -> None:
    model = BertForPreTraining(SHAPE)
    names = {id(weight): name for name, weight in model.named_parameters()}
    hidden = [names[id(weight)] for weight in hidden_matrices(model)]
    assert hidden == [name for name in names.values() if ".layers." in name and model.get_parameter(name).dim() == 2]
    assert len(hidden) == 3 * 6
    assert hidden_matrices(model.requires_grad_(False)) == []


def test_a_linear_map_in_a_layer_that_is_tied_to_an_embedding_is_not_for_muon() -> None:
    model = Net()
    model.layers.append(model.decoder)
    assert [tuple(weight.shape) for weight in hidden_matrices(model)] == [(5, 5), (5, 5)]


def test_muon_without_matrices_is_refused() -> None:
    model = BertForSequenceClassification(SHAPE)
    attach(model, BitFitConfig())
    with pytest.raises(UserError, match=r"optimizer\.kind: muon needs matrices of layers"):
        make_optimizer(model, OptimizerSettings(kind="muon"))


def test_muon_with_adamw_is_the_two_one_after_the_other() -> None:
    together, apart = _net(), _net()
    settings = OptimizerSettings(
        kind="muon", learning_rate=0.02, weight_decay=0.3, beta1=0.7, beta2=0.9, epsilon=1e-4, momentum=0.8
    )
    one = make_optimizer(together, settings)
    matrices = [layer.weight for layer in apart.layers]
    vectors = [layer.bias for layer in apart.layers] + [*apart.norm.parameters(), apart.decoder.bias]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.3, momentum=0.8, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": [apart.tokens.weight], "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.7, 0.9), eps=1e-4, fused=True)
    for step in range(5):
        for optimizer in (one, muon, adamw):
            set_learning_rate(optimizer, 0.02 / (step + 1))
        _step([one], together, step)
        _step([muon, adamw], apart, step)
    assert _equal(together.parameters(), apart.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_is_set_in_every_group(kind: str) -> None:
    """Without a rate nothing moves and nothing decays."""
    model = _net()
    before = copy.deepcopy(model)
    optimizer = make_optimizer(model, OptimizerSettings(kind=kind, learning_rate=0.5, weight_decay=0.5))
    set_learning_rate(optimizer, 0.0)
    _step([optimizer], model, 0)
    assert _equal(model.parameters(), before.parameters())
    set_learning_rate(optimizer, 0.125)
    _step([optimizer], model, 1)
    assert not any(map(torch.equal, model.parameters(), before.parameters()))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", KINDS)
def test_its_state_by_name_survives_the_disk_to_the_bit(kind: str, tmp_path: Path) -> None:
    straight, stopped = _trained(kind, steps=5), _trained(kind, steps=2)
    save_file(named_state(*stopped), tmp_path / "state.safetensors")
    model = _net()
    model.load_state_dict(stopped[1].state_dict())
    model, prepared = Accelerator(cpu=True).prepare(model, make_optimizer(model, OptimizerSettings(kind=kind)))
    load_named_state(prepared.optimizer, model, load_file(tmp_path / "state.safetensors"))
    for step in range(2, 5):
        _step([prepared], model, step)
    assert _equal(model.parameters(), straight[1].parameters())
    saved, others = named_state(prepared.optimizer, model), named_state(*straight)
    assert all(torch.equal(saved[key], others[key]) for key in saved.keys() | others.keys())
    assert {key for key in saved if key.startswith("layers.1.weight")} == {
        f"layers.1.weight/{moment}" for moment in MOMENTS[kind]
    }
    assert {key.rsplit("/")[0] for key in saved} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_weights_on_two_processes_make_the_steps_of_whole_ones(kind: str, tmp_path: Path) -> None:
    ended = processes.call_all(_train_sharded, kind, str(tmp_path), said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    found = load_file(tmp_path / "weights.safetensors")
    optimizer, model = _trained(kind, steps=0)
    ema = Ema(model, decay=0.5)
    for step in range(3):
        _step([optimizer], model, step)
        ema.update(model)
    expected = {name: weight.detach() for name, weight in model.named_parameters()} | {
        f"ema.{name}": average for name, average in ema.state().items()
    }
    assert found.keys() == expected.keys()
    tolerance = 1e-3 if kind == "muon" else 1e-6  # muon computes in bfloat16
    for name, weight in expected.items():
        assert (found[name] - weight).abs().max() < tolerance, name


def test_a_decay_of_1_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer\.beta2: 1\.0 .* expected less than 1"):
        OptimizerSettings(beta2=1.0)


def test_state_of_other_parameters_is_refused_by_name() -> None:
    optimizer, model = _trained("adamw", steps=1)
    state = named_state(optimizer, model)
    lacking = {key: value for key, value in state.items() if not key.startswith("norm.bias")}
    for wrong in (lacking, {**state, "9.weight/step": torch.zeros(())}):
        with pytest.raises(UserError, match=r"differ in (norm\.bias|9\.weight)"):
            load_named_state(optimizer, model, wrong)


def test_state_from_before_the_first_update_is_no_state() -> None:
    """A run whose first updates were all left out has weights to resume from, and no moments."""
    model = nn.Linear(2, 3)
    optimizer = make_optimizer(model, OptimizerSettings())
    state = named_state(optimizer, model)
    load_named_state(optimizer, model, state)
    assert state == {}
    assert len(optimizer.state) == 0


class _SlowLamb:
    """You et al. 2020, algorithm 2, number by number."""

    def __init__(self, weight: Tensor, settings: OptimizerSettings, *, adapts: bool) -> None:
        self.values: list[float] = weight.flatten().tolist()
        self.mean, self.square, self.number = [0.0] * len(self.values), [0.0] * len(self.values), 0
        self.settings, self.adapts = settings, adapts

    def step(self, gradient: list[float]) -> None:
        given, self.number = self.settings, self.number + 1
        decay = given.weight_decay if self.adapts else 0.0
        update = []
        for i, g in enumerate(gradient):
            self.mean[i] = given.beta1 * self.mean[i] + (1 - given.beta1) * g
            self.square[i] = given.beta2 * self.square[i] + (1 - given.beta2) * g * g
            mean = self.mean[i] / (1 - given.beta1**self.number)
            square = self.square[i] / (1 - given.beta2**self.number)
            update.append(mean / (square**0.5 + given.epsilon) + decay * self.values[i])
        weight, length = (sum(value**2 for value in values) ** 0.5 for values in (self.values, update))
        ratio = weight / length if self.adapts else 1.0
        self.values = [x - given.learning_rate * ratio * u for x, u in zip(self.values, update, strict=True)]


def _net() -> Net:
    torch.manual_seed(2)
    return Net()


def _trained(kind: str, steps: int) -> tuple[torch.optim.Optimizer, Net]:
    model = _net()
    optimizer = make_optimizer(model, OptimizerSettings(kind=kind))
    for step in range(steps):
        _step([optimizer], model, step)
    return optimizer, model


def _step(optimizers: list[torch.optim.Optimizer], model: nn.Module, step: int, share: slice = slice(None)) -> None:
    ids = torch.randint(17, (6, 7), generator=torch.Generator().manual_seed(step))
    model(ids[share]).logsumexp(-1).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _equal(weights: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(weight, other) for weight, other in zip(weights, others, strict=True))


def _train_sharded(kind: str, folder: str) -> None:
    dist.init_process_group("gloo")
    mesh, rank = init_device_mesh("cpu", (2,)), dist.get_rank()
    model = _net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = make_optimizer(model, OptimizerSettings(kind=kind))
    ema = Ema(model, decay=0.5)
    for step in range(3):
        _step([optimizer], model, step, slice(3 * rank, 3 * rank + 3))
        ema.update(model)
    found = {name: weight.full_tensor().detach() for name, weight in model.named_parameters()}
    found |= {f"ema.{name}": average for name, average in ema.state().items()}
    if rank == 0:
        save_file(found, Path(folder) / "weights.safetensors")
    dist.destroy_process_group()
