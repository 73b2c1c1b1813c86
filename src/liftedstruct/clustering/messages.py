r"""Message passing of affinity propagation (Frey and Dueck, Science 2007), in one pass over the similarities.

With similarities $s_{ik}$, preferences $s_{kk} = p_k$ and damping $\lambda$, an iteration is

$$
r_{ik} \leftarrow \lambda r_{ik} + (1-\lambda) \bigl(s_{ik} - \max_{k' \ne k} (a_{ik'} + s_{ik'})\bigr)
$$

$$
a_{ik} \leftarrow \lambda a_{ik} + (1-\lambda) \min\bigl(0, u_k - \max(0, r_{ik})\bigr), \quad i \ne k
$$

$$
a_{kk} \leftarrow \lambda a_{kk} + (1-\lambda) \sum_{i' \ne k} \max(0, r_{i'k})
$$

where $u_k = r_{kk} + \sum_{i' \ne k} \max(0, r_{i'k})$, and k is an exemplar if $r_{kk} + a_{kk} > 0$. A direct implementation
stores s, r and a and passes over them several times. But s and a few numbers per row and column determine r and a almost
completely:

- The maximum in the update of r is the same for all k of row i, except the k that attains it. Thus
  $r_{ik} = c s_{ik} - b_i + e_{ik}$, where c and $b_i$ are damped like r, and $e_{ik} > 0$ only for the few k that were
  recently the best of row i.
- Where $r_{ik} \le 0$, the update of a is the same for all i of column k. Thus $a_{ik} = \alpha_k + f_{ik}$, where
  $f_{ik} < 0$ only if $r_{ik}$ was recently positive: roughly, if k is nearer to i than i's exemplar.

Therefore r is not stored, and only the blocks of `BLOCK` columns of f that are or become nonzero are touched. An iteration
reads s once and does everything else while a row is in the cache. This is not an approximation: dropped values are below the
rounding of float32 (and, for e, not among the `RECENT` largest of their row; at most eight were observed). The sums over
columns are kept for each of `CHUNKS` parts of the rows and added in a fixed order, so that the result does not depend on the
number of threads.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import prange
from numpy.typing import NDArray

from liftedstruct.runtime.compiled import compiled

__all__ = ["BLOCK", "FAR", "Floats", "Messages", "Similarities"]

Floats = NDArray[np.float32]

FAR = np.float32(-1e30)  # similarity of a pair that does not exist: finite, because it is multiplied
BLOCK = 32  # columns processed together
CHUNKS = 64  # parts of the rows
RECENT = 24  # recent best k stored per row; the smallest e_ik is dropped beyond that
FADED = np.float32(1e-8)  # values below this fraction of b_i are below the rounding of float32
ZERO = np.float32(0)


@dataclass(frozen=True)
class Similarities:
    """Similarities of all pairs or of the edges of a graph. Row i is `values[start[i]:start[i + 1]]`.

    Rows are padded to whole blocks with `FAR`, which is also the similarity of a point to itself.
    """

    start: NDArray[np.int64]  # multiples of BLOCK                                                (n + 1,)
    columns: NDArray[np.int32]  # column of each value; empty if every row has all n columns in order
    values: Floats

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.start) - 1

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """Number of other points that each point is connected to."""
        return np.add.reduceat(self.values > FAR, self.start[:-1], dtype=np.int64)

    @cached_property
    def tops(self) -> Floats:
        """Largest value of each block."""
        tops: Floats = self.values.reshape(-1, BLOCK).max(axis=1)
        return tops


class Messages:
    """State of the message passing between two iterations."""

    def __init__(self, similarities: Similarities, damping: float, preferences: Floats) -> None:
        n, room = similarities.n, similarities.n + -similarities.n % BLOCK
        self.similarities, self.damping, self.preferences = similarities, damping, preferences  # p_k (n,)
        self.c = 0.0
        self.b, self.r_own, self.a_own = np.zeros((3, n), np.float32)  # b_i, r_kk, a_kk          (n,)
        self.e = np.zeros((n, RECENT), np.float32)  # e_ik of the recent best k ...               (n, RECENT)
        self.e_at = np.zeros((n, RECENT), np.int32)  # ... their positions in the row ...         (n, RECENT)
        self.e_count = np.zeros(n, np.int32)  # ... and their number                              (n,)
        self.alpha, self.u = np.zeros((2, room), np.float32)  # α_k, u_k                          (n,), then zeros to a block
        self.f = np.zeros_like(similarities.values)  # f_ik                                       laid out like the similarities
        self.live = np.zeros(len(similarities.tops), np.bool_)  # blocks of f or e that are not 0, like tops
        self.best = np.arange(n, dtype=np.int32)  # k of the largest a_ik + s_ik, k = i included  (n,)
        self.sums = np.zeros((CHUNKS, room), np.float32)  # of max(0, r_ik) over the rows of each chunk

    def iterate(self) -> NDArray[np.bool_]:
        """Run one iteration and return which points are exemplars."""
        n, rows = self.similarities.n, self.similarities
        keep, take = np.float32(self.damping), np.float32(1 - self.damping)
        c_old, c_new = np.float32(self.c), np.float32(self.damping * self.c + (1 - self.damping))
        pull: Floats = np.minimum(self.u, ZERO)
        self.alpha = keep * self.alpha + take * pull
        recent = self.e, self.e_at, self.e_count
        state = self.b, *recent, self.alpha, self.f, self.live, self.r_own, self.a_own, self.u, self.best
        _sweep(rows.start, rows.columns, rows.values, rows.tops, self.preferences, *state, c_old, c_new, keep, self.sums)
        total = self.sums.sum(axis=0, dtype=np.float64)[:n].astype(np.float32)  #                 (n,)
        self.c = float(c_new)
        self.u[:n] = self.r_own + total
        self.a_own = keep * self.a_own + take * total
        return self.a_own + self.r_own > 0

    def change_preferences(self, preferences: Floats) -> None:
        """Continue from the current messages with other preferences: r_kk shifts by their difference."""
        moved = preferences - self.preferences
        self.r_own = self.r_own + moved
        self.u[: len(moved)] += moved
        self.preferences = preferences


@compiled(fastmath=True, parallel=True)
def _sweep(start, columns, s, tops, p, b, e, e_at, e_count, alpha, f, live, r_own, a_own, u, chosen, c_old, c_new, keep, sums):  # type: ignore[no-untyped-def]
    """Update a_ik (stored as f), then r_ik (stored as b, e and r_own), then the sums of its positive parts, row by row."""
    n = len(p)
    take = np.float32(1) - keep
    everything = len(columns) == 0
    longest = 0
    for i in range(n):
        longest = max(longest, start[i + 1] - start[i])
    for chunk in prange(CHUNKS):
        total = sums[chunk]
        total[:] = ZERO
        e_of = np.zeros(longest, np.float32)  # e_ik, or 0
        best, second, where = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
        u_of, alpha_of = np.empty(0 if everything else longest, np.float32), np.empty(0 if everything else longest, np.float32)
        for i in range(chunk * n // CHUNKS, (chunk + 1) * n // CHUNKS):
            first, length = start[i], start[i + 1] - start[i]
            s_i, f_i, own = s[first : first + length], f[first : first + length], columns[first : first + length]
            tops_i, live_i = tops[first // BLOCK :], live[first // BLOCK :]
            b_i = b[i]
            if everything:
                u_i, alpha_i = u, alpha
            else:
                u_i, alpha_i = u_of, alpha_of
                for t in range(length):
                    u_i[t], alpha_i[t] = u[own[t]], alpha[own[t]]
            for j in range(e_count[i]):
                e_of[e_at[i, j]] = e[i, j]

            # availabilities, from the responsibilities of the last iteration; the two best a_ik + s_ik per lane
            forget = -FADED * abs(b_i)
            best[:], second[:], where[:] = FAR, FAR, 0
            for block in range(length // BLOCK):
                left = block * BLOCK
                if live_i[block] or c_old * tops_i[block] > b_i:
                    held = 0
                    for t in range(left, left + BLOCK):
                        r = max(ZERO, c_old * s_i[t] - b_i + e_of[t])
                        f_i[t] = keep * f_i[t] + take * (min(ZERO, u_i[t] - r) - min(ZERO, u_i[t]))
                        held += f_i[t] < forget
                    live_i[block] = held > 0
                    if held == 0:
                        f_i[left : left + BLOCK] = ZERO
                    for lane in range(BLOCK):
                        _two_best(alpha_i[left + lane] + s_i[left + lane] + f_i[left + lane], block, lane, best, second, where)
                else:
                    for lane in range(BLOCK):
                        _two_best(alpha_i[left + lane] + s_i[left + lane], block, lane, best, second, where)
            top = 0
            for lane in range(1, BLOCK):
                if best[lane] > best[top]:
                    top = lane
            m = best[top]
            m2 = second[top]
            for lane in range(BLOCK):
                if lane != top and best[lane] > m2:
                    m2 = best[lane]

            # responsibilities
            itself = a_own[i] + p[i]
            r_own[i] = keep * r_own[i] + take * (p[i] - m)
            b_i = keep * b_i + take * max(m, itself)
            b[i] = b_i
            for j in range(e_count[i]):
                e_of[e_at[i, j]] = ZERO
            _fade(i, keep, abs(b_i), e, e_at, e_count)
            chosen[i] = i
            if m > itself:
                at = where[top] * BLOCK + top
                chosen[i] = at if everything else own[at]
                _remember(i, at, take * (m - max(m2, itself)), e, e_at, e_count)

            # their positive parts, by column
            for block in range(length // BLOCK):
                if c_new * tops_i[block] > b_i:
                    left = block * BLOCK
                    if everything:
                        for t in range(left, left + BLOCK):
                            total[t] += max(ZERO, c_new * s_i[t] - b_i)
                    else:
                        for t in range(left, left + BLOCK):
                            total[own[t]] += max(ZERO, c_new * s_i[t] - b_i)
            for j in range(e_count[i]):
                t = e_at[i, j]
                r = c_new * s_i[t] - b_i
                total[t if everything else own[t]] += max(ZERO, r + e[i, j]) - max(ZERO, r)
                live_i[t // BLOCK] = True


@compiled(fastmath=True, inline="always")
def _two_best(value, block, lane, best, second, where):  # type: ignore[no-untyped-def]
    """Keep the two largest values of a lane and the block of the largest, without branches, so that the loop vectorizes."""
    better = value > best[lane]
    loser = best[lane] if better else value
    second[lane] = loser if loser > second[lane] else second[lane]
    where[lane] = block if better else where[lane]
    best[lane] = value if better else best[lane]


@compiled(fastmath=True, inline="always")
def _fade(i, keep, scale, e, e_at, e_count):  # type: ignore[no-untyped-def]
    """Damp the e_ik of row i and drop those that have become negligible."""
    kept = 0
    for j in range(e_count[i]):
        value = keep * e[i, j]
        if value > FADED * scale:
            e[i, kept], e_at[i, kept] = value, e_at[i, j]
            kept += 1
    e_count[i] = kept


@compiled(fastmath=True, inline="always")
def _remember(i, at, more, e, e_at, e_count):  # type: ignore[no-untyped-def]
    """Add `more` to the e_ik at position `at` of row i."""
    j = 0
    while j < e_count[i] and e_at[i, j] != at:
        j += 1
    if j == e_count[i]:
        if j < RECENT:
            e_count[i] += 1
        else:
            j = 0
            for other in range(1, RECENT):
                if e[i, other] < e[i, j]:
                    j = other
        e[i, j], e_at[i, j] = ZERO, at
    e[i, j] += more
