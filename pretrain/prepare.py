"""From raw text to a corpus: trains a tokenizer, encodes the text, holds out documents for validation.

python pretrain/prepare.py --config configs/prepare/demo.yaml
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from minibert import cli
from minibert.data.corpus import PrepareConfig, build_corpus
from minibert.data.sources import Document


def main(config: PrepareConfig) -> None:
    """Make the corpus and print what is in it."""
    description, is_new = build_corpus(config, track=show_progress)
    for warning in description["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(summary(description["counts"], description["vocab_size"]))
    print(f"{config.output}: {'made' if is_new else 'is there already, with these sources and settings'}")
    print(f"fingerprint {description['fingerprint']}")


def show_progress(documents: Iterable[Document], stage: str, total: int | None) -> Iterator[Document]:
    """Pass the documents on under a progress bar, or below one line where standard error is no terminal."""
    if not sys.stderr.isatty():
        print(stage, file=sys.stderr, flush=True)
    yield from tqdm(documents, desc=stage, total=total, unit=" documents", unit_scale=True, disable=None)


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


if __name__ == "__main__":
    cli.run(main, PrepareConfig)
