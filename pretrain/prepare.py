"""From raw text to a corpus: trains a tokenizer, encodes the text, holds out documents for validation.

python pretrain/prepare.py --config configs/prepare/demo.yaml

A run that was killed goes on where it was when the same command is given again. On several machines that share a file
system, each of n jobs is given `--shard 1/n` to `--shard n/n`, and one more job `--merge` when they are done.
"""

import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from minibert import cli
from minibert.data.corpus import PrepareConfig, build_corpus, encode_shard


def main(config: PrepareConfig) -> None:
    """Make the corpus, or a shard of it, and print what is in it."""
    if config.shard:
        return encode(config)
    description, is_new = build_corpus(config, track=show_progress, notify=tell)
    for warning in description["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(summary(description["counts"], description["vocab_size"]))
    print(f"{config.output}: {'made' if is_new else 'is there already, with these sources and settings'}")
    print(f"fingerprint {description['fingerprint']}")


def encode(config: PrepareConfig) -> None:
    """Encode a shard, and print which are missing."""
    pieces, missing = encode_shard(config, track=show_progress, notify=tell)
    if not pieces:
        print(f"{config.output}: is there already, with these sources and settings")
    elif missing:
        print(f"shard {config.shard}: encoded; missing yet: {', '.join(f'--shard {shard}' for shard in missing)}")
    else:
        print(f"shard {config.shard}: encoded, as all {pieces:,} pieces of the text are; put them together: --merge")


def show_progress(items: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
    """Pass documents, or pieces to merge, on under a progress bar, or below one line where this is no terminal."""
    if not sys.stderr.isatty():
        tell(stage)
    unit = " pieces" if stage == "merging" else " documents"
    yield from tqdm(items, desc=stage, total=total, unit=unit, unit_scale=True, disable=None)


def tell(line: str) -> None:
    """Say it at once, on standard error."""
    print(line, file=sys.stderr, flush=True)


def summary(counts: dict[str, Any], vocab_size: int) -> str:
    """The counts of corpus.json as lines for a reader."""
    sizes = [
        f"{split:<12}{counts[split]['documents']:>12,}{counts[split]['sentences']:>12,}{counts[split]['tokens']:>14,}"
        for split in ("train", "validation")
    ]
    labels, dropped = counts["label_shares"], counts["dropped"]
    return "\n".join(
        [
            f"{'':<12}{'documents':>12}{'sentences':>12}{'tokens':>14}",
            *sizes,
            f"vocabulary  {vocab_size:>12,}    unknown tokens {counts['unknown_share']:.2%}",
            f"next-sentence labels: {labels['continuation']:.1%} continuation (0), {labels['random']:.1%} random (1)",
            *(f"left out or mended: {number:,} {name.replace('_', ' ')}" for name, number in dropped.items() if number),
        ]
    )


def with_values(options: Sequence[str]) -> list[str]:
    """The options, where `--merge` alone stands for `--merge=true`."""
    following = [*options[1:], "--"]
    return [
        "--merge=true" if option == "--merge" and after.startswith("--") else option
        for option, after in zip(options, following, strict=True)
    ]


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["minibert.cli", "minibert.data.corpus", "tqdm"])  # once, not in each worker
    cli.run(main, PrepareConfig, with_values(sys.argv[1:]))
