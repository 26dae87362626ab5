"""What is in a corpus, and does its text look wrong? Counts of both parts, and warnings in whole sentences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.corpus_files import SPLITS
from minibert.data.pairs import PairSettings, label_share
from minibert.data.token_store import TokenStore, open_tokens, read_tokens

UNKNOWN_LIMIT = 0.01
"""Share of [UNK] among the tokens above which the vocabulary does not fit the text."""

NEAR_COPIES_LIMIT = 0.1
"""Share of the training documents above which it is odd that they are near copies of held-out ones."""

_AT_ONCE = 1 << 20


def count_corpus(directory: Path, unknown_id: int) -> dict[str, Any]:
    """Documents, sentences and tokens of each split, the share of unknown tokens, and what pairs will look like.

    `label_shares` are those of the first block of next-sentence pairs of at most 128 tokens from the train split.
    Memory does not grow with the corpus.
    """
    stores = {split: open_tokens(directory, split) for split in SPLITS}
    counts: dict[str, Any] = {split: _sizes(store) for split, store in stores.items()}
    documents, tokens = (sum(counts[split][what] for split in SPLITS) for what in ("documents", "tokens"))
    unknown = sum(np.count_nonzero(ids == unknown_id) for split in SPLITS for ids in read_tokens(directory, split))
    random = label_share(stores["train"], PairSettings(max_length=128), seed=0)
    return {
        **counts,
        "unknown_share": int(unknown) / max(tokens, 1),
        "one_sentence_share": sum(map(_one_sentence_documents, stores.values())) / max(documents, 1),
        "label_shares": {"continuation": 1 - random, "random": random},
    }


def find_faults(counts: Mapping[str, Any], given: Sequence[str] = ()) -> list[str]:
    """Warnings about text that will train badly, after those that are `given`."""
    warnings = list(given)
    if counts["one_sentence_share"] > 0.5:
        warnings.append(
            f"{counts['one_sentence_share']:.0%} of the documents have one sentence only, which has no continuation: "
            f"{counts['label_shares']['random']:.0%} of the next-sentence labels will be random (1); in a text file a "
            "blank line ends a document, so there should be none between the lines of one"
        )
    if counts["unknown_share"] > UNKNOWN_LIMIT:
        warnings.append(
            f"{counts['unknown_share']:.1%} of the tokens are [UNK]; expected at most {UNKNOWN_LIMIT:.0%}; the "
            "vocabulary lacks characters of the text, or words are longer than 100 characters"
        )
    if counts["validation"]["documents"] == 0:
        warnings.append("no documents are held out, so that nothing can be evaluated: the validation part is empty")
    return warnings + _many_near_copies(counts)


def _many_near_copies(counts: Mapping[str, Any]) -> list[str]:
    copies = counts["dropped"]["near_copies_of_validation"]
    share = copies / max(copies + counts["train"]["documents"], 1)
    if share <= NEAR_COPIES_LIMIT:
        return []
    return [
        f"{share:.0%} of the training documents ({copies:,}) were dropped, as they share half of their text or more "
        f"with a held-out one; expected at most {NEAR_COPIES_LIMIT:.0%}; the text repeats itself, or documents are a "
        "few words long; fewer are dropped with fewer validation_documents, none with validation_share: 0"
    ]


def _sizes(store: TokenStore) -> dict[str, int]:
    return {
        "documents": len(store.document_offsets) - 1,
        "sentences": len(store.sentence_offsets) - 1,
        "tokens": int(store.sentence_offsets[-1]),
    }


def _one_sentence_documents(store: TokenStore) -> int:
    offsets = store.document_offsets
    ranges = range(0, len(offsets) - 1, _AT_ONCE)
    return sum(int(np.count_nonzero(np.diff(offsets[begin : begin + _AT_ONCE + 1]) == 1)) for begin in ranges)
