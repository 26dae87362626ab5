"""What shape a model has: the fields of Hugging Face's BERT config, and a few that published BERT lacks."""

import dataclasses
import json
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from minibert.errors import UserError
from minibert.types import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval


@dataclass(frozen=True)
class AttentionConfig:
    """How attention asks its three questions; the defaults are published BERT's."""

    score: Literal["dot", "scaled_dot", "cosine", "general", "additive"] = "scaled_dot"
    """How alike are a query and a key?"""
    weights: Literal["soft", "hard"] = "soft"
    """How sharply does a query choose?"""
    window: NonNegativeInt | None = None
    """Local attention: a token sees this many neighbours on either side; null = global attention, all of them."""
    global_tokens: NonNegativeInt = 1
    """With a window: this many tokens at the start ([CLS]) see all and are seen by all."""

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True)
class BertConfig:
    """The model: field names are those of Hugging Face's `BertConfig`, the defaults are BERT-base."""

    vocab_size: PositiveInt = 30522
    """Rows of the token embedding; in pretraining it is taken from the tokenizer."""
    hidden_size: PositiveInt = 768
    """Width H of the encoder."""
    num_hidden_layers: PositiveInt = 12
    """Number of encoder layers."""
    num_attention_heads: PositiveInt = 12
    """Heads of each attention; they divide the hidden size."""
    intermediate_size: PositiveInt = 3072
    """Width of the feed-forward network between its two layers."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward network: gelu (erf), gelu_new, gelu_pytorch_tanh (both tanh), relu, silu."""
    hidden_dropout_prob: UnitInterval = 0.1
    """Dropout of embeddings and sublayer outputs."""
    attention_probs_dropout_prob: UnitInterval = 0.1
    """Dropout of attention weights."""
    max_position_embeddings: PositiveInt = 512
    """Longest sequence, in tokens."""
    type_vocab_size: PositiveInt = 2
    """Number of segments that token_type_ids may name."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of fresh weights."""
    layer_norm_eps: PositiveFloat = 1e-12
    """Epsilon of layer normalisation."""
    pad_token_id: NonNegativeInt = 0
    """Id of [PAD]; its embedding starts at zero and gets no gradient as an input."""
    tie_word_embeddings: bool = True
    """Whether the masked-LM decoder is the token embedding."""
    classifier_dropout: UnitInterval | None = None
    """Dropout before a classifier; null = hidden_dropout_prob."""
    num_labels: PositiveInt = 2
    """Outputs of a classifier."""
    id2label: dict[int, str] | None = None
    """Names of the labels; where given, it sets num_labels."""
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    """How attention asks its three questions"""

    def __post_init__(self) -> None:
        _check_values(self)
        if self.pad_token_id >= self.vocab_size:
            raise UserError(
                f"pad_token_id: expected less than a vocab_size of {self.vocab_size}, got {self.pad_token_id}"
            )
        if self.hidden_size % self.num_attention_heads:
            heads, size = self.num_attention_heads, self.hidden_size
            raise UserError(f"num_attention_heads: {heads} heads do not divide a hidden_size of {size}")
        if self.id2label:
            names = {int(number): str(name) for number, name in self.id2label.items()}
            if sorted(names) != list(range(len(names))):
                raise UserError(f"id2label: expected the numbers 0 to {len(names) - 1}, got {sorted(names)}")
            object.__setattr__(self, "id2label", names)
            object.__setattr__(self, "num_labels", len(names))

    @property
    def label_names(self) -> list[str]:
        """The name of each label in order of its number; LABEL_0, LABEL_1, ... where none were given."""
        names = self.id2label or {number: f"LABEL_{number}" for number in range(self.num_labels)}
        return [names[number] for number in range(self.num_labels)]

    @property
    def is_published_bert(self) -> bool:
        """Whether every library that knows BERT computes the same from these fields."""
        return self.attention == AttentionConfig()

    def to_dict(self) -> dict[str, Any]:
        """What `config.json` holds; a model that uses more than published BERT says so under its own `model_type`."""
        fields = dataclasses.asdict(self)
        fields["id2label"] = dict(enumerate(self.label_names))
        fields["label2id"] = {name: number for number, name in fields["id2label"].items()}
        fields["position_embedding_type"] = "absolute"
        del fields["num_labels"]
        if self.is_published_bert:
            del fields["attention"]
        return {"model_type": "bert" if self.is_published_bert else "minibert", **fields}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], **overrides: Any) -> "BertConfig":
        """Read a Hugging Face BERT config; fields of other tools are ignored, `overrides` win.

        Raises `UserError` where the config describes another model than a BERT encoder.
        """
        _refuse_other_models(fields)
        known = {f.name for f in dataclasses.fields(cls)}
        given = {name: value for name, value in fields.items() if name in known and value is not None} | overrides
        if (
            "num_labels" in overrides
            and "id2label" not in overrides
            and len(given.get("id2label") or ()) != overrides["num_labels"]
        ):
            given["id2label"] = None
        if isinstance(given.get("attention"), dict):
            given["attention"] = AttentionConfig(**given["attention"])
        if unknown := set(given) - known:
            raise UserError(f"BertConfig has no field {', '.join(sorted(unknown))}")
        return cls(**given)

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> "BertConfig":
        """Read `config.json`; raises `UserError` naming the file."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict):
                raise UserError(f"expected an object, got {type(fields).__name__}")
            return cls.from_dict(fields, **overrides)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{path}: no such file; expected a model directory with config.json") from None
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: {error}") from None


def _check_values(config: Any) -> None:
    """Refuse what the command line refuses, whoever makes the config: other types, ranges and choices."""
    for given in dataclasses.fields(config):
        kinds: Any = get_args(given.type) if isinstance(given.type, UnionType) else (given.type,)
        value = getattr(config, given.name)
        if not any(_fits(value, kind) for kind in kinds):
            choices = get_args(given.type) if get_origin(given.type) is Literal else [kind.__name__ for kind in kinds]
            expected = " or ".join(choices)
            raise UserError(f"{given.name}: expected {expected}, got {value!r}")


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if not issubclass(get_origin(kind) or kind, int | float) or kind is bool:
        return isinstance(value, get_origin(kind) or kind)
    if isinstance(value, bool) or not isinstance(value, Integral if issubclass(kind, int) else Real):
        return False
    try:
        return bool(kind(value) == value)
    except ValueError:
        return False


def _refuse_other_models(fields: dict[str, Any]) -> None:
    expected = {
        "model_type": ("bert", "minibert"),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }
    for name, values in expected.items():
        if fields.get(name, values[0]) not in (*values, None):
            raise UserError(f"{name}: expected {' or '.join(map(str, values))}, got {fields[name]!r}")
