"""How fast is a classifier fine-tuned, and how fast does it answer, beside transformers with dynamic padding?

    python benchmarks/finetuning.py [--source PATH ...] [--model DIR] [--batches 2] [--rounds 3]

Inputs are random words, as long as the texts of the sources, or without sources in lengths spread as those of
rotten_tomatoes and imdb are. Both sides have the same weights, by default random ones of MiniLM's size, and take turns.
Prints a table in Markdown.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from parts.alone import alone
from parts.classifiers import SIDES, Job, peak
from parts.comparison import has_bf16
from parts.inputs import SPREAD, draw, lengths_like, lengths_of
from parts.table import heading, lines
from parts.turns import in_turns, ratio

from minibert import BertConfig, BertForSequenceClassification

MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
TOKENS = 400_000  # of all inputs together: fine-tuning takes its batches anywhere in them
COLUMNS = "", "minibert, real tokens/s", "transformers", "times as fast", "minibert, peak MB", "transformers"
NOTES = """\
Medians of {rounds} turns; inputs of {longest} tokens at most, in {precision}. A turn of fine-tuning is {batches} x
{size} inputs: forward, backward, clipping a fused step of AdamW, dropout {dropout}. Transformers shuffles and pads a
batch to its longest input; minibert shuffles, puts inputs of like lengths into a batch, and packs them. A turn of
inference is {read} inputs: transformers reads in order, minibert sorts what it reads. Tokenizing is not counted. Peak:
memory above that before the first turn, in a process of its own."""


def main() -> None:
    given = arguments()
    print(
        heading(f"benchmarks/finetuning.py --batches {given.batches} --rounds {given.rounds}"), end="\n\n", flush=True
    )
    with TemporaryDirectory() as folder:
        vocabulary = write_model(given.model, Path(folder))
        for line in lines(COLUMNS, rows(given, Path(folder), vocabulary)):
            print(line, flush=True)
    facts = {"read": inputs_read(given), "precision": "bf16" if given.bf16 else "fp32", "size": given.batch_size}
    print("\n" + NOTES.format(**facts, **vars(given)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", nargs="+", default=[], help="texts as in prepare.py, for their lengths")
    parser.add_argument("--model", type=Path, help="folder of an encoder; without, random weights of MiniLM's size")
    parser.add_argument("--batches", type=int, default=2, help="updates in a turn; four times as many are read")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--batch_size", type=int, default=32, help="inputs in an update")
    parser.add_argument("--longest", type=int, default=512, help="tokens of an input, at most")
    parser.add_argument("--dropout", type=float, default=0.1, help="of both sides, in fine-tuning")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, help="on both sides; where there is hardware")
    given = parser.parse_args()
    given.bf16 = has_bf16(given.device) if given.bf16 is None else given.bf16
    return given


def rows(given: argparse.Namespace, folder: Path, vocabulary: int) -> Iterator[list[str]]:
    """The lines of the table, as soon as they are measured."""
    make = lengths_of if given.source else lengths_like
    for source in given.source or SPREAD:
        lengths = make(source, longest=given.longest, tokens=TOKENS, seed=0)
        job = Job(
            folder,
            draw(lengths, seed=0, vocabulary=vocabulary).inputs,
            updates=given.batches,
            batch_size=given.batch_size,
            read=inputs_read(given),
            dropout=given.dropout,
            bf16=given.bf16,
            device=given.device,
        )
        sides = {name: make_side(job) for name, make_side in SIDES.items()}
        for name, work in (("fine-tuning", "train"), ("inference", "answer")):
            turns = {side: getattr(made, work) for side, made in sides.items()}
            memory = [f"{alone(peak, side, work, job) / 1e6:,.0f}" for side in sides]
            text = "/".join(Path(source).parts[-2:])
            yield [f"{name}, as {text}", *speeds(in_turns(turns, given.rounds)), *memory]


def speeds(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Of both sides, and how many times as fast the first is."""
    return [*(f"{median(found):,.0f}" for found in rates.values()), f"{ratio(*rates.values()):.2f}"]


def inputs_read(given: argparse.Namespace) -> int:
    """In a turn: reading is faster than training."""
    return 4 * int(given.batches) * int(given.batch_size)


def write_model(model: Path | None, folder: Path) -> int:
    """What both sides load, so that they have the same weights; the size of its vocabulary."""
    torch.manual_seed(0)
    if model is None:
        classifier = BertForSequenceClassification(BertConfig(**MINILM, num_labels=2))
    else:
        classifier = BertForSequenceClassification.from_pretrained(model, num_labels=2)
    classifier.save_pretrained(folder)
    return classifier.config.vocab_size


if __name__ == "__main__":
    main()
