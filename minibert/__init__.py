"""minibert: a from-scratch Transformer encoder; raw text in, a pretrained encoder and fine-tuned classifiers out."""

from minibert.errors import UserError

__all__ = ["UserError"]
