"""Where all randomness of data comes from: a generator that depends on a tuple of integers and on nothing else."""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """A Philox generator seeded by `key`, such as (seed, epoch, example): equal keys give equal numbers anywhere."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
