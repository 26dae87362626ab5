"""An adapter on disk: some hundred kilobytes that hold the adapter, the head, and which base they belong to.

DIR/adapter_config.json           kind and settings (of LoRA as the library `peft` writes them), path of the base
DIR/adapter_model.safetensors     weights of adapter and head; in its metadata size and fingerprint of the base
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from minibert.adapters.base import AdapterConfig, attach, detach, find, refuse_merged
from minibert.adapters.fingerprint import base_facts, refuse_other_base
from minibert.adapters.layouts import Layout, layout_for, layout_of
from minibert.adapters.seams import head_weights
from minibert.errors import UserError
from minibert.files import write_whole

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base_model_name_or_path"


def save_adapter(
    model: nn.Module, directory: str | Path, *, name: str = "default", base: str | Path | None = None
) -> None:
    """Write the adapter and the head to `directory`; `base` is the path or name of the model below, kept as given.

    Raises `UserError` where no adapter has the name, or adapters are merged.
    """
    refuse_merged(model)
    config, directory = find(model, name).config, Path(directory)
    layout = layout_for(config)
    weights = {
        layout.key(key): weight.detach().cpu().contiguous() for key, weight in _weights(model, name, head=True).items()
    }
    fields = {**layout.fields(config, model), _BASE: None if base is None else str(base)}
    directory.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt", "base": json.dumps(base_facts(model, name))}
    write_whole(directory / WEIGHTS, save(weights, metadata=metadata))
    write_whole(directory / CONFIG, (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode())


def load_adapter(
    model: nn.Module,
    directory: str | Path,
    *,
    name: str = "default",
    with_head: bool = True,
    allow_other_base: bool = False,
) -> AdapterConfig:
    """Attach the adapter in `directory`, ours or a LoRA of `peft`, and put its head in place of the model's.

    Without the head it may belong to a model with another one, as an adapter trained on masked words does that a task
    adapter is stacked on. `allow_other_base` accepts a base of the same sizes with other weights.

    Raises `UserError`, and leaves the model as it was, for a missing or broken file, settings that we cannot follow,
    a weight that is missing, unexpected or of another shape, and a base that is not the one it was trained on.
    """
    directory = Path(directory)
    fields = _read_fields(directory / CONFIG)
    layout = layout_of(fields)
    config = _read_config(layout, fields, model, directory / CONFIG)
    weights, facts = _read_weights(directory / WEIGHTS)
    attach(model, config, name)
    try:
        refuse_other_base(model, name, facts, directory, allow_other_base)
        _copy(weights, _weights(model, name, head=with_head), layout, directory / WEIGHTS, extra=not with_head)
    except UserError:
        detach(model, name)
        raise
    return config


def base_of(directory: str | Path) -> str | None:
    """Path or name of the model that the adapter in `directory` belongs to, where it was given; or `UserError`."""
    base = _read_fields(Path(directory) / CONFIG).get(_BASE)
    return None if base is None else str(base)


def _weights(model: nn.Module, name: str, *, head: bool) -> dict[str, nn.Parameter]:
    """All that a file holds, by name: a head's as in the model, an adapter's with slashes in the path of its seam."""
    weights = dict(find(model, name).named_parameters())
    return weights | head_weights(model) if head else weights


def _copy(
    given: Mapping[str, Tensor], weights: Mapping[str, nn.Parameter], layout: Layout, path: Path, *, extra: bool
) -> None:
    """Copy all or nothing; `extra` allows the file to hold more."""
    expected = {layout.key(key): weight for key, weight in weights.items()}
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing:
        raise UserError(f"{path}: lacks {missing[0]}" + (f", but holds {unexpected[0]}" if unexpected else ""))
    if unexpected and not extra:
        raise UserError(f"{path}: holds {unexpected[0]}, for which the model has no place")
    for key, weight in expected.items():
        if given[key].shape != weight.shape:
            raise UserError(f"{path}: {key} is {list(given[key].shape)}, the model expects {list(weight.shape)}")
    with torch.no_grad():
        for key, weight in expected.items():
            weight.copy_(given[key])


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the directory of an adapter") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path}: expected an object, got {type(fields).__name__}")
    return fields


def _read_config(layout: Layout, fields: dict[str, Any], model: nn.Module, path: Path) -> AdapterConfig:
    try:
        return layout.config(fields, model)
    except KeyError as error:
        raise UserError(f"{path}: lacks the field {error}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, and what is known of the base: nothing where another library wrote the file."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("base", "{}"))
            return {key: file.get_tensor(key) for key in file.keys()}, dict(facts)  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the weights of an adapter") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None
