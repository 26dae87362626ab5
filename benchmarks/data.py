"""How fast does text become a corpus, and a corpus batches, beside what a user of transformers would pick instead?

    python benchmarks/data.py [--source PATH ...] [--megabytes 30] [--processes 2] [--sentences 100000000]

A source is a file or folder of texts, or an open corpus, as in pretrain/prepare.py. Its documents are repeated, each
time with other words left out, until there are enough megabytes; both sides read this one file with one vocabulary, in
turn, on the same cores. The peer is the data part of run_mlm.py of transformers: `datasets.map` with a fast tokenizer,
chunks of one length, DataCollatorForLanguageModeling. Prints a table in Markdown. Runs on Linux.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from parts.assembly import fill, speeds
from parts.peer import fast_tokenizer, stored
from parts.preparation import Job, group, make_corpus, prepare
from parts.readiness import of_corpus, of_sentences
from parts.table import Row, heading, table
from parts.text import CHANGED, LEFT_OUT, write_copies, write_documents, write_tokenizer

from minibert.data.corpus import Corpus
from minibert.data.tokenizer import load_tokenizer, vocabulary

LENGTHS = 128, 512
OTHER = "datasets + transformers: tokenized / and cut into chunks"
NOTES = """\
The text is {sources}, repeated, each time without another {left_out:.0%} of the words and with {changed:.0%} misspelt.
Preparation of minibert also splits sentences, drops duplicates and near copies of validation documents, and holds out
the latter; what it leaves serves rows of any length. The peer does none of this, and its chunks have one length, here
{length}. Memory that processes share is counted once; disk is that of all files of a side, caches and work folders too.
Batches are made by one process on one thread, masks included, and real tokens are counted."""


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    print(heading(f"benchmarks/data.py --megabytes {given.megabytes} --rounds {given.rounds}"), end="\n\n", flush=True)
    with TemporaryDirectory(dir=given.folder) as folder:
        print(table(rows(given, Path(folder)), OTHER))
    sources = ", ".join(map(name_of, given.source))
    print("\n" + NOTES.format(sources=sources, left_out=LEFT_OUT, changed=CHANGED, length=LENGTHS[-1]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", nargs="+", default=["wiki-summaries"])
    parser.add_argument("--language", default="en", help="code of the language of the sources")
    parser.add_argument("--megabytes", type=int, default=30, help="of text to prepare")
    parser.add_argument("--rounds", type=int, default=1, help="turns of preparation; medians are printed")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokenizer", type=Path, help="a folder as prepare.py writes it; without, one is trained")
    parser.add_argument("--vocab_size", type=int, default=16_384, help="of a tokenizer that is trained")
    parser.add_argument("--sentences", type=int, default=0, help="of a corpus of offsets alone, 8 bytes each on disk")
    parser.add_argument("--folder", type=Path, help="where temporary files go, about 12 times the megabytes")
    return parser.parse_args()


def rows(given: argparse.Namespace, folder: Path) -> Iterator[Row]:
    tokenizer = given.tokenizer or folder / "tokenizer"
    if not given.tokenizer:
        write_tokenizer(given.source, tokenizer, vocab_size=given.vocab_size)
    size = write_copies(given.source, folder / "text.jsonl", size=given.megabytes * 1_000_000)
    job = Job(folder, tokenizer, given.language, given.processes, size, LENGTHS[-1])
    yield from prepare(job, rounds=given.rounds)
    yield from assembly(job)
    for number, source in enumerate(given.source):
        yield from packing(source, min(size, 10_000_000), folder / str(number), job)
    pieces = vocabulary(load_tokenizer(tokenizer))
    yield of_corpus(job.corpus, pieces)
    if given.sentences:
        yield of_sentences(given.sentences, pieces, folder)


def assembly(job: Job) -> Iterator[Row]:
    corpus, pieces = Corpus.open(job.corpus, "train"), vocabulary(load_tokenizer(job.tokenizer))
    for length in LENGTHS:
        if length != job.length:
            group(job, length)
        chunks = stored(job.peer, f"grouped-{length}")
        yield from speeds(corpus, pieces, chunks, fast_tokenizer(job.tokenizer), length=length)


def packing(source: str, size: int, folder: Path, job: Job) -> Iterator[Row]:
    """How full rows are, with the documents of one source as they are."""
    folder.mkdir()
    write_documents([source], folder / "text.jsonl", size=size)
    make_corpus(folder / "text.jsonl", folder / "corpus", job)
    corpus, pieces = Corpus.open(folder / "corpus", "train"), vocabulary(load_tokenizer(job.tokenizer))
    for length in LENGTHS:
        full, padded = (fill(corpus, pieces, length=length, packed=packed) for packed in (True, False))
        yield Row(
            f"{name_of(source)}: real tokens in rows of {length}; with one pair a row", f"{full:.1%}; {padded:.1%}"
        )


def name_of(source: str) -> str:
    return Path(source).name.partition(".")[0]


if __name__ == "__main__":
    main()
