"""How near to the limit of a GPU is pretraining, beside transformers? In bf16, with rows that sequences fill.

    python benchmarks/gpu.py [--sizes base large] [--lengths 128 512 2048] [--tokens 32768] [--kinds packed full]

packed: sequences of about a third of a row, which minibert has side by side, and transformers pads to the longest of a
batch; full: a sequence a row. Also says where the model cannot be compiled in one piece, and where a step waits for
the GPU. Without a GPU it does nothing, unless `--device cpu` asks for a trial. Prints tables in Markdown.
"""

import argparse
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product

import torch
from parts.comparison import COLUMNS, cells, has_bf16, measure
from parts.encoders import Setting, Work, full_rows
from parts.inputs import filling
from parts.obstacles import graph_breaks, synchronisations
from parts.shapes import SIZES
from parts.table import heading, lines

NOTES = """\
Medians of {rounds} turns in {precision}; a step has about {tokens} real tokens, which are those that count, dropout
{dropout}. Utilisation: the floating-point work that is needed (benchmarks/parts/work.py) over the fastest matrix
product of this run. Peak: memory above that before the first of a few steps."""


def main() -> None:
    given = arguments()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here, so there is nothing to measure; `--device cpu --sizes tiny` tries the script out.")
        return
    torch.set_float32_matmul_precision("high")  # what is left in fp32 may use the same units, on both sides
    print(heading(f"benchmarks/gpu.py --tokens {given.tokens} --rounds {given.rounds}"), end="\n\n", flush=True)
    for line in lines(COLUMNS, comparisons(given)):
        print(line, flush=True)
    precision = "bf16" if has_bf16(given.device) else "fp32"
    print("\n" + NOTES.format(rounds=given.rounds, tokens=given.tokens, dropout=given.dropout, precision=precision))
    if not find_spec("transformers"):
        print("\nThere is no transformers here: the other is minibert, not compiled.")
    for line in obstacles(given):
        print(f"- {line}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512, 2048])
    parser.add_argument("--kinds", nargs="+", choices=["packed", "full"], default=["packed"])
    parser.add_argument("--tokens", type=int, default=32_768, help="real tokens of a step, about")
    parser.add_argument("--batches", type=int, default=2, help="of different sequences in a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--minutes", type=float, default=6, help="after these nothing more is begun")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    return parser.parse_args()


def comparisons(given: argparse.Namespace) -> Iterator[list[str]]:
    """Ours beside transformers where that is installed, then ours compiled beside the same."""
    end = time.monotonic() + 60 * given.minutes
    other = "transformers" if find_spec("transformers") else "minibert"
    for size, kind, length in product(given.sizes, given.kinds, given.lengths):
        name, at = f"{size}, {kind} {length}", (setting(size, length, given), work(kind, length, given))
        if time.monotonic() > end:
            yield [f"{name}: not begun after {given.minutes} minutes", *[""] * (len(COLUMNS) - 1)]
            continue
        sides = dict.fromkeys(["minibert", "minibert, compiled", other])
        found = measure(list(sides), [at[0]], at[1], rounds=given.rounds, seconds=60)
        for own in ("minibert", "minibert, compiled"):
            yield cells(f"{name}{own.removeprefix('minibert')}", found[own], found[other])


def obstacles(given: argparse.Namespace) -> Iterator[str]:
    """What keeps the first of the encoders from running in one piece."""
    size, kind, length = given.sizes[0], given.kinds[0], given.lengths[0]
    at = setting(size, length, given), work(kind, length, given)
    breaks, waits = graph_breaks(*at), synchronisations(*at)
    yield "; ".join([f"{size}, {kind} {length}: {len(breaks)} graph breaks", *breaks])
    yield "; ".join([f"{size}, {kind} {length}: a step waits for the GPU {len(waits)} times", *waits])


def setting(size: str, length: int, given: argparse.Namespace) -> Setting:
    """In bf16, where the device has it."""
    return Setting(SIZES[size], length, given.dropout, has_bf16(given.device), device=given.device)


def work(kind: str, length: int, given: argparse.Namespace) -> Work:
    """The batches of a turn."""
    if kind == "full":
        return Work(given.batches * full_rows(length, given.tokens).batches)
    return Work([filling(width=length, tokens=given.tokens, seed=seed) for seed in range(given.batches)])


if __name__ == "__main__":
    main()
