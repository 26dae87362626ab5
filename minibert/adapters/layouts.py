"""How adapters are written down: in our way, and LoRA as the library `peft` does, which loads it with equal outputs."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from torch import nn

from minibert.adapters.base import AdapterConfig
from minibert.adapters.kinds import make_config
from minibert.adapters.lora import LoraConfig, Target
from minibert.adapters.seams import SEAMS, head_weights, seams
from minibert.errors import UserError
from minibert.hf import hugging_face_name

Fields = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """One way of writing: the fields of adapter_config.json, and the names of the weights."""

    fields: Callable[[Any, nn.Module], Fields]
    """From a config, and the model that it is for."""
    config: Callable[[Fields, nn.Module], AdapterConfig]
    """And back; raises `UserError` for a field whose value we cannot follow, `KeyError` for one that is missing."""
    key: Callable[[str], str]
    """The name of a weight: of a head as in the model, of an adapter `path/of/the/seam.parameter`."""


def layout_for(config: AdapterConfig) -> Layout:
    """How an adapter is to be written."""
    return _PEFT if isinstance(config, LoraConfig) else _OURS


def layout_of(fields: Fields) -> Layout:
    """How the adapter with these fields was written."""
    return _PEFT if "peft_type" in fields else _OURS


def _our_fields(config: Any, model: nn.Module) -> Fields:
    return {"kind": config.kind, "settings": dataclasses.asdict(config)}


def _our_config(fields: Fields, model: nn.Module) -> AdapterConfig:
    return make_config(fields["kind"], fields["settings"])


def _our_key(name: str) -> str:
    return name


_OURS = Layout(_our_fields, _our_config, _our_key)


def _peft_fields(config: LoraConfig, model: nn.Module) -> Fields:
    """Those of `peft.LoraConfig` that do not have their default."""
    targets = [hugging_face_name(SEAMS[target]) for target in config.targets]
    others = [hugging_face_name(SEAMS[target]) for target in get_args(Target) if target not in config.targets]
    heads = {hugging_face_name(name).rpartition(".")[0] for name in head_weights(model)}
    return {
        "peft_type": "LORA",
        "task_type": _TASKS.get(type(model).__name__),
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.rank_stabilised,
        "bias": "none",
        "target_modules": targets,
        "exclude_modules": [name for name in others if _is_meant(name, targets)] or None,
        "modules_to_save": sorted(name for name in heads if not any(h.startswith(f"{name}.") for h in heads)) or None,
    }


def _peft_config(fields: Fields, model: nn.Module) -> LoraConfig:
    _refuse_variants(fields)
    return LoraConfig(
        rank=fields["r"],
        alpha=float(fields["lora_alpha"]),
        dropout=fields.get("lora_dropout", 0.0),
        targets=tuple(_peft_targets(fields, model)),
        rank_stabilised=fields.get("use_rslora", False),
    )


def _refuse_variants(fields: Fields) -> None:
    if fields["peft_type"] != "LORA":
        raise UserError(f"peft_type: expected LORA, got {fields['peft_type']}")
    if fields.get("bias", "none") != "none":
        raise UserError(f"bias: expected none, got {fields['bias']}")
    if (start := fields.get("init_lora_weights")) not in _STARTS_THAT_KEEP_THE_BASE:
        raise UserError(f"init_lora_weights: {start} changes the weights of the base, which the file does not hold")
    if variants := [name for name in _VARIANTS if fields.get(name)]:
        raise UserError(f"{variants[0]}: expected plain LoRA, got {fields[variants[0]]}")


def _peft_targets(fields: Fields, model: nn.Module) -> list[Target]:
    """What `target_modules` means in this model: whole columns of our seams, or `UserError`."""
    meant = {
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not path.startswith("adapters.")
        and _is_meant(hugging_face_name(path), fields["target_modules"])
        and not _is_meant(hugging_face_name(path), fields.get("exclude_modules") or [])
    }
    targets: list[Target] = [target for target in get_args(Target) if meant & seams(model, [target]).keys()]
    if wrong := meant ^ (seams(model, targets).keys() if targets else set()):
        path = hugging_face_name(sorted(wrong)[0])
        raise UserError(
            f"target_modules: expected the same linear maps of every encoder layer and no others; see {path}"
        )
    return targets


def _peft_key(name: str) -> str:
    return "base_model.model." + hugging_face_name(name.replace("/", "."))


def _is_meant(name: str, targets: str | Iterable[str]) -> bool:
    """As `peft` reads them: a regular expression, or ends of names."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


_PEFT = Layout(_peft_fields, _peft_config, _peft_key)

_TASKS = {
    "BertForSequenceClassification": "SEQ_CLS",
    "BertForTokenClassification": "TOKEN_CLS",
    "BertForQuestionAnswering": "QUESTION_ANS",
}

# Fields of `peft` that change what is computed where the names and shapes of the weights would not show it.
_VARIANTS = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
_STARTS_THAT_KEEP_THE_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
