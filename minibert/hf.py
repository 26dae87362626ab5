"""A checkpoint is a Hugging Face checkpoint: one table of names, reading what is there, writing what others load."""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minibert.errors import UserError

log = logging.getLogger("minibert")

NAMES = (
    # ours                  Hugging Face's
    ("embeddings.tokens", "embeddings.word_embeddings"),
    ("embeddings.positions", "embeddings.position_embeddings"),
    ("embeddings.segments", "embeddings.token_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
    ("encoder.layers", "encoder.layer"),
    ("attention.query", "attention.self.query"),
    ("attention.key", "attention.self.key"),
    ("attention.value", "attention.self.value"),
    ("attention.score", "attention.self.score"),
    ("attention.output", "attention.output.dense"),
    ("attention_norm", "attention.output.LayerNorm"),
    ("feed_forward.up", "intermediate.dense"),
    ("feed_forward.down", "output.dense"),
    ("feed_forward_norm", "output.LayerNorm"),
    ("mlm.dense", "cls.predictions.transform.dense"),
    ("mlm.norm", "cls.predictions.transform.LayerNorm"),
    ("mlm.decoder.weight", "cls.predictions.decoder.weight"),
    ("mlm.decoder.bias", "cls.predictions.bias"),
    ("nsp", "cls.seq_relationship"),
    ("classifier.linear", "classifier"),
    ("span.linear", "qa_outputs"),
)
"""What we call the parts of a model, and what Hugging Face does."""

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_TIED = "cls.predictions.decoder.weight"
_BIAS, _DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module"}
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
_NOT_WEIGHTS = {"position_ids", "token_type_ids"}


def hugging_face_name(name: str) -> str:
    """The name that Hugging Face gives to a parameter of ours."""
    for ours, theirs in NAMES:
        name = re.sub(rf"(^|\.){re.escape(ours)}(\.|$)", rf"\g<1>{theirs}\g<2>", name)
    return name


def save(model: nn.Module, directory: Path, fields: dict[str, Any], given: Mapping[str, Tensor] | None = None) -> None:
    """Write config.json as `save_config` does, and the weights to model.safetensors; tied weights once.

    `given`: weights by our names, in place of the model's own.
    """
    save_config(model, directory, fields)
    weights = {
        hugging_face_name(ours): tensor.detach().float().cpu().contiguous()
        for ours, tensor in base_weights(model.state_dict() if given is None else given)
    }
    if fields.get("tie_word_embeddings", True):
        weights.pop(_TIED, None)
    elif _BIAS in weights:  # transformers reads the second name where the decoder is not tied
        weights[_DECODER_BIAS] = weights[_BIAS].clone()
    save_file(weights, directory / SAFETENSORS, metadata={"format": "pt"})
    (directory / SAFETENSORS).chmod(0o644)  # the library makes it unreadable for others


def save_config(model: nn.Module, directory: Path, fields: dict[str, Any]) -> None:
    """Write `fields` and the architecture to config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    name = type(model).__name__.removeprefix("FSDP")  # which torch puts there when it cuts a model up
    config = {"architectures": [name], **fields, "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def base_weights(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Those weights of a model that belong to itself, not to adapters attached to it."""
    return ((name, tensor) for name, tensor in weights.items() if not name.startswith("adapters."))


def load_weights(model: nn.Module, directory: Path) -> list[str]:
    """Copy the weights in `directory` into `model`, whatever wrapper prefixes and old names they have.

    Returns our names of the weights that the checkpoint lacks: they stay as they are.

    Raises `UserError` naming the file or the weight: no or broken file, a pickle that holds more than tensors, an
    encoder weight that is missing, any weight of another shape. Fresh heads and unused layers are named in a warning.
    """
    given = {_canonical(name): tensor for name, tensor in _read(directory).items() if not _is_buffer(name)}
    tied = getattr(model.config, "tie_word_embeddings", True)
    bias = given.pop(_DECODER_BIAS, None)
    if bias is not None and not (tied and _BIAS in given):
        given[_BIAS] = bias
    fresh = {}
    with torch.no_grad():
        for ours, parameter in base_weights(model.state_dict()):
            theirs = _canonical(hugging_face_name(ours))
            tensor = given.pop(theirs, None)
            if theirs == _TIED and tied:
                continue
            if tensor is None:
                fresh[ours] = theirs
                continue
            _check_shape(theirs, tensor, parameter, directory)
            parameter.copy_(tensor)
    _report(list(fresh.values()), given, directory)
    return list(fresh)


def _report(fresh: list[str], unused: dict[str, Tensor], directory: Path) -> None:
    missing = [name for name in fresh if name.startswith(("bert.embeddings.", "bert.encoder."))]
    if missing:
        raise UserError(f"{directory}: lacks the encoder weight {missing[0]} (and {len(missing) - 1} more)")
    if fresh:
        parts = sorted({name.rsplit(".", 1)[0] for name in fresh})
        log.warning("%s has no weights for %s: they start fresh and must be trained", directory, ", ".join(parts))
    foreign = sorted(name for name in unused if name.startswith(("bert.embeddings.", "bert.encoder.")))
    if foreign:
        log.warning("%s holds %d weights that the model lacks, such as %s", directory, len(foreign), foreign[0])


def _check_shape(name: str, tensor: Tensor, parameter: Tensor, directory: Path) -> None:
    if tensor.shape != parameter.shape:
        raise UserError(f"{directory}: {name} is {list(tensor.shape)}, the model expects {list(parameter.shape)}")


def _canonical(name: str) -> str:
    """One spelling for all: no wrapper prefixes, modern names, the encoder under `bert.`."""
    parts = [_OLD_NAMES.get(part, part) for part in name.split(".") if part not in _WRAPPERS]
    if parts[0] in ("embeddings", "encoder", "pooler"):
        parts.insert(0, "bert")
    return ".".join(parts)


def _is_buffer(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in _NOT_WEIGHTS


def _read(directory: Path) -> dict[str, Tensor]:
    """All weights of a directory: one file or an index of shards, safetensors before pickles."""
    for name in (SAFETENSORS, PICKLE):
        if (directory / name).is_file():
            return _read_file(directory / name)
        if (directory / f"{name}.index.json").is_file():
            return _read_shards(directory / f"{name}.index.json")
    raise UserError(f"{directory}: expected {SAFETENSORS} or {PICKLE}, found neither")


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted({str(shard) for shard in places.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not an index of shards ({error})") from None
    weights: dict[str, Tensor] = {}
    for shard in shards:
        if os.sep in shard or not (index.parent / shard).is_file():
            raise UserError(f"{index}: names the shard {shard}, which is not there")
        weights |= _read_file(index.parent / shard)
    if lost := sorted(set(places) - set(weights)):
        raise UserError(f"{index}: {places[lost[0]]} lacks the weight {lost[0]}")
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None
    except UnpicklingError:
        raise UserError(f"{path}: holds more than tensors, or is damaged; refused, since it could run code") from None
    except Exception as error:  # a damaged pickle raises anything: EOFError, KeyError, RuntimeError, OSError, ...
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"{path}: not a whole checkpoint ({reason})") from None
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise UserError(f"{path}: expected a dictionary of tensors")
    return weights
