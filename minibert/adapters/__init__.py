"""Fine-tuning of few parameters: adapters attach from outside to the named seams of an encoder.

attach(model, LoraConfig(rank=8))               the encoder is frozen; the adapter and the head are trained
save_adapter(model, "adapter", base="base")     some hundred kilobytes, head included
load_adapter(model, "adapter")                  onto a fresh copy of the same base: equal outputs
merge(model); model.save_pretrained("merged")   LoRA folded into the weights: a plain checkpoint
detach(model)                                   the base again, bit for bit
"""

from minibert.adapters.base import attach, attached, detach, trainable_parameters
from minibert.adapters.bitfit import BitFitConfig
from minibert.adapters.bottleneck import HoulsbyConfig, PfeifferConfig
from minibert.adapters.frozen import FrozenConfig
from minibert.adapters.lora import LoraConfig
from minibert.adapters.merging import merge, unmerge
from minibert.adapters.saving import base_of, load_adapter, save_adapter
from minibert.adapters.settings import AdapterSettings

__all__ = [
    "AdapterSettings",
    "BitFitConfig",
    "FrozenConfig",
    "HoulsbyConfig",
    "LoraConfig",
    "PfeifferConfig",
    "attach",
    "attached",
    "base_of",
    "detach",
    "load_adapter",
    "merge",
    "save_adapter",
    "trainable_parameters",
    "unmerge",
]
