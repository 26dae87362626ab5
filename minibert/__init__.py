"""minibert: a from-scratch Transformer encoder; raw text in, a pretrained encoder and fine-tuned classifiers out."""

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
