"""A random sample of rows of groups for the bootstrap, and how much narrower the intervals of all rows are.

Few rows of many groups tell less than whole groups: they add the noise within groups, and a sample of single rows also
misses groups. So groups are drawn first, and all rows of a group as long as there is room. The errors of the sample are
multiplied by √(e′/e) with the effective numbers of groups e = N²/Σ n_g² of all rows and e′ of the sample (Kish 1965):
rows of a group that are all alike have the variance σ²/e.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from avuc.metrics.arrays import Array

# groups in a sample, at least
LEAST_GROUPS = 2_000
# a sample of groups has at least this many times as many rows as the largest group; else all groups take part
LEAST_LARGEST = 200


def sample_groups(sizes: Array, most: int, seed: int) -> Array:
    """Return the sorted numbers of `most` random rows, for rows that are ordered by group; all if there are not more.

    Args:
        sizes: (K,) number of rows of each group.
        most: number of rows in the sample.
        seed: of the sample.

    >>> sample_groups(np.full(10_000, 3), 12_000, seed=0)[:6] // 3
    array([4, 4, 4, 7, 7, 7])
    """
    rows = int(sizes.sum())
    if rows <= most:
        return np.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sizes), generator=generator, device="cpu").numpy()
    enough = int(np.searchsorted(np.cumsum(sizes[order]), most)) + 1
    large = math.ceil(LEAST_LARGEST * float(sizes.max()) * len(sizes) / rows)
    chosen = np.sort(order[: max(enough, LEAST_GROUPS, large)])
    ends = np.cumsum(sizes[chosen])
    # one row from each range of equal length: groups keep their shares, and nothing as long as all rows is needed
    offset = torch.rand(most, generator=generator, dtype=torch.float64, device="cpu").numpy()
    bounds = np.arange(most + 1) * int(ends[-1]) // most
    at = bounds[:-1] + (offset * np.diff(bounds)).astype(np.int64)
    group = np.searchsorted(ends, at, side="right")
    first = np.cumsum(sizes) - sizes
    found: Array = first[chosen[group]] + at - (ends[group] - sizes[chosen[group]])
    return found


def effective_groups(sizes: Array) -> float:
    """Return the effective number of groups, N²/Σ n_g².

    >>> effective_groups(np.array([3, 3])), effective_groups(np.array([4, 1, 1]))
    (2.0, 2.0)
    """
    return float(sizes.sum()) ** 2 / float((sizes.astype(np.float64) ** 2).sum())


def sample_factor(sizes: Array, sampled: Array) -> float:
    """Return the factor of the errors of a sample, at most 1.

    Args:
        sizes: (K,) number of rows of each group.
        sampled: number of rows of each group in the sample.

    >>> sample_factor(np.full(400, 3), np.full(100, 3))
    0.5
    """
    return math.sqrt(min(1.0, effective_groups(sampled) / effective_groups(sizes)))
