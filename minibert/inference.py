"""A trained model at work: which words fit, which label a text has, who looks at whom.

model, tokenizer = load_language_model("runs/mini/last")
fill_mask(model, tokenizer, "Paris is the capital of [MASK].")     [[Candidate("france", 0.41), ...]]

model, tokenizer = load_classifier("runs/task/seed-0/last")
list(classify(model, tokenizer, ["A fine film.", ...]))            [Prediction("positive", (0.03, 0.97)), ...]
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from minibert.adapters import base_of, load_adapter
from minibert.attention import MultiHeadAttention
from minibert.config import BertConfig
from minibert.data.ragged import Inputs, by_length, pack
from minibert.data.tasks import Texts, encode
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.errors import UserError
from minibert.model import BertForMaskedLM, BertForSequenceClassification

_CHUNK = 50
"""Batches whose inputs are sorted by length together: enough that they are alike, few enough for any memory."""


class Candidate(NamedTuple):
    """A word that may stand at a mask, and its probability."""

    token: str
    probability: float


class Prediction(NamedTuple):
    """The most probable label, and the probability of each label in the order of `config.label_names`."""

    label: str
    probabilities: tuple[float, ...]


def load_language_model(directory: str | Path) -> tuple[BertForMaskedLM, Tokenizer]:
    """The masked language model of a pretraining checkpoint, ours or a published one, with its tokenizer.

    Raises `UserError` where either is missing or broken, or the masked-LM head was never trained.
    """
    return _trained(BertForMaskedLM.from_pretrained(directory), directory), load_tokenizer(directory)


def load_classifier(
    directory: str | Path, base: str | Path | None = None
) -> tuple[BertForSequenceClassification, Tokenizer]:
    """A fine-tuned classifier with its tokenizer: a whole model, or an adapter that is put onto its base.

    `base` is where the adapter's base lies, if it is not where it was in training.

    Raises `UserError` where a part is missing or broken, or the classifier was never trained.
    """
    directory = Path(directory)
    if not (directory / "adapter_config.json").is_file():
        model = BertForSequenceClassification.from_pretrained(directory)
        return _trained(model, directory), load_tokenizer(directory)
    base = base or base_of(directory)
    if base is None:
        raise UserError(
            f"{directory / 'adapter_config.json'}: base_model_name_or_path is null; expected the base's path"
        )
    model = BertForSequenceClassification.from_pretrained(base, **_labels(directory))
    load_adapter(model, directory)
    return model, load_tokenizer(directory)


def _trained(model: Any, directory: str | Path) -> Any:
    if fresh := [name for name in model.fresh_weights if not name.startswith("bert.")]:
        raise UserError(f"{directory}: has no weights for {fresh[0]}; expected a model that was trained for this")
    return model


def fill_mask(model: Any, tokenizer: Tokenizer, text: str, *, top: int = 5) -> list[list[Candidate]]:
    """For each [MASK] in the text the `top` most probable tokens of the whole vocabulary, the best first.

    Here [MASK] and [SEP] in the text mean the special tokens. `model` has a masked-LM head.
    Raises `UserError` for a text without a mask, and for one that is longer than the model's positions.
    """
    ids, words = encode_with_masks(tokenizer, text), vocabulary(tokenizer)
    masked = [place for place, token in enumerate(ids) if token == words.mask]
    if not masked:
        raise UserError(f"no [MASK] in {text!r}; expected one at least, in capitals")
    if len(ids) > (limit := model.config.max_position_embeddings):
        raise UserError(f"the text has {len(ids)} tokens; the model reads {limit} at most")
    with evaluation(model):
        output = model(torch.tensor([ids], device=_device(model)))
        probabilities = output.head(output.last_hidden_state[0, masked]).float().softmax(-1)  # [masks, V]
    best = probabilities[:, : words.size].topk(min(top, words.size))  # the model may have rows that name no token
    names = [[str(tokenizer.id_to_token(token)) for token in tokens] for tokens in best.indices.tolist()]
    return [list(map(Candidate, *row)) for row in zip(names, best.values.tolist(), strict=True)]


def classify(
    model: BertForSequenceClassification,
    tokenizer: Tokenizer,
    texts: Iterable[str | tuple[str, str | None]],
    *,
    max_length: int | None = None,
    batch_size: int = 64,
) -> Iterator[Prediction]:
    """One prediction for each text or pair, in their order, an empty text included.

    Any iterable will do, for it is read and answered a few batches at a time. Of inputs longer than `max_length`
    tokens, or than the model's positions, the longer text loses its end.
    Raises `UserError` for a model that predicts a number and not a label.
    """
    if model.config.num_labels < 2:
        raise UserError("the model predicts one number; expected a classifier with two labels or more")
    limit = min(max_length or model.config.max_position_embeddings, model.config.max_position_embeddings)
    pad_id, names = vocabulary(tokenizer).pad, model.config.label_names
    rows = (Texts(text, None) if isinstance(text, str) else Texts(*text) for text in texts)
    while chunk := list(islice(rows, batch_size * _CHUNK)):
        inputs = encode(tokenizer, chunk, max_length=limit)
        probabilities = class_logits(model, inputs, pad_id=pad_id, batch_size=batch_size).softmax(-1)
        best = probabilities.argmax(-1).tolist()
        for label, row in zip(best, probabilities.tolist(), strict=True):
            yield Prediction(names[label], tuple(row))


def class_logits(model: BertForSequenceClassification, inputs: Inputs, *, pad_id: int, batch_size: int) -> Tensor:
    """[inputs, C] in float32 on the CPU, in the order of the inputs; at most `batch_size` of them in a forward pass."""
    device = _device(model)
    answers = torch.empty(len(inputs), model.config.num_labels, device=device)
    with evaluation(model):
        for chosen in by_length(inputs, batch_size):
            packed = pack(inputs, chosen, pad_id=pad_id)
            output = model(**{name: tensor.to(device) for name, tensor in packed.batch.items()})
            answers[torch.from_numpy(chosen).to(device)] = packed.in_order(output.logits).float()
    return answers.cpu()


def attention_maps(model: nn.Module, input_ids: Tensor, **inputs: Tensor) -> Tensor:
    """Who looks at whom? The weights of every layer and head, [layers, B, heads, L, L]; the keys are the last axis.

    The model is run as it always is, on fused kernels that write no weights down; each attention is asked for them
    beside. Rows sum to 1. Arguments are those of the model; it is left as it was, training mode and hooks too.
    """
    maps: list[Tensor] = []

    def ask(module: MultiHeadAttention, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        maps.append(module.attention_map(*arguments, **named))

    with evaluation(model), _listening(model, ask):
        model(input_ids, **inputs)
    return torch.stack(maps)


def encode_with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text whose [MASK] and [SEP] mean the special tokens; the tokenizer is left as it was."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = False
    try:
        return list(tokenizer.encode(text).ids)
    finally:
        tokenizer.encode_special_tokens = before


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients inside; afterwards each module is in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _labels(directory: Path) -> dict[str, Any]:
    """The labels that an adapter was trained for stand in the config beside it; without one they are the base's."""
    path = directory / "config.json"
    return {"id2label": BertConfig.from_file(path).id2label} if path.is_file() else {}


@contextmanager
def _listening(model: nn.Module, listener: Any) -> Iterator[None]:
    """Each attention of the model calls `listener` with what it was given, in the order in which they run."""
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [module.register_forward_hook(listener, with_kwargs=True) for module in attentions]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
