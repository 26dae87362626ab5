"""minibert: a from-scratch Transformer encoder; raw text in, a pretrained encoder and fine-tuned classifiers out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.config import AttentionConfig, BertConfig
    from minibert.errors import UserError
    from minibert.model import (
        BertForMaskedLM,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
    )

__all__ = [
    "AttentionConfig",
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "UserError",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: processes that prepare text need no torch, nor its memory."""
    if name not in __all__:
        raise AttributeError(f"module 'minibert' has no attribute {name!r}")
    home = {"UserError": "errors", "AttentionConfig": "config", "BertConfig": "config"}.get(name, "model")
    return getattr(import_module(f"minibert.{home}"), name)


def __dir__() -> list[str]:
    return __all__
