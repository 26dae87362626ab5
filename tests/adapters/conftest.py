"""A small model of prime sizes, one batch for it, and every kind of adapter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minibert import BertConfig, BertForSequenceClassification
from minibert.adapters import BitFitConfig, FrozenConfig, HoulsbyConfig, LoraConfig, PfeifferConfig
from minibert.adapters.base import AdapterConfig

CONFIG = BertConfig(
    vocab_size=41,
    hidden_size=14,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=23,
    max_position_embeddings=19,
    num_labels=5,
    initializer_range=0.3,
)
ADAPTERS = [
    FrozenConfig(),
    BitFitConfig(),
    LoraConfig(rank=3),
    LoraConfig(rank=2, targets=("query", "key", "value", "output", "up", "down"), rank_stabilised=True, dropout=0.1),
    PfeifferConfig(reduction=3),
    HoulsbyConfig(reduction=5),
]


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """Makes a model in evaluation, of the same weights whenever the seed is the same."""

    def make(model_class: type = BertForSequenceClassification, *, seed: int = 0, config: BertConfig = CONFIG) -> Any:
        torch.manual_seed(seed)
        model = model_class(config).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                nn.init.normal_(weight, mean=0.7, std=0.3)
        return model

    return make


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Three sequences of at most 11 tokens, the second padded, with labels."""
    rng = torch.Generator().manual_seed(1)
    attention_mask = torch.ones(3, 11, dtype=torch.long)
    attention_mask[1, 7:] = 0
    return {
        "input_ids": torch.randint(5, 41, (3, 11), generator=rng),
        "attention_mask": attention_mask,
        "labels": torch.tensor([4, 0, 2]),
    }


@pytest.fixture(params=ADAPTERS, ids=lambda config: config.kind)
def config(request: pytest.FixtureRequest) -> AdapterConfig:
    """Each kind of adapter, LoRA twice."""
    return request.param


@pytest.fixture
def train() -> Callable[..., None]:
    """Trains what is trainable for some steps."""

    def steps(model: nn.Module, batch: dict[str, Tensor], count: int = 3) -> None:
        optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=0.03)
        model.train()
        for _ in range(count):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        model.eval()

    return steps
