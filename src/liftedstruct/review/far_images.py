"""Images that are far from all others."""

import numpy as np

from liftedstruct.review.suggestions import Collection, Suggestion

__all__ = ["outliers"]

ALONE = 1.5  # least score
NEAREST = 5  # images whose distance counts


def outliers(items: Collection, most: int = 500) -> list[Suggestion]:
    """List images that are far from their nearest images, compared with these and with all images.

    Let r be the mean distance of an image to its five nearest. The score is r divided by the median r of these five, or by the
    median r of all images, whichever is lower.
    """
    if not items.distances.size:
        return []
    near = items.neighbors[:, :NEAREST]
    r = np.asarray(items.distances[:, :NEAREST], np.float64).mean(axis=1)
    usual = np.maximum(np.maximum(np.median(r[near], axis=1), np.median(r)), 1e-30)
    score = r / usual
    rows = np.argsort(-score, kind="stable")[:most]
    return [
        Suggestion(
            "outliers",
            float(score[i]),
            f"Its nearest images are {score[i]:.1f} times as far as usual: it is like nothing else here.",
            (int(i),),
            tuple(near[i].tolist()),
            "drop",
            targets=(int(i),),
        )
        for i in rows
        if score[i] >= ALONE
    ]
