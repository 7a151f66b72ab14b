"""An isolation forest as flat arrays.

scikit-learn grows the trees; they are kept as five arrays over all nodes of all trees and scored here, every tree at
once, without scikit-learn. The arrays go into a checkpoint like any tensors: nothing is pickled, and what is read back
is checked before it is walked. Scores equal ``IsolationForest.score_samples`` with the sign turned: 0..1, higher is
more unusual.

Source: Liu, Ting and Zhou 2008, "Isolation Forest"; oracle: ``sklearn.ensemble.IsolationForest``.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TREES = 100
SAMPLE_ROWS = 256
MAX_DEPTH = 64  # a tree of 256 rows is at most 8 deep as grown; a file may say anything

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Trees side by side. A leaf is a node that is its own child.

    Args:
        roots: Node number of each tree's root, int32 (trees,).
        feature: Column that a node looks at, int32 (nodes,); 0 in a leaf.
        threshold: A row goes left when its value, as float32, is at most this; float64 (nodes,).
        left, right: Children, int32 (nodes,).
        path: In a leaf, its depth plus the path expected among the rows that ended there; float64 (nodes,).
        sample_rows: Rows that each tree was grown from.
        features: Columns of a row.
    """

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    path: NDArray[np.float64]
    sample_rows: int
    features: int

    def __post_init__(self) -> None:
        nodes = len(self.feature)
        if not nodes or not len(self.roots) or self.sample_rows < 2 or self.features < 1:
            raise ValueError("a forest needs a tree, a node, a feature and two rows")
        if any(len(array) != nodes for array in (self.threshold, self.left, self.right, self.path)):
            raise ValueError(f"the forest's arrays differ in length; feature has {nodes} nodes")
        if not _within(self.feature, self.features) or not _within(self.roots, nodes):
            raise ValueError("a node looks at a column, or a tree begins at a node, that does not exist")
        own = np.arange(nodes)
        leaf = self.left == own
        downwards = (self.left > own) & (self.right > own) & (self.left < nodes) & (self.right < nodes)
        if not np.all(np.where(leaf, self.right == own, downwards)):
            raise ValueError("a node's children do not lie below it")
        if not np.isfinite(self.path[leaf]).all():
            raise ValueError("a leaf's path is not finite")

    def score(self, rows: Matrix) -> NDArray[np.float64]:
        """How unusual each row is.

            score(x) = 2 ** (-mean_t path_t(x) / c(sample_rows))

        Args:
            rows: Shape (n, features), finite.

        Returns:
            Shape (n,), 0..1; about 0.5 and below is usual.
        """
        values = np.asarray(rows, dtype=np.float32)
        node = np.repeat(self.roots[np.newaxis], len(values), axis=0)
        every_row = np.arange(len(values))[:, np.newaxis]
        for _ in range(MAX_DEPTH):
            goes_left = values[every_row, self.feature[node]] <= self.threshold[node]
            below = np.where(goes_left, self.left[node], self.right[node])
            if np.array_equal(below, node):
                break
            node = below
        expected = float(average_path(np.array([self.sample_rows]))[0])
        scores: NDArray[np.float64] = 2.0 ** (-self.path[node].sum(axis=1) / (len(self.roots) * expected))
        return scores


def grow(rows: Matrix, *, seed: int, trees: int = TREES) -> Forest:
    """Grow a forest on rows of shape (n, features); each tree sees at most ``SAMPLE_ROWS`` of them."""
    from sklearn.ensemble import IsolationForest  # 0.9 s to import, needed only to fit

    grown = IsolationForest(n_estimators=trees, max_samples=min(SAMPLE_ROWS, len(rows)), random_state=seed)
    grown.fit(np.asarray(rows, dtype=np.float64))
    parts = [_flatten(estimator.tree_) for estimator in grown.estimators_]
    starts = np.cumsum([0, *(len(part["feature"]) for part in parts)])
    shifted = {
        side: np.concatenate([part[side] + start for part, start in zip(parts, starts, strict=False)])
        for side in ("left", "right")
    }
    return Forest(
        roots=starts[:-1].astype(np.int32),
        feature=np.concatenate([part["feature"] for part in parts]).astype(np.int32),
        threshold=np.concatenate([part["threshold"] for part in parts]),
        left=shifted["left"].astype(np.int32),
        right=shifted["right"].astype(np.int32),
        path=np.concatenate([part["path"] for part in parts]),
        sample_rows=int(grown.max_samples_),
        features=rows.shape[1],
    )


def average_path(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean path of an unsuccessful search in a binary tree of that many rows: c(n) = 2 H(n-1) - 2 (n-1) / n."""
    n = np.maximum(rows, 3).astype(np.float64)
    many = 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n
    return np.where(rows <= 1, 0.0, np.where(rows == 2, 1.0, many))


def _flatten(tree: object) -> dict[str, NDArray[np.float64]]:
    """One scikit-learn tree's arrays, leaves turned into their own children."""
    left, right = np.array(tree.children_left), np.array(tree.children_right)  # type: ignore[attr-defined]
    leaf = left < 0
    own = np.arange(len(left))
    depth = np.zeros(len(left))
    for node in own[~leaf]:  # a parent's number is smaller than its children's
        depth[[left[node], right[node]]] = depth[node] + 1
    return {
        "feature": np.where(leaf, 0, tree.feature),  # type: ignore[attr-defined]
        "threshold": np.where(leaf, math.inf, tree.threshold),  # type: ignore[attr-defined]
        "left": np.where(leaf, own, left),
        "right": np.where(leaf, own, right),
        "path": np.where(leaf, depth + average_path(tree.n_node_samples), 0.0),  # type: ignore[attr-defined]
    }


def _within(numbers: NDArray[np.int32], limit: int) -> bool:
    return bool(numbers.min() >= 0 and numbers.max() < limit)
