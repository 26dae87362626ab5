"""BERT: embeddings, encoder and pooler, and one class for each thing that it is trained to say.

input_ids [B, L] -> Embeddings -> Encoder -> last_hidden_state [B, L, H] ──> masked words, labels of tokens, spans
                                               └─> Pooler -> pooler_output [B, H] ──> next sentence, labels
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minibert import hf, objectives
from minibert.attention import SCORES, WEIGHTS, MultiHeadAttention, masks
from minibert.config import BertConfig
from minibert.embeddings import Embeddings
from minibert.encoder import Encoded, Encoder, EncoderLayer, FeedForward, activation
from minibert.heads import ClassificationHead, MaskedLanguageModelHead, Pooler
from minibert.objectives import Measure
from minibert.outputs import BertOutput, LanguageModelOutput, Masked, SpanOutput, TaskOutput


class Pretrained(nn.Module):
    """A module that is made from a `BertConfig` and lives in a Hugging Face directory.

    The one base class of the models: what a checkpoint is belongs to all of them and differs in none.
    """

    targets: ClassVar[dict[str, str]] = {}
    """For each loss of `forward` the input that holds its labels, so that targets can be counted beforehand."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.fresh_weights: list[str] = []
        """After `from_pretrained`: the weights that the checkpoint lacked, such as those of a new head."""

    @classmethod
    def from_pretrained(cls, directory: str | Path, **overrides: Any) -> Self:
        """Load from a directory of ours or of Hugging Face; `overrides` are fields of the config, such as num_labels.

        Heads that the checkpoint lacks start fresh, and are named in a warning.
        Raises `UserError` for a missing or broken file, and for encoder weights that are missing or of another shape.
        """
        model = cls(BertConfig.from_file(Path(directory) / "config.json", **overrides))
        model.fresh_weights = hf.load_weights(model, Path(directory))
        return model

    def save_pretrained(self, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors, which `transformers` loads as they are.

        `weights`: the weights by their names, where those of the model are cut up over several processes.
        """
        hf.save(self, Path(directory), fields=self.config.to_dict(), given=weights)

    def initialize(self) -> None:
        """Fresh weights: N(0, initializer_range), biases and padding 0, norms 1  (google-research/bert)."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()


class BertModel(Pretrained):
    """The encoder alone: a vector for each token, and with the pooler one for the whole input."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = Embeddings(
            config.vocab_size,
            config.max_position_embeddings,
            config.type_vocab_size,
            config.hidden_size,
            padding=config.pad_token_id,
            eps=config.layer_norm_eps,
            dropout=config.hidden_dropout_prob,
        )
        self.encoder = Encoder([_layer(config) for _ in range(config.num_hidden_layers)])
        self.pooler = Pooler(config.hidden_size) if add_pooling_layer else None
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        cls_positions: Tensor | None = None,
    ) -> BertOutput:
        """Encode a batch, all tokens of it; all arguments but the last are [B, L].

        attention_mask: 1 for tokens, 0 for padding, in any dtype. position_ids: 0, 1, ... where not given.
        sequence_ids: with several sequences packed into a row, the number of each token's sequence, 0 for padding.
        cls_positions [B, S]: where in its row each packed sequence begins, for the pooler; 0 where there are fewer.
        Raises `ValueError` for shapes that differ, ids outside their table, and sequences longer than the positions.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, position_ids, sequence_ids)
        hidden = encoded.everywhere
        if self.pooler is None:
            return BertOutput(hidden, None)
        return BertOutput(hidden, self.pooler(hidden.flatten(0, 1)[encoded.first(cls_positions)]))

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
    ) -> Encoded:
        """The same for a head that reads some of the tokens: the last layer then computes no others."""
        _check_shapes(input_ids, attention_mask, token_type_ids, position_ids, sequence_ids)
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        mask = _mask(hidden, attention_mask, position_ids, sequence_ids, config=self.config)
        return self.encoder.begin(hidden, mask)

    def pool(self, input_ids: Tensor, cls_positions: Tensor | None = None, **inputs: Any) -> tuple[Encoded, Tensor]:
        """The same for a head that reads the pooled vectors alone, [B, H] or [B, S, H]."""
        assert self.pooler is not None
        encoded = self.encode(input_ids, **inputs)
        [first] = encoded.at(encoded.first(cls_positions))
        return encoded, self.pooler(first)


class BertForPreTraining(Pretrained):
    """Masked language modelling and next sentence prediction together  (Devlin et al. 2019, section 3.1)."""

    targets: ClassVar[dict[str, str]] = {"mlm": "labels", "nsp": "next_sentence_label"}

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.mlm = _language_model_head(self.bert, config)
        self.nsp = nn.Linear(config.hidden_size, 2)
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        cls_positions: Tensor | None = None,
        **inputs: Any,
    ) -> LanguageModelOutput:
        """labels [B, L]: the true token, or -100; next_sentence_label [B]: 0 = continuation, 1 = random.

        masked_positions [N]: the places row · L + column of the labels that are not -100, each once, and maybe of some
        that are. Without them they are looked for, and a GPU is waited for.
        The other inputs are those of `BertModel`. With `cls_positions` [B, S], next_sentence_label is [B, S] as well,
        -100 where there is no sequence.
        """
        encoded = self.bert.encode(input_ids, **inputs)
        masked, first = _masked(encoded, labels, masked_positions, encoded.first(cls_positions))
        relationship = self.nsp(self.bert.pooler(first))  # type: ignore[misc]
        losses = _named("nsp", objectives.cross_entropy, relationship, next_sentence_label)
        return _language_model_output(encoded, self.mlm, masked, losses, relationship)


class BertForMaskedLM(Pretrained):
    """Masked language modelling alone; there is no pooler, since nothing would train it."""

    targets: ClassVar[dict[str, str]] = {"mlm": "labels"}

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.mlm = _language_model_head(self.bert, config)
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        **inputs: Any,
    ) -> LanguageModelOutput:
        """labels [B, L]: the true token, or -100; masked_positions [N] as in `BertForPreTraining`."""
        encoded = self.bert.encode(input_ids, **inputs)
        masked, _ = _masked(encoded, labels, masked_positions, input_ids.new_empty(0))
        return _language_model_output(encoded, self.mlm, masked, {})


class BertForNextSentencePrediction(Pretrained):
    """Does the second segment continue the first? Label 0 = continuation, 1 = random."""

    targets: ClassVar[dict[str, str]] = {"nsp": "labels"}

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.nsp = nn.Linear(config.hidden_size, 2)
        self.initialize()

    def forward(self, input_ids: Tensor, *, labels: Tensor | None = None, **inputs: Any) -> TaskOutput:
        """labels [B]; logits [B, 2]."""
        encoded, pooled = self.bert.pool(input_ids, **inputs)
        logits = self.nsp(pooled)
        return TaskOutput(logits, encoded, _named("nsp", objectives.cross_entropy, logits, labels))


class BertForSequenceClassification(Pretrained):
    """One label for a sentence or a pair, or with num_labels = 1 and labels that are not whole, one number."""

    targets: ClassVar[dict[str, str]] = {"label": "labels"}

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.classifier = ClassificationHead(config.hidden_size, config.num_labels, _classifier_dropout(config))
        self.initialize()

    def forward(self, input_ids: Tensor, *, labels: Tensor | None = None, **inputs: Any) -> TaskOutput:
        """labels [B]; logits [B, num_labels]."""
        encoded, pooled = self.bert.pool(input_ids, **inputs)
        logits = self.classifier(pooled)
        return TaskOutput(logits, encoded, _named("label", objectives.sequence_labels, logits, labels))


class BertForTokenClassification(Pretrained):
    """One label for each token."""

    targets: ClassVar[dict[str, str]] = {"label": "labels"}

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.classifier = ClassificationHead(config.hidden_size, config.num_labels, _classifier_dropout(config))
        self.initialize()

    def forward(self, input_ids: Tensor, *, labels: Tensor | None = None, **inputs: Any) -> TaskOutput:
        """labels [B, L], -100 where a token is not counted; logits [B, L, num_labels]."""
        encoded = self.bert.encode(input_ids, **inputs)
        logits = self.classifier(encoded.everywhere)
        return TaskOutput(logits, encoded, _named("label", objectives.cross_entropy, logits, labels))


class BertForQuestionAnswering(Pretrained):
    """Where in the context does the answer begin and end?"""

    targets: ClassVar[dict[str, str]] = {"start": "start_positions", "end": "end_positions"}

    def __init__(self, config: BertConfig):
        super().__init__(dataclasses.replace(config, num_labels=2, id2label=None))  # a start and an end
        self.bert = BertModel(config, add_pooling_layer=False)
        self.span = ClassificationHead(config.hidden_size, 2, dropout=0.0)
        self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **inputs: Any,
    ) -> SpanOutput:
        """start_positions and end_positions [B]: positions of the first and last token of the answer, or -100."""
        encoded = self.bert.encode(input_ids, **inputs)
        start, end = self.span(encoded.everywhere).unbind(-1)
        losses = _named("start", objectives.cross_entropy, start, start_positions)
        losses |= _named("end", objectives.cross_entropy, end, end_positions)
        return SpanOutput(start, end, encoded, losses)


def _layer(config: BertConfig) -> EncoderLayer:
    heads, size = config.num_attention_heads, config.hidden_size
    attention = MultiHeadAttention(
        size,
        heads,
        score=SCORES[config.attention.score](heads, size // heads),
        weights=WEIGHTS[config.attention.weights],
        dropout=config.attention_probs_dropout_prob,
    )
    feed_forward = FeedForward(size, config.intermediate_size, activation(config.hidden_act))
    return EncoderLayer(attention, feed_forward, size, config.layer_norm_eps, config.hidden_dropout_prob)


def _mask(
    hidden: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    sequence_ids: Tensor | None,
    *,
    config: BertConfig,
) -> Tensor | None:
    """Who may look at whom, all restrictions together; None where everyone sees everyone."""
    restrictions = []
    if attention_mask is not None:
        restrictions.append(masks.padding(attention_mask))
    if sequence_ids is not None:
        restrictions.append(masks.packed(sequence_ids))
    if (size := config.attention.window) is not None:
        length, device = hidden.size(1), hidden.device
        positions = torch.arange(length, device=device)[None] if position_ids is None else position_ids
        local = masks.window(length, length, size, device)
        restrictions.append(local | masks.global_tokens(positions, config.attention.global_tokens))
    allowed = None
    for restriction in restrictions:
        allowed = restriction if allowed is None else allowed & restriction
    return allowed


def _check_shapes(input_ids: Tensor, *others: Tensor | None) -> None:
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [batch, length], got shape {list(input_ids.shape)}")
    for other in others:
        if other is not None and other.shape != input_ids.shape:
            raise ValueError(f"expected shape {list(input_ids.shape)} as input_ids, got {list(other.shape)}")


def _language_model_head(bert: BertModel, config: BertConfig) -> MaskedLanguageModelHead:
    tokens, act = bert.embeddings.tokens, activation(config.hidden_act)
    return MaskedLanguageModelHead(tokens, act, config.layer_norm_eps, tie=config.tie_word_embeddings)


def _masked(
    encoded: Encoded, labels: Tensor | None, positions: Tensor | None, others: Tensor
) -> tuple[Masked | None, Tensor]:
    """The states where there are labels, and those at `others`; without labels all tokens are computed."""
    if labels is None:
        return None, encoded.everywhere.flatten(0, 1)[others]
    if positions is None:
        positions = (labels.flatten() != objectives.IGNORED).nonzero().squeeze(1)
    states, rest = encoded.at(positions, others)
    return Masked(states, labels.flatten()[positions]), rest


def _language_model_output(
    encoded: Encoded,
    head: MaskedLanguageModelHead,
    masked: Masked | None,
    losses: dict[str, Measure],
    relationship: Tensor | None = None,
) -> LanguageModelOutput:
    """With the loss of the masked tokens: where it has a gradient, no logits are kept for it."""
    output = LanguageModelOutput(encoded, head, losses, masked, relationship)
    if masked is not None and torch.is_grad_enabled():
        losses["mlm"] = head.loss(masked.states, masked.labels)
    elif output.masked_logits is not None and masked is not None:
        losses["mlm"] = objectives.cross_entropy(output.masked_logits, masked.labels)
    return output


def _named(
    name: str, loss: Callable[[Tensor, Tensor], Measure], logits: Tensor, labels: Tensor | None
) -> dict[str, Measure]:
    return {} if labels is None else {name: loss(logits, labels)}


def _classifier_dropout(config: BertConfig) -> float:
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
