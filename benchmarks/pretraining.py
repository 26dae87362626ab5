"""How fast does an encoder learn, beside transformers, beside what the machine can do, and beside its own bare step?

    python benchmarks/pretraining.py [--sizes tiny mini small base] [--lengths 128] [--parts full ragged ...]

full: rows that a sequence fills; ragged: sequences of many lengths, which transformers pads to the longest of a batch,
and minibert packs; script: the whole of pretrain/train.py; growth: longer rows, as many tokens. All take turns in one
process, with the same sequences, masks, optimizer and dropout; the better of fp32 and bf16 counts on each side. Prints
tables in Markdown.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from parts import script
from parts.alone import alone
from parts.comparison import COLUMNS, cells, has_bf16, measure, precisions
from parts.encoders import Setting, Work, full_rows, peak, turn
from parts.inputs import SPREAD, lengths_like, lengths_of
from parts.shapes import SIZES
from parts.table import heading, lines
from parts.turns import in_turns, ratio
from parts.work import attention_share, needed

PARTS = "full", "ragged", "script", "growth"
GROWTH = 128, 256, 512, 1024, 2048
BATCHES = 4  # of ragged sequences in a turn
SCRIPT = "", "pretrain/train.py, tokens/s", "its bare step", "share"
GROWN = "mini, full rows of", "tokens/s", "of those at 128", "by the needed work", "attention's share of it", "peak MB"
NOTES = """\
Medians of {rounds} turns at most; a step has about {tokens} real tokens, dropout {dropout}. Utilisation: the
floating-point work that is needed (benchmarks/parts/work.py) over the fastest matrix product of this run in the same
precision. Peak: memory above that before the first of a few steps, in a process of its own. ModernBERT has as many
weights in a layer, and no next sentence prediction; its needed work is not counted. {bf16}"""


def main() -> None:
    given = arguments()
    options = f"--tokens {given.tokens} --rounds {given.rounds} --dropout {given.dropout}"
    print(heading(f"benchmarks/pretraining.py {options}"))
    if set(given.parts) & {"full", "ragged"}:
        show(COLUMNS, comparisons(given))
    if "script" in given.parts:
        show(SCRIPT, whole_script(given))
    if "growth" in given.parts:
        show(GROWN, growth(given))
    bf16 = "" if has_bf16(given.device) else "There is no bf16 in this hardware: all is fp32."
    print("\n" + NOTES.format(rounds=given.rounds, tokens=given.tokens, dropout=given.dropout, bf16=bf16))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "mini", "small", "base"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--ragged_sizes", nargs="*", choices=SIZES, default=["mini"])
    parser.add_argument("--modern_sizes", nargs="*", choices=SIZES, default=["mini"], help="beside ModernBERT too")
    parser.add_argument("--source", nargs="+", default=[], help="texts for ragged and script, as in prepare.py")
    parser.add_argument("--tokens", type=int, default=4096, help="real tokens of a step, about")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30, help="after which fewer rounds will do for a line")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--updates", type=int, default=40, help="of pretrain/train.py; the second half counts")
    parser.add_argument("--compile", action="store_true", help="minibert also through torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    return parser.parse_args()


def show(names: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """A table whose lines come as soon as they are measured."""
    print(flush=True)
    for line in lines(names, rows):
        print(line, flush=True)


def comparisons(given: argparse.Namespace) -> Iterator[list[str]]:
    """Steps on full and on ragged rows."""
    for size in given.sizes if "full" in given.parts else ():
        for length in given.lengths:
            others = ["transformers", *(["ModernBERT"] if size in given.modern_sizes else [])]
            yield from compare(f"{size}, full {length}", size, length, full_rows(length, given.tokens), others, given)
    for size in given.ragged_sizes if "ragged" in given.parts else ():
        for length, name in product(given.lengths, given.source or SPREAD):
            work, what = ragged(name, length, given), f"{size}, as {'/'.join(Path(name).parts[-2:])}, at most {length}"
            yield from compare(what, size, length, work, ["transformers"], given)


def ragged(name: str, longest: int, given: argparse.Namespace) -> Work:
    """Sequences as long as those of a source, or as a data set's are known to be."""
    make = lengths_of if given.source else lengths_like
    return Work([make(name, longest=longest, tokens=given.tokens, seed=seed) for seed in range(BATCHES)])


def compare(
    name: str, size: str, length: int, work: Work, others: Sequence[str], given: argparse.Namespace
) -> Iterator[list[str]]:
    """Ours beside each of the others; a line for each."""
    settings = precisions(Setting(SIZES[size], length, given.dropout, device=given.device))
    ours = ["minibert", *(["minibert, compiled"] if given.compile else [])]
    measured = measure([*ours, *others], settings, work, rounds=given.rounds, seconds=given.seconds)
    for own in ours:
        for other in others:
            extras = [own.removeprefix("minibert, ") if own != "minibert" else "", f"beside {other}"]
            words = [name, *filter(None, extras[: 1 if other == "transformers" else 2])]
            yield cells(", ".join(words), measured[own], measured[other], counts=other == "transformers")


def whole_script(given: argparse.Namespace) -> Iterator[list[str]]:
    """The script beside its bare step."""
    shape = SIZES["mini"]._replace(vocabulary=30_528)  # a whole number of 64s; 30,522 stands for the tokenizer's size
    setting = Setting(shape, 128, given.dropout, has_bf16(given.device), device=given.device)
    with TemporaryDirectory() as folder:
        run = script.Run(Path(folder), setting, max(1, given.tokens // 128), given.updates)
        script.prepare(run, given.source)
        speeds = script.race(run, rounds=given.rounds)
    yield ["mini, rows of 128", f"{speeds.script:,.0f}", f"{speeds.bare:,.0f}", f"{speeds.ratio:.1%}"]


def growth(given: argparse.Namespace) -> Iterator[list[str]]:
    """Longer rows, as many tokens: how much slower, and how much of that is attention's doing?"""
    shape, bf16 = SIZES["mini"], has_bf16(given.device)
    works = {length: full_rows(length, max(given.tokens, GROWTH[-1])) for length in GROWTH}
    settings = {length: Setting(shape, length, given.dropout, bf16, device=given.device) for length in GROWTH}
    rates = in_turns({n: turn("minibert", settings[n], works[n]) for n in GROWTH}, given.rounds)
    each = {length: needed(shape, work.readings) / work.tokens for length, work in works.items()}
    for length, work in works.items():
        yield [
            str(length),
            f"{median(rates[length]):,.0f}",
            f"{ratio(rates[length], rates[GROWTH[0]]):.0%}",
            f"{each[GROWTH[0]] / each[length]:.0%}",
            f"{attention_share(shape, work.readings):.0%}",
            f"{alone(peak, 'minibert', settings[length], work) / 1e6:,.0f}",
        ]


if __name__ == "__main__":
    main()
