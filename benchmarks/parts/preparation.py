"""From a text to what batches can be made of: minibert beside `datasets.map`, turn by turn, each from nothing."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from parts.meter import Measured, measure
from parts.peer import stored
from parts.table import Row, both

from minibert.data.corpus import Corpus

BENCHMARKS = Path(__file__).resolve().parents[1]
PREPARE = [sys.executable, str(BENCHMARKS.parent / "pretrain" / "prepare.py")]
PEER = [sys.executable, str(BENCHMARKS / "parts" / "peer.py")]


@dataclass(frozen=True)
class Job:
    """What is to be prepared, and how."""

    folder: Path
    """Holds text.jsonl, and what is made of it."""
    tokenizer: Path
    language: str
    processes: int
    size: int
    """Bytes of text."""
    length: int
    """Of the chunks that the peer's tokens are cut into."""

    @property
    def corpus(self) -> Path:
        """What minibert made."""
        return self.folder / "ours" / "corpus"

    @property
    def peer(self) -> Path:
        """What the peer made."""
        return self.folder / "peer"


def prepare(job: Job, *, rounds: int) -> list[Row]:
    """Prepare the text `rounds` times on either side; what is made last stays in the folder."""
    turns = [_turn(job) for _ in range(rounds)]
    ours, ids, chunks = (_median([turn[name] for turn in turns]) for name in ("ours", "ids", "chunks"))
    start, other_start = (_median([turn[name] for turn in turns]).seconds for name in ("start", "other_start"))
    peak, own = max(ids.memory, chunks.memory), max(ids.own_memory, chunks.own_memory)
    grouped = ids.seconds + chunks.seconds - other_start
    text = f"preparation of {job.size / 1e6:.0f} MB by {job.processes} processes:"

    def speed(seconds: float) -> str:
        return f"{job.size / 1e6 / seconds / job.processes:.2f}"

    return [
        Row(
            f"{text} MB of text a second and core, start-up left out",
            speed(ours.seconds - start),
            both(speed(ids.seconds - other_start), speed(grouped - other_start)),
        ),
        Row("seconds in all", f"{ours.seconds:.1f}", both(f"{ids.seconds:.1f}", f"{grouped:.1f}")),
        Row("seconds of start-up in it", f"{start:.1f}", f"{other_start:.1f}"),
        Row("peak memory of all processes, MB", _mb(ours.memory), both(_mb(ids.memory), _mb(peak))),
        Row("the same without pages of files, MB", _mb(ours.own_memory), both(_mb(ids.own_memory), _mb(own))),
        Row(
            "most disk in use, for a byte of text",
            f"{ours.disk / job.size:.2f}",
            both(f"{ids.disk / job.size:.2f}", f"{max(ids.disk, chunks.disk) / job.size:.2f}"),
        ),
        Row(
            "disk in use at the end",
            f"{ours.left / job.size:.2f}",
            both(f"{ids.left / job.size:.2f}", f"{chunks.left / job.size:.2f}"),
        ),
        Row("tokens, in millions", f"{_our_tokens(job.corpus) / 1e6:.2f}", f"{_peer_tokens(job.peer) / 1e6:.2f}"),
    ]


def make_corpus(text: Path, output: Path, job: Job) -> Measured:
    """Run prepare.py on one file."""
    options = {"sources": text, "output": output, "tokenizer": job.tokenizer, "language": job.language}
    given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return measure([*PREPARE, *given, "--processes", str(job.processes)], output.parent, cores=job.processes)


def group(job: Job, length: int) -> Measured:
    """Cut the peer's tokens into chunks."""
    command = [*PEER, "group", str(job.peer), str(length), str(job.processes)]
    return measure(command, job.peer, cores=job.processes)


def _turn(job: Job) -> dict[str, Measured]:
    for folder in (job.corpus.parent, job.peer):
        shutil.rmtree(folder, ignore_errors=True)
    text, tokenizer = str(job.folder / "text.jsonl"), str(job.tokenizer)
    tokenize = [*PEER, "tokenize", str(job.peer), text, tokenizer, str(job.processes)]
    return {
        "start": measure([*PREPARE, "--help"], job.folder / "start", cores=job.processes),
        "ours": make_corpus(job.folder / "text.jsonl", job.corpus, job),
        "other_start": measure([*PEER, "--help"], job.folder / "start", cores=job.processes),
        "ids": measure(tokenize, job.peer, cores=job.processes),
        "chunks": group(job, job.length),
    }


def _median(found: list[Measured]) -> Measured:
    fields = ("seconds", "memory", "own_memory", "disk", "left")
    return Measured(*(median(getattr(one, field) for one in found) for field in fields))


def _our_tokens(corpus: Path) -> int:
    return sum(int(Corpus.open(corpus, split).sentence_offsets[-1]) for split in ("train", "validation"))


def _peer_tokens(peer: Path) -> int:
    rows = stored(peer, "tokenized").data.column("input_ids").chunks
    return sum(int(np.diff(chunk.offsets.to_numpy()).sum()) for chunk in rows)


def _mb(size: float) -> str:
    return f"{size / 1e6:.0f}"
