"""What happens between the updates of a pretraining run: logging, evaluating, saving, and at the end averaging."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibert.errors import UserError
from minibert.pretraining.averages import averages
from minibert.pretraining.config import PretrainConfig
from minibert.pretraining.evaluation import validate
from minibert.pretraining.journey import Journey
from minibert.pretraining.saving import Parts, save
from minibert.training import checkpoint
from minibert.training.loop import DivergedError, Update
from minibert.training.stopping import StopRequests
from minibert.training.tracking import Clock, Record

log = logging.getLogger("minibert")


class Watch:
    """Logs, evaluates and saves between the updates, each when its time has come and after the last of them.

    Saving comes behind the others: what was not written down before it would be missing after a kill.
    """

    def __init__(
        self, config: PretrainConfig, parts: Parts, journey: Journey, record: Record, identity: dict[str, Any]
    ) -> None:
        self._config, self._parts, self._journey, self._record = config, parts, journey, record
        self._identity = {name: identity[name] for name in ("run_id", "corpus")}
        self._clock, self._unsaved = Clock(), False
        self._saved = 0

    def follow(self, updates: Iterator[Update], stop: StopRequests) -> bool:
        """Follow the updates to the end, which is True, or until a signal asks to stop."""
        update = None
        try:
            for update in updates:
                self._take(update)
                if stop.agreed(self._parts.accelerator):
                    self._save(update.step)
                    if self._parts.accelerator.is_main_process:
                        signal = stop.received or "a signal to another process"
                        log.warning("%s: saved step %d and ends; the same command goes on", signal, update.step)
                    return False
        except DivergedError as error:
            saved = checkpoint.checkpoints(Path(self._config.output))
            last = saved[-1] if saved else "not made yet"
            raise UserError(f"{error}; the last good checkpoint is {last}") from None
        self._average(is_new=update is not None)
        return True

    def _take(self, update: Update) -> None:
        settings, step = self._config.training, update.step
        if self._parts.ema and update.applied:
            self._parts.ema.update(self._parts.model)
        self._clock.count(int(update.tokens))
        self._record.advance(self._journey.progress)
        is_last = self._journey.is_over
        if is_last or step % settings.log_every == 0:
            self._log(update)
        if is_last or step % settings.evaluate_every == 0:
            self._evaluate(step)
        self._unsaved |= step % settings.save_every == 0
        if is_last or (self._unsaved and update.applied):  # else, while it diverges, good ones would be rotated away
            self._save(step)

    def _average(self, *, is_new: bool) -> None:
        """Make the averages of the end; of a run that was there already, those that a kill prevented."""
        for name, values in averages(self._config, self._parts, all_of_them=is_new):
            self._record.log(self._journey.place.step, name, values)

    def _log(self, update: Update) -> None:
        place = {"tokens": self._journey.place.tokens, "epoch": self._journey.epochs}
        self._record.log(update.step, "train", training_values(update) | self._clock.values() | place)

    def _evaluate(self, step: int) -> None:
        with self._clock.paused():
            if values := validate(self._config, self._parts, self._parts.model):
                self._record.log(step, "validation", values)

    def _save(self, step: int) -> None:
        if self._saved < step:
            place, seconds = dataclasses.asdict(self._journey.place), self._journey.seconds
            with self._clock.paused():
                save(step, self._identity | {"place": place, "seconds": seconds}, self._config, self._parts)
        self._saved, self._unsaved = step, False


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
        "skipped": update.skipped,
    }
