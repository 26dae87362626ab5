"""How good is a model on the documents that were held out?"""

import math
from typing import Any

import torch

from minibert.data.batches import evaluation_batches
from minibert.objectives import pretraining_measures
from minibert.pretraining.config import PretrainConfig
from minibert.pretraining.saving import Parts
from minibert.training.loop import evaluate


def validate(config: PretrainConfig, parts: Parts, model: Any) -> dict[str, float]:
    """Losses and accuracies on the validation documents, whose pairs and masks never change; nothing without any."""
    if len(parts.validation.document_offsets) < 3:
        return {}
    batches = evaluation_batches(
        parts.validation,
        parts.vocabulary,
        pairs=config.pairs,
        masking=config.masking,
        seed=config.training.seed,
        size=config.training.micro_batch_size,
        rank=parts.accelerator.process_index,
        world=parts.accelerator.num_processes,
        limit=config.training.evaluation_rows,
    )
    with torch.compiler.set_stance("force_eager"):  # to compile it once more, for a few batches, would take longer
        values = evaluate(model, batches, parts.accelerator, pretraining_measures)
    return values | {"perplexity": math.exp(min(values["mlm_loss"], 700))}  # the exponential of 710 is too large
