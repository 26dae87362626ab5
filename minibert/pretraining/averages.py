"""The averages of a run's weights, each a model directory beside the checkpoints, and how good they are."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from safetensors.torch import save_file

from minibert.data.publish import publish
from minibert.pretraining.config import PretrainConfig
from minibert.pretraining.evaluation import validate
from minibert.pretraining.saving import Parts, make_model, write_model
from minibert.training import checkpoint
from minibert.training.averaging import mean_of_checkpoints
from minibert.training.sharding import whole_state


def averages(config: PretrainConfig, parts: Parts, *, all_of_them: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """The averages that were asked for, saved as RUN/ema and RUN/mean: their names and values on held-out documents.

    Unless `all_of_them` are wanted, those that are there stay as they are.
    """
    run = Path(config.output)
    wanted = {name for name in ("ema", "mean") if all_of_them or not (run / name).is_dir()}
    parts.accelerator.wait_for_everyone()  # all look before one of them writes
    if parts.ema is not None and "ema" in wanted:
        with parts.ema.swapped_in(parts.model):
            model = parts.accelerator.unwrap_model(parts.model)
            write = partial(write_model, model=model, weights=whole_state(model), config=config, parts=parts)
            _publish(run / "ema", write, parts)
            yield "ema", validate(config, parts, parts.model)
    if config.averaging.last is not None and "mean" in wanted:
        _publish(run / "mean", partial(_write_mean, checkpoint.checkpoints(run)[-config.averaging.last :]), parts)
        yield "mean", validate(config, parts, make_model(config, run / "mean").to(parts.accelerator.device))


def _write_mean(saved: list[Path], folder: Path) -> None:
    """A model of which all but the weights is that of the last checkpoint."""
    shutil.copytree(saved[-1], folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("training"))
    save_file(mean_of_checkpoints(saved), folder / "model.safetensors", metadata={"format": "pt"})


def _publish(folder: Path, write: Callable[[Path], None], parts: Parts) -> None:
    """Have the main process write a folder that appears whole; the others wait for it."""
    if parts.accelerator.is_main_process:
        aside, old = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        write(aside)
        publish(aside, folder, replaced=old)
        shutil.rmtree(old, ignore_errors=True)
    parts.accelerator.wait_for_everyone()
