"""What a pretraining run is asked for: every field of its config, and what does not fit together."""

import dataclasses
from dataclasses import dataclass, field

from minibert.config import BertConfig
from minibert.data.course import Stage
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError
from minibert.training import launch
from minibert.training.averaging import AveragingSettings
from minibert.training.guard import GuardSettings
from minibert.training.horizon import Horizon, horizon
from minibert.training.optim import OptimizerSettings
from minibert.training.schedules import ScheduleSettings
from minibert.training.trackers import TrackingSettings
from minibert.types import NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in what portions, and how often something is written down.

    The run lasts `budget`, or else `tokens`, or else `epochs`, or else `steps`: the first that is given counts.
    """

    steps: PositiveInt = 10_000
    """Optimizer updates."""
    epochs: PositiveFloat | None = None
    """How often the corpus is read; counts before `steps`."""
    tokens: PositiveInt | None = None
    """Tokens to train on; counts before `epochs`."""
    batch_size: PositiveInt = 256
    """Rows of `pairs.max_length` tokens in an update, over all processes."""
    micro_batch_size: PositiveInt = 64
    """Rows in one forward pass of one process; more where a stage has shorter rows."""
    clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    seed: NonNegativeInt = 0
    """Seed of weights, order, pairs, masks and dropout."""
    precision: launch.Precision | None = None
    """no (float32), bf16, fp16, auto (bf16 where the device computes in it); null = as `accelerate launch` says."""
    workers: NonNegativeInt = 0
    """Processes that make batches ahead; 0 makes them in between."""
    log_every: PositiveInt = 10
    """Steps between two lines of training metrics."""
    evaluate_every: PositiveInt = 500
    """Steps between two evaluations."""
    evaluation_rows: PositiveInt = 2048
    """Rows of validation text in an evaluation, always the same with the same masks."""
    save_every: PositiveInt = 500
    """Steps between two checkpoints."""
    keep: PositiveInt = 2
    """Checkpoints that are kept, the newest."""


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain an encoder with masked language modelling and next sentence prediction on a prepared corpus."""

    corpus: str
    """Directory made by pretrain/prepare.py."""
    output: str
    """Directory of the run."""
    resume: str = "auto"
    """auto = go on from the newest whole checkpoint of the run, never = begin anew, or the path of a checkpoint."""
    allow_changes: bool = False
    """Go on although the config is not the one that the run began with; each difference is said."""
    budget: str | None = None
    """How long the run lasts by the clock, such as 30m or 1h30m, resumed parts counted; the schedule ends with it."""
    compile: bool = False
    """Whether `torch.compile` makes one program of the model: a minute or more at the start, then faster steps."""
    model: BertConfig = field(default_factory=BertConfig)
    """The model"""
    pairs: PairSettings = field(default_factory=PairSettings)
    """Sentence pairs"""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Masking"""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Training"""
    stages: list[Stage] = field(default_factory=list)
    """First parts of the run with shorter rows or smaller batches, such as [{until: 0.9, max_length: 128}]"""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """Optimizer"""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    """Learning-rate schedule"""
    guard: GuardSettings = field(default_factory=GuardSettings)
    """Updates that are left out"""
    averaging: AveragingSettings = field(default_factory=AveragingSettings)
    """Averages of the weights"""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    """Trackers"""


FREE = {
    "corpus",  # its fingerprint is compared instead
    "output",
    "resume",
    "allow_changes",
    "tracking",
    *(
        f"training.{name}"
        for name in ("micro_batch_size", "workers", "log_every", "evaluate_every", "save_every", "keep")
    ),
}
"""What may differ between a run and its resumption without changing what it computes."""


def fitted(config: PretrainConfig, words: Vocabulary) -> BertConfig:
    """The model's config with the tokenizer's vocabulary; refuses what does not fit together, before any work."""
    model = config.model
    if model.vocab_size != BertConfig().vocab_size and model.vocab_size < words.size:
        raise UserError(
            f"model.vocab_size: {model.vocab_size} is less than the {words.size} entries of the tokenizer; leave it out"
        )
    if config.pairs.max_length > model.max_position_embeddings:
        raise UserError(
            f"pairs.max_length: {config.pairs.max_length} is more than model.max_position_embeddings, "
            f"{model.max_position_embeddings}"
        )
    rows = words.size if model.vocab_size == BertConfig().vocab_size else model.vocab_size
    return dataclasses.replace(model, vocab_size=rows, pad_token_id=words.pad)


def end_of(config: PretrainConfig) -> Horizon:
    """How long the run lasts: the first of budget, tokens, epochs and steps that is given."""
    settings = config.training
    if config.budget is not None:
        return horizon(budget=config.budget)
    if settings.tokens is not None:
        return horizon(tokens=settings.tokens)
    return horizon(epochs=settings.epochs) if settings.epochs is not None else horizon(steps=settings.steps)
