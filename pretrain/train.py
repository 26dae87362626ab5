"""Pretrain an encoder with masked language modelling and next sentence prediction.

    accelerate launch pretrain/train.py --config configs/pretrain/mini.yaml --corpus DIR --output RUN

Killed and started again by the same command, on as many processes as there are then, it goes on as if it had never
stopped. SIGTERM and SIGUSR1 make it finish its step, save, and exit with 0.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from accelerate import Accelerator

from minibert import cli, report
from minibert.data.batches import Batch, PretrainingBatches, Request
from minibert.data.corpus import Corpus
from minibert.data.course import Course, Place
from minibert.data.prefetch import prefetch
from minibert.data.publish import check_writable
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.pretraining.config import FREE, PretrainConfig, TrainingSettings, end_of, fitted
from minibert.pretraining.journey import Journey
from minibert.pretraining.saving import Parts, begin, load, make_model, put_back
from minibert.pretraining.watch import Watch
from minibert.training import launch, resume
from minibert.training.averaging import Ema
from minibert.training.guard import Guard
from minibert.training.horizon import Horizon, Position, Stopwatch
from minibert.training.loop import train
from minibert.training.optim import make_optimizer
from minibert.training.schedules import learning_rate_factor
from minibert.training.stopping import StopRequests, agree
from minibert.training.trackers import start_trackers
from minibert.training.tracking import Record, begin_run

log = logging.getLogger("minibert")


def main(config: PretrainConfig) -> None:
    """Put the parts together and watch the loop."""
    run, settings = Path(config.output), config.training
    check_writable(run)
    corpus, validation = Corpus.open(config.corpus, "train"), Corpus.open(config.corpus, "validation")
    tokenizer = load_tokenizer(config.corpus)
    words = vocabulary(tokenizer)
    config = dataclasses.replace(config, model=fitted(config, words))
    batches = PretrainingBatches(corpus, words, seed=settings.seed, pairs=config.pairs, masking=config.masking)
    course, end = course_of(config, batches), end_of(config)
    accelerator = launch.start(settings.precision, config.tracking, run)
    source = resume.find(config.resume, run)
    if source is not None:
        resume.refuse_changes(run, dataclasses.asdict(config), FREE, allowed=config.allow_changes)

    state = begin(corpus) if source is None else load(source, corpus)
    torch.manual_seed(settings.seed)
    model = make_model(config, source)
    optimizer = make_optimizer(model, config.optimizer)
    if config.compile:
        model.compile()
    wrapped, prepared = accelerator.prepare(model, optimizer)
    ema = None if config.averaging.ema_decay is None else Ema(wrapped, config.averaging.ema_decay)
    parts = Parts(accelerator, wrapped, optimizer, tokenizer, words, validation, Guard(config.guard), ema)
    if source is not None:
        put_back(state, parts)
        if accelerator.is_main_process:
            log.warning("resuming from %s", source)

    begin_run(run, cli.to_yaml(config), accelerator)
    start_trackers(accelerator, config.tracking, dataclasses.asdict(config), state.extra["run_id"])
    place, watch = Place(**state.extra["place"]), Stopwatch(state.extra["seconds"])
    journey = Journey(course, end, place, clock_of(end, watch, accelerator))
    updates = train(
        wrapped,
        prepared,
        accelerator,
        updates=journey.updates(fetched(batches, journey, settings, accelerator)),
        learning_rate=lambda done: learning_rate(end, journey.position, config),
        targets=model.targets,
        clip=settings.clip,
        seed=settings.seed,
        guard=parts.guard,
    )
    total = settings.steps if end.unit == "step" else None
    share = journey.progress
    with StopRequests() as stop, Record(run, accelerator, total=total, start=place.step, share=share) as record:
        is_whole = Watch(config, parts, journey, record, state.extra).follow(updates, stop)
    if is_whole and accelerator.is_main_process:
        report.write_run_report(run)
    del wrapped, prepared, updates, parts
    accelerator.free_memory()  # a model that outlives the processes' connection sometimes waits for it without end
    accelerator.end_training()


def course_of(config: PretrainConfig, batches: PretrainingBatches) -> Course:
    """What is asked for at each step."""
    return Course(
        batches,
        batch_size=config.training.batch_size,
        max_length=config.pairs.max_length,
        stages=config.stages,
        masking=config.masking,
    )


def clock_of(end: Horizon, watch: Stopwatch, accelerator: Accelerator) -> Callable[[], float]:
    """Reads the seconds of the run: where it ends by the clock, those of the main process on all of them."""
    return (lambda: agree(accelerator, False, watch.read())[1]) if end.unit == "seconds" else watch.read


def fetched(
    batches: PretrainingBatches, journey: Journey, settings: TrainingSettings, accelerator: Accelerator
) -> Iterator[tuple[Request, list[Batch]]]:
    """What the journey asks for: the share of this process."""
    return prefetch(
        batches,
        journey.requests(),
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        size=settings.micro_batch_size,
        workers=settings.workers,
    )


def learning_rate(end: Horizon, position: Position, config: PretrainConfig) -> float:
    """The learning rate of the update at a position."""
    factor = learning_rate_factor(end.done(position), end.total, config.schedule, grain=end.grain)
    return config.optimizer.learning_rate * factor


if __name__ == "__main__":
    cli.run(main, PretrainConfig)
