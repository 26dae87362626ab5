"""What is in a corpus, and does its text look wrong? Counts of both parts, and warnings in whole sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert.data.pairs import PairSettings, plan_pairs
from minibert.data.token_store import TokenStore

UNKNOWN_LIMIT = 0.01
"""Share of [UNK] among the tokens above which the vocabulary does not fit the text."""


def count_corpus(stores: Mapping[str, TokenStore], unknown_id: int) -> dict[str, Any]:
    """Documents, sentences and tokens of each split, the share of unknown tokens, and what pairs will look like.

    `label_shares` are those of one epoch of next-sentence pairs of at most 128 tokens from the train split.
    """
    counts: dict[str, Any] = {split: _sizes(store) for split, store in stores.items()}
    documents = np.concatenate([np.diff(store.document_offsets) for store in stores.values()])
    unknown = sum(int(np.count_nonzero(piece == unknown_id)) for store in stores.values() for piece in store.pieces)
    random = float(plan_pairs(stores["train"], PairSettings(max_length=128), seed=0, epoch=0).is_random.mean())
    return {
        **counts,
        "unknown_share": unknown / max(sum(counts[split]["tokens"] for split in stores), 1),
        "one_sentence_share": float(np.mean(documents == 1)),
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
    return warnings


def _sizes(store: TokenStore) -> dict[str, int]:
    return {
        "documents": len(store.document_offsets) - 1,
        "sentences": len(store.sentence_offsets) - 1,
        "tokens": int(store.sentence_offsets[-1]),
    }
