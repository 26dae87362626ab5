"""How much slower than its bare step is the whole of pretrain/train.py, which also makes batches, watches and logs?"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from parts.encoders import Setting, fields, minibert, on_device, stepping
from parts.inputs import Batch
from parts.turns import in_turns, ratio
from parts.words import write_words
from parts.work import wait

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.corpus import Corpus
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.prefetch import prefetch
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.training.tracking import read_metrics

PRETRAIN = Path(__file__).resolve().parents[2] / "pretrain"
TEXT = 3_000_000
"""Characters, where no source is given."""
_EVERY, _NEVER = 10, 1_000_000


class Speeds(NamedTuple):
    """Tokens a second, medians, and the median ratio of the rounds."""

    script: float
    bare: float
    ratio: float


@dataclass(frozen=True)
class Run:
    """What both sides train, for so many updates of which the first half is not counted."""

    folder: Path
    setting: Setting
    rows: int
    updates: int

    @property
    def corpus(self) -> Path:
        """What prepare.py made."""
        return self.folder / "corpus"


def prepare(run: Run, sources: Sequence[str]) -> None:
    """Make the corpus, of a text of random words where there are no sources."""
    given = list(sources) or [str(write_words(run.folder / "text.jsonl", size=TEXT))]
    _call("prepare.py", f"--sources={given}", f"--output={run.corpus}", "--vocab_size=8192")


def race(run: Run, *, rounds: int) -> Speeds:
    """The script and the bare step, turn by turn."""
    step = stepping(minibert(run.setting).to(run.setting.device).train(), run.setting)
    counted = run.updates // 2
    batches = list(islice(_batches(run), counted))
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)

    def bare() -> float:
        for batch in batches:
            step([batch])
        wait(run.setting.device)
        return tokens

    found: dict[str, list[float]] = {"script": [], "bare": []}
    for number in range(rounds):
        found["script"].append(_script(run, run.folder / str(number)))
        found["bare"] += in_turns({"bare": bare}, 1)["bare"]
    return Speeds(median(found["script"]), median(found["bare"]), ratio(found["script"], found["bare"]))


def _script(run: Run, output: Path) -> float:
    """Tokens a second of the second half of a run, from its own metrics."""
    setting = run.setting
    given = {
        "corpus": run.corpus,
        "output": output,
        "pairs.max_length": setting.longest,
        "training.steps": run.updates,
        "training.batch_size": run.rows,
        "training.micro_batch_size": run.rows,
        "training.precision": "bf16" if setting.bf16 else "no",
        "training.log_every": _EVERY,
        "training.evaluate_every": _NEVER,
        "training.evaluation_rows": 1,
        "training.save_every": _NEVER,
        **{f"model.{name}": value for name, value in fields(setting).items()},
    }
    _call("train.py", *(f"--{name}={value}" for name, value in given.items()), cpu=setting.device == "cpu")
    return _late_speed(output / "metrics.jsonl", after=run.updates - run.updates // 2)


def _late_speed(metrics: Path, *, after: int) -> float:
    lines = [line for line in read_metrics(metrics) if line["split"] == "train" and line["step"] >= after]
    tokens = [line["values"]["tokens"] for line in lines]
    rates = [line["values"]["tokens_per_second"] for line in lines]
    counts = [end - begin for begin, end in pairwise(tokens)]
    return sum(counts) / sum(count / rate for count, rate in zip(counts, rates[1:], strict=True))


def _batches(run: Run) -> Iterator[Batch]:
    """Those that the script gets, one for an update."""
    corpus, words = Corpus.open(run.corpus, "train"), vocabulary(load_tokenizer(run.corpus))
    length, share = run.setting.longest, MaskingSettings().probability
    batches = PretrainingBatches(corpus, words, seed=0, pairs=PairSettings(max_length=length))

    def requests() -> Iterator[Request]:
        cursor = Cursor()
        while True:
            yield Request(0, cursor, run.rows, length, share)
            cursor, _ = batches.advance(cursor, run.rows, length)

    for _, [batch] in prefetch(batches, requests(), rank=0, world=1, size=run.rows, workers=0):
        yield on_device(batch, run.setting)


def _call(script: str, *options: str, cpu: bool = True) -> None:
    environment = os.environ | ({"ACCELERATE_USE_CPU": "true"} if cpu else {})
    command = [sys.executable, str(PRETRAIN / script), *options]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    if ended.returncode:
        raise RuntimeError(f"{script} failed: {ended.stderr[-3000:]}")
