"""Pretrain an encoder with masked language modelling and next sentence prediction.

    accelerate launch pretrain/train.py --config configs/pretrain/mini.yaml --corpus DIR --output RUN

Killed and started again by the same command, it goes on as if it had never stopped.
"""

import dataclasses
import logging
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer

from minibert import BertConfig, BertForPreTraining, UserError, cli, report
from minibert.data.batches import PretrainingBatches, evaluation_batches, prefetch
from minibert.data.corpus import Corpus
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.publish import check_writable
from minibert.data.tokenizer import Vocabulary, load_tokenizer, save_tokenizer, vocabulary
from minibert.objectives import pretraining_measures
from minibert.training import checkpoint, launch, resume
from minibert.training.checkpoint import TrainingState
from minibert.training.loop import Batch, DivergedError, Update, evaluate, train
from minibert.training.optim import OptimizerSettings, make_optimizer
from minibert.training.optimizer_state import load_named_state, named_state
from minibert.training.schedules import ScheduleSettings, learning_rate_factor
from minibert.training.trackers import TrackingSettings, start_trackers
from minibert.training.tracking import Clock, Record, begin_run
from minibert.types import NonNegativeInt, PositiveFloat, PositiveInt

log = logging.getLogger("minibert")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in what portions, and how often something is written down."""

    steps: PositiveInt = 10_000
    """Optimizer updates."""
    batch_size: PositiveInt = 256
    """Sentence pairs in an update, over all processes."""
    micro_batch_size: PositiveInt = 64
    """Sentence pairs in one forward pass of one process."""
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
    evaluation_instances: PositiveInt = 2048
    """Validation pairs in an evaluation, always the same with the same masks."""
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
    model: BertConfig = field(default_factory=BertConfig)
    """The model"""
    pairs: PairSettings = field(default_factory=PairSettings)
    """Sentence pairs"""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Masking"""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Training"""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """Optimizer"""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    """Learning-rate schedule"""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    """Trackers"""


FREE = {
    "corpus",  # its fingerprint is compared instead
    "output",
    "resume",
    "tracking",
    *(
        f"training.{name}"
        for name in ("micro_batch_size", "workers", "log_every", "evaluate_every", "save_every", "keep")
    ),
}
"""What may differ between a run and its resumption without changing what it computes."""


def main(config: PretrainConfig) -> None:
    """Put the parts together and watch the loop."""
    run = Path(config.output)
    check_writable(run)
    corpus = Corpus.open(config.corpus, "train")
    validation = Corpus.open(config.corpus, "validation")
    tokenizer = load_tokenizer(config.corpus)
    words = vocabulary(tokenizer)
    config = dataclasses.replace(config, model=fitted(config, words))
    accelerator = launch.start(config.training.precision, config.tracking, run)
    source = resume.find(config.resume, run)
    if source is not None:
        resume.refuse_changes(run, dataclasses.asdict(config), FREE)

    torch.manual_seed(config.training.seed)
    model = BertForPreTraining(config.model) if source is None else load(source, config.model)
    optimizer = make_optimizer(model, config.optimizer)
    state = begin(corpus) if source is None else restore(source, model, optimizer, corpus)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    if scaler := state.extra.get("scaler"):
        accelerator.scaler.load_state_dict(scaler)
    if source is not None and accelerator.is_main_process:
        log.warning("resuming from %s", source)

    begin_run(run, cli.to_yaml(config), accelerator)
    start_trackers(accelerator, config.tracking, dataclasses.asdict(config), state.extra["run_id"])
    batches = PretrainingBatches(
        corpus,
        words,
        batch_size=config.training.batch_size,
        seed=config.training.seed,
        pairs=config.pairs,
        masking=config.masking,
    )
    updates = train(
        wrapped,
        prepared,
        accelerator,
        updates=numbered(batches, range(state.step, config.training.steps), config.training, accelerator),
        learning_rate=partial(learning_rate, config=config),
        targets=model.targets,
        clip=config.training.clip,
        seed=config.training.seed,
    )
    with Record(run, accelerator, total=config.training.steps, start=state.step) as record:
        watch(updates, record, state, config, Parts(accelerator, wrapped, optimizer, tokenizer, words, validation))
    if accelerator.is_main_process:
        report.write_run_report(run)
    del wrapped, prepared, updates
    accelerator.free_memory()  # a model that outlives the processes' connection sometimes waits for it without end
    accelerator.end_training()


@dataclass(frozen=True)
class Parts:
    """What evaluating and saving need while the loop runs."""

    accelerator: Accelerator
    model: Any
    optimizer: torch.optim.Optimizer
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    validation: Corpus


def watch(
    updates: Iterator[Update], record: Record, state: TrainingState, config: PretrainConfig, parts: Parts
) -> None:
    """Log, evaluate and save between the updates, each when its time has come and once more at the end."""
    settings = config.training
    tokens, clock, unsaved = state.extra["tokens"], Clock(), False
    try:
        for update in updates:
            tokens += int(update.tokens)
            clock.count(int(update.tokens))
            record.advance()
            last = update.step == settings.steps
            if last or update.step % settings.log_every == 0:
                record.log(update.step, "train", training_values(update) | clock.values() | {"tokens": tokens})
            if last or update.step % settings.evaluate_every == 0:
                with clock.paused():
                    if values := validate(config, parts):
                        record.log(update.step, "validation", values)
            unsaved |= update.step % settings.save_every == 0
            if last or (unsaved and update.applied):  # not while it diverges, lest good checkpoints be rotated away
                with clock.paused():
                    save(update.step, tokens, state, config, parts)
                unsaved = False
    except DivergedError as error:
        saved = checkpoint.checkpoints(Path(config.output))
        raise UserError(f"{error}; the last good checkpoint is {saved[-1] if saved else 'not made yet'}") from None


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


def begin(corpus: Corpus) -> TrainingState:
    """The state before the first update."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return TrainingState(0, {}, {"tokens": 0, "run_id": run_id, "corpus": corpus.fingerprint})


def load(source: Path, shape: BertConfig) -> BertForPreTraining:
    """The model of a checkpoint, which must have this shape."""
    return BertForPreTraining.from_pretrained(source, **vars(shape))


def restore(source: Path, model: BertForPreTraining, optimizer: torch.optim.Optimizer, corpus: Corpus) -> TrainingState:
    """The state that a checkpoint holds, put into the optimizer; refuses another corpus than that of the run."""
    state = checkpoint.load_state(source)
    if state.extra.get("corpus") != corpus.fingerprint:
        raise UserError(f"{corpus.directory}: not the corpus that {source} was trained on (their fingerprints differ)")
    load_named_state(optimizer, model, state.optimizer)
    return state


def numbered(
    batches: PretrainingBatches, steps: range, settings: TrainingSettings, accelerator: Accelerator
) -> Iterator[tuple[int, list[Batch]]]:
    """Each step's number with this process's share of its batch."""
    shares = prefetch(
        batches,
        steps,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        size=settings.micro_batch_size,
        workers=settings.workers,
    )
    yield from zip(steps, shares, strict=True)


def learning_rate(update: int, config: PretrainConfig) -> float:
    """The learning rate at an update."""
    factor = learning_rate_factor(update, config.training.steps, config.schedule)
    return config.optimizer.learning_rate * factor


def training_values(update: Update) -> dict[str, float]:
    """What is logged of an update."""
    losses = {f"{name}_loss": float(loss) for name, loss in update.losses.items()}
    masked = float(update.targets["mlm"] / update.tokens)
    if masked > 0.5:
        log.warning(
            "step %d: %.0f %% of the tokens are to be predicted; the loss will look too good", update.step, 100 * masked
        )
    return {
        "loss": sum(losses.values()),
        **losses,
        "learning_rate": update.learning_rate,
        "gradient_norm": float(update.gradient_norm),
        "masked_share": masked,
    }


def validate(config: PretrainConfig, parts: Parts) -> dict[str, float]:
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
        limit=config.training.evaluation_instances,
    )
    values = evaluate(parts.model, batches, parts.accelerator, pretraining_measures)
    return values | {"perplexity": math.exp(min(values["mlm_loss"], 700))}  # the exponential of 710 is too large


def save(step: int, tokens: int, state: TrainingState, config: PretrainConfig, parts: Parts) -> None:
    """Write a checkpoint; one process does."""
    parts.accelerator.wait_for_everyone()
    if not parts.accelerator.is_main_process:
        return
    model = parts.accelerator.unwrap_model(parts.model)
    scaler = parts.accelerator.scaler
    extra = state.extra | {"tokens": tokens, "scaler": scaler.state_dict() if scaler else None}

    def write_model(directory: Path) -> None:
        model.save_pretrained(directory)
        save_tokenizer(parts.tokenizer, directory, model_max_length=config.model.max_position_embeddings)

    optimizer = named_state(parts.optimizer, model)
    checkpoint.save(Path(config.output), TrainingState(step, optimizer, extra), write_model, config.training.keep)


if __name__ == "__main__":
    cli.run(main, PretrainConfig)
