"""Work in a process of its own, so that what others left in memory does not count."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["transformers.models.bert.modeling_bert", "minibert", "minibert.training.optim"])


def alone(function: Callable[..., Any], *arguments: object) -> Any:
    """What the function answers; it starts at once, for libraries are there already."""
    with ProcessPoolExecutor(1, mp_context=_CONTEXT) as process:
        return process.submit(function, *arguments).result()
