"""Ours beside others: speed turn by turn, utilisation, and memory, each side in the precision that suits it best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from parts.alone import alone
from parts.encoders import Setting, Work, peak, turn
from parts.peak import peak_memory
from parts.turns import in_turns, ratio
from parts.work import best_rate, needed

from minibert.training.launch import bf16_where_native

COLUMNS = (
    "",
    "minibert, real tokens/s",
    "the other",
    "times as fast",
    "minibert, utilisation",
    "the other",
    "minibert, peak MB",
    "the other",
)


@dataclass(frozen=True)
class Measured:
    """A side at its best."""

    rates: list[float]
    """Real tokens a second in each round."""
    setting: Setting
    utilisation: float
    """The needed work over what the fastest matrix product could do in the same time."""
    peak: int
    """Bytes."""


def measure(
    sides: Sequence[str], settings: Sequence[Setting], work: Work, *, rounds: int, seconds: float
) -> dict[str, Measured]:
    """All sides in turns, each in all settings, of which the fastest counts; `seconds` as in `in_turns`."""
    contenders = {(side, setting): turn(side, setting, work) for side in sides for setting in settings}
    on_gpu = {key: peak_memory(one, "cuda") for key, one in contenders.items() if key[1].device == "cuda"}
    rates = in_turns(contenders, rounds, seconds=seconds)
    del contenders
    best = {side: max(settings, key=lambda setting: median(rates[side, setting])) for side in sides}
    limits = {setting: limit(setting, work) for setting in set(best.values())}
    return {
        key[0]: Measured(
            rates[key],
            key[1],
            median(rates[key]) * needed(key[1].shape, work.readings) / work.tokens / limits[key[1]],
            on_gpu[key] if key in on_gpu else alone(peak, *key, work),
        )
        for key in best.items()
    }


def cells(name: str, ours: Measured, other: Measured, *, counts: bool = True) -> list[str]:
    """A line of the table; `counts` says whether the needed work is that of the other too."""
    return [
        name,
        _speed(ours),
        _speed(other),
        f"{ratio(ours.rates, other.rates):.2f}",
        f"{ours.utilisation:.0%}",
        f"{other.utilisation:.0%}" if counts else "",
        *(f"{side.peak / 1e6:,.0f}" for side in (ours, other)),
    ]


def limit(setting: Setting, work: Work) -> float:
    """Floating-point operations a second of the fastest product that this setting can have."""
    readings = work.readings
    tokens, masked = (total // len(work.batches) for total in map(sum, zip(*readings, strict=True)))
    dtype = torch.bfloat16 if setting.bf16 else torch.float32
    return best_rate(setting.shape, tokens, masked, dtype=dtype, device=setting.device)


def has_bf16(device: str) -> bool:
    """Whether the device computes in bf16, rather than playing it."""
    return bf16_where_native(cpu=device == "cpu") == "bf16"


def precisions(setting: Setting) -> list[Setting]:
    """fp32, and bf16 where there is such hardware."""
    return [setting, replace(setting, bf16=True)] if has_bf16(setting.device) else [setting]


def _speed(side: Measured) -> str:
    return f"{median(side.rates):,.0f}" + (" bf16" if side.setting.bf16 else "")
