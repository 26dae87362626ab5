"""Fine-tune an encoder to classify sentences or pairs, whole or through an adapter, over several seeds.

    accelerate launch finetune/train.py --config configs/finetune/NAME.yaml --model DIR [--adapter.kind lora]

Each seed leaves its best epoch in RUN/seed-N/last; RUN/results.json holds mean and spread. Started again after a
kill, finished seeds are not repeated.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from tokenizers import Tokenizer
from torch import nn

from minibert import BertConfig, BertForSequenceClassification, UserError, cli, hf, metrics
from minibert.adapters import AdapterSettings, attach, save_adapter
from minibert.data import tasks
from minibert.data.publish import check_writable
from minibert.data.ragged import by_length, pack
from minibert.data.sources import read_rows
from minibert.data.tasks import Examples, TaskSettings
from minibert.data.tokenizer import load_tokenizer, save_tokenizer, vocabulary
from minibert.files import write_whole
from minibert.training import checkpoint, launch, resume
from minibert.training.best import Best, trained
from minibert.training.loop import Batch, DivergedError, train
from minibert.training.optim import OptimizerSettings, make_optimizer
from minibert.training.schedules import ScheduleSettings, learning_rate_factor
from minibert.training.trackers import TrackingSettings, finish_trackers, start_trackers
from minibert.training.tracking import Record, begin_run
from minibert.types import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in what portions, and what is best."""

    epochs: PositiveInt = 4
    """Passes over the training rows."""
    batch_size: PositiveInt = 32
    """Rows in an update, over all processes."""
    micro_batch_size: PositiveInt = 32
    """Rows in one forward pass of one process."""
    clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    seeds: list[NonNegativeInt] = field(default_factory=lambda: [0])
    """One run for each: seed of the new head (and adapter), order and dropout."""
    precision: launch.Precision | None = None
    """no (float32), bf16, fp16, auto (bf16 where the device computes in it); null = as `accelerate launch` says."""
    best_metric: Literal["accuracy", "f1", "matthews", "loss"] = "accuracy"
    """What chooses the best epoch on the validation rows; the earlier one of equals."""
    log_every: PositiveInt = 10
    """Updates between two lines of training metrics."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise UserError("training.seeds is empty; expected one seed at least")


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune an encoder to classify sentences or pairs, whole or through an adapter."""

    model: str
    """Directory of the encoder: a checkpoint of ours or a Hugging Face BERT."""
    output: str
    """Directory of the run."""
    task: TaskSettings
    """Task"""
    random_weights: bool = False
    """Take only shape and tokenizer from the model and start from random weights, to see what pretraining gained."""
    dropout: UnitInterval | None = None
    """Dropout of the encoder while fine-tuning; null = as in its config."""
    adapter: AdapterSettings = field(default_factory=AdapterSettings)
    """Adapter"""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Training"""
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(learning_rate=3e-4))
    """Optimizer"""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    """Learning-rate schedule"""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    """Trackers"""


FREE = {"output", "tracking", "training.seeds", "training.micro_batch_size", "training.log_every"}
"""What may differ when a run is started again to do the seeds that are missing."""


@dataclass(frozen=True)
class Splits:
    """The rows of the task, encoded, and the names of its labels in order."""

    labels: list[str]
    train: Examples
    validation: Examples
    test: Examples | None


def main(config: FinetuneConfig) -> None:
    """Train one model for each seed, and put their scores together."""
    run = Path(config.output)
    check_writable(run)
    tokenizer = load_tokenizer(config.model)
    shape = BertConfig.from_file(Path(config.model) / "config.json")
    refuse_misfits(config, shape, tokenizer)
    splits = read_splits(config.task, tokenizer)
    accelerator = launch.start(config.training.precision, config.tracking, run)
    if any(run.glob("seed-*/last")):
        resume.refuse_changes(run, dataclasses.asdict(config), FREE)
    make_model(config, splits.labels)  # what cannot be loaded is refused before anything is written
    accelerator.wait_for_everyone()
    begin_run(run, cli.to_yaml(config), accelerator)
    for seed in config.training.seeds:
        if not (run / f"seed-{seed}" / "result.json").is_file():
            train_seed(seed, config, splits, tokenizer, accelerator)
    if accelerator.is_main_process:
        write_results(run, config)
    accelerator.end_training()


def refuse_misfits(config: FinetuneConfig, shape: BertConfig, tokenizer: Tokenizer) -> None:
    """Refuse what would fail in the middle of the work."""
    config.adapter.config()
    if config.task.max_length > shape.max_position_embeddings:
        raise UserError(
            f"task.max_length: {config.task.max_length} is more than the {shape.max_position_embeddings} positions of "
            f"{config.model}"
        )
    if tokenizer.get_vocab_size() > shape.vocab_size:
        raise UserError(
            f"{config.model}: its tokenizer has {tokenizer.get_vocab_size()} entries, its embeddings only "
            f"{shape.vocab_size}"
        )


def read_splits(task: TaskSettings, tokenizer: Tokenizer) -> Splits:
    """Read and encode all rows; the labels are those of the training rows."""
    names = tasks.label_names(read_rows(task.train), task.label, source=task.train)
    read = partial(tasks.read_examples, settings=task, names=names, tokenizer=tokenizer)
    return Splits(names, read(task.train), read(task.validation), read(task.test) if task.test else None)


def train_seed(
    seed: int, config: FinetuneConfig, splits: Splits, tokenizer: Tokenizer, accelerator: Accelerator
) -> None:
    """Train with one seed, keep the best epoch, and write its scores to RUN/seed-N/result.json."""
    began, run = time.monotonic(), Path(config.output) / f"seed-{seed}"
    if accelerator.is_main_process:
        shutil.rmtree(run, ignore_errors=True)  # what a kill left
        run.mkdir(parents=True)
    torch.manual_seed(seed)
    model = make_model(config, splits.labels)
    optimizer = make_optimizer(model, config.optimizer)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    run_id = f"{Path(config.output).name}-seed-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    start_trackers(accelerator, config.tracking, dataclasses.asdict(config), run_id)
    pad_id = vocabulary(tokenizer).pad
    per_epoch = -(-len(splits.train) // config.training.batch_size)
    total = per_epoch * config.training.epochs
    updates = train(
        wrapped,
        prepared,
        accelerator,
        updates=shares(splits.train, config.training, seed, pad_id, accelerator),
        learning_rate=partial(learning_rate, updates=total, config=config),
        targets=model.targets,
        clip=config.training.clip,
        seed=seed,
    )
    best = Best(config.training.best_metric)
    with Record(run, accelerator, total=total) as record:
        try:
            for update in updates:
                record.advance(update.step / total)
                if update.step % config.training.log_every == 0:
                    loss = float(update.losses["label"])
                    record.log(update.step, "train", {"loss": loss, "learning_rate": update.learning_rate})
                if update.step % per_epoch == 0:
                    scores = evaluate(wrapped, splits.validation, config.training, pad_id, accelerator)
                    record.log(update.step, "validation", scores)
                    if best.offer(update.step, scores, model):
                        save(run, update.step, model, config, tokenizer, accelerator)
        except DivergedError as error:
            raise UserError(f"seed {seed}: {error}") from None
        best.restore(model)
        test = evaluate(wrapped, splits.test, config.training, pad_id, accelerator) if splits.test else None
        if test:
            record.log(best.step, "test", test)
    result = {
        "seed": seed,
        "validation": best.scores,
        "test": test,
        **sizes(model),
        "seconds": time.monotonic() - began,
    }
    if accelerator.is_main_process:
        write_json(run / "result.json", result)
    finish_trackers(accelerator)
    accelerator.free_memory()
    accelerator.wait_for_everyone()


def make_model(config: FinetuneConfig, labels: list[str]) -> BertForSequenceClassification:
    """The encoder with a new head for these labels, and the adapter where one is asked for."""
    changes: dict[str, Any] = {"id2label": dict(enumerate(labels))}
    if config.dropout is not None:
        changes |= {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
    if config.random_weights:
        shape = BertConfig.from_file(Path(config.model) / "config.json", **changes)
        model = BertForSequenceClassification(shape)
    else:
        model = BertForSequenceClassification.from_pretrained(config.model, **changes)
    adapter = config.adapter.config()
    if adapter is not None:
        attach(model, adapter)
    return model


def shares(
    examples: Examples, settings: TrainingSettings, seed: int, pad_id: int, accelerator: Accelerator
) -> Iterator[tuple[int, list[Batch]]]:
    """For each update the number of those before it, and this process's micro-batches."""
    done = 0
    for epoch in range(settings.epochs):
        for rows in tasks.epoch_batches(examples, settings.batch_size, seed=seed, epoch=epoch):
            mine = np.array_split(rows, accelerator.num_processes)[accelerator.process_index]
            parts = range(0, max(1, len(mine)), settings.micro_batch_size)
            chosen = (mine[part : part + settings.micro_batch_size] for part in parts)
            yield done, [pack(examples.inputs, some, pad_id=pad_id, labels=examples.labels).batch for some in chosen]
            done += 1


def learning_rate(update: int, updates: int, config: FinetuneConfig) -> float:
    """The learning rate at an update."""
    return config.optimizer.learning_rate * learning_rate_factor(update, updates, config.schedule)


@torch.no_grad()
def evaluate(
    model: nn.Module, examples: Examples, settings: TrainingSettings, pad_id: int, accelerator: Accelerator
) -> dict[str, float]:
    """Loss and scores on all rows, each counted once however many processes share them."""
    model.eval()
    mine: list[tuple[list[int], list[int], float]] = []
    for number, rows in enumerate(by_length(examples.inputs, settings.micro_batch_size)):
        if number % accelerator.num_processes != accelerator.process_index:
            continue
        packed = pack(examples.inputs, rows, pad_id=pad_id, labels=examples.labels)
        output = model(**{name: tensor.to(accelerator.device) for name, tensor in packed.batch.items()})
        classes = packed.in_order(output.logits).argmax(-1)
        mine.append((rows.tolist(), classes.tolist(), float(output.losses["label"].total)))
    predictions = np.empty(len(examples), dtype=np.int64)
    loss = 0.0
    for rows, classes, total in gather_object(mine):
        predictions[rows] = classes
        loss += total
    return {"loss": loss / len(examples), **metrics.classification(examples.labels, predictions)}


def save(
    run: Path, step: int, model: Any, config: FinetuneConfig, tokenizer: Tokenizer, accelerator: Accelerator
) -> None:
    """Write the model, or the adapter with its head, as the only checkpoint of this seed."""
    if not accelerator.is_main_process:
        return

    def write_model(directory: Path) -> None:
        if config.adapter.config() is None:
            model.save_pretrained(directory)
        else:
            hf.save_config(model, directory, model.config.to_dict())
            save_adapter(model, directory, base=str(Path(config.model).resolve()))
        save_tokenizer(tokenizer, directory, model_max_length=model.config.max_position_embeddings)
        tasks.save_task(directory, config.task)

    checkpoint.save(run, checkpoint.TrainingState(step, {}, {}), write_model, keep=1)


def sizes(model: nn.Module) -> dict[str, int]:
    """How many parameters there are, and how many were trained."""
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable_parameters": sum(weight.numel() for _, weight in trained(model)),
    }


def write_results(run: Path, config: FinetuneConfig) -> None:
    """Put the seeds together in RUN/results.json and print their table."""
    seeds = [json.loads((run / f"seed-{seed}" / "result.json").read_text("utf-8")) for seed in config.training.seeds]
    results = {
        "task": config.task.train,
        "method": config.adapter.kind,
        "model": None if config.random_weights else config.model,
        "parameters": seeds[0]["parameters"],
        "trainable_parameters": seeds[0]["trainable_parameters"],
        "best_metric": config.training.best_metric,
        "seeds": config.training.seeds,
        "seconds": metrics.mean_and_spread([seed["seconds"] for seed in seeds]),
    }
    for split in ("validation", "test"):
        if seeds[0][split]:
            results[split] = {
                name: metrics.mean_and_spread([seed[split][name] for seed in seeds]) for name in seeds[0][split]
            }
    write_json(run / "results.json", results)
    for split in ("validation", "test"):
        for name, figure in results.get(split, {}).items():
            values = "  ".join(f"{value:.4f}" for value in figure["values"])
            print(f"{split:10} {name:9} {figure['mean']:.4f} +- {figure['spread']:.4f}   seeds: {values}")
    print(
        f"{results['trainable_parameters']:,} of {results['parameters']:,} parameters trained; {run / 'results.json'}"
    )


def write_json(path: Path, value: Any) -> None:
    """Write a file that is whole or absent."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    cli.run(main, FinetuneConfig)
