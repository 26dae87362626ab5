"""Which kinds of adapter there are: one line for each."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from minibert.adapters.base import AdapterConfig
from minibert.adapters.bitfit import BitFitConfig
from minibert.adapters.bottleneck import HoulsbyConfig, PfeifferConfig
from minibert.adapters.frozen import FrozenConfig
from minibert.adapters.lora import LoraConfig
from minibert.errors import UserError

KINDS: dict[str, Any] = {
    config.kind: config for config in (FrozenConfig, BitFitConfig, LoraConfig, PfeifferConfig, HoulsbyConfig)
}
"""The config class of each kind."""


def make_config(kind: str, settings: Mapping[str, Any]) -> AdapterConfig:
    """The config of that kind with these settings.

    Raises `UserError` naming a setting that has no meaning for the kind or is out of range.
    """
    if kind not in KINDS:
        raise UserError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    refuse_meaningless(kind, settings)
    return KINDS[kind](**settings)


def refuse_meaningless(kind: str, settings: Mapping[str, Any]) -> None:
    """Raise `UserError` for a setting that is not one of the kind."""
    for name in settings:
        if name not in _settings(kind):
            others = [other for other in KINDS if name in _settings(other)]
            raise UserError(f"{name} has no meaning for {kind}, only for {' and '.join(others) or 'no kind at all'}")


def _settings(kind: str) -> set[str]:
    return {field.name for field in dataclasses.fields(KINDS[kind])} if kind in KINDS else set()
