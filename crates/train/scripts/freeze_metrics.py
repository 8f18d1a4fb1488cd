"""Freezes golden figures of metrics from scikit-learn.

    python freeze_metrics.py FILE

writes a list of cases:

    {"name": ..., "classes": ..., "width": <scores per row>, "scores": [...], "labels": [...] or "targets": [...],
     "weights": [...], "figures": {"<metric as asked for>": {"<figure>": <number, or null where there is none>}}}

Scores are multiples of 1/64, exact in f32, and distinct within a row: no ties in choosing a class. Those of the binary
cases are multiples of 1/4 over many rows: ties in the ranking.
"""

import json
import math
import random
import sys

import numpy as np
from sklearn import metrics
from sklearn.metrics.pairwise import cosine_similarity

MEASURES = {
    "precision": metrics.precision_score,
    "recall": metrics.recall_score,
    "f1": metrics.f1_score,
    "iou": metrics.jaccard_score,
    "dice": metrics.f1_score,
}


def shared(labels, chosen, weights, classes, suffix):
    """Figures that are told from labels and chosen classes."""
    figures = {f"accuracy{suffix}": {"accuracy": metrics.accuracy_score(labels, chosen, sample_weight=weights)}}
    present = set(labels.tolist()) | set(chosen.tolist())
    for name, measure in MEASURES.items():
        settings = {"sample_weight": weights, "zero_division": 0}
        told = {f"{name}/{kind}": measure(labels, chosen, average=kind, **settings)
                for kind in ("macro", "micro", "weighted")}  # fmt: skip
        each = measure(labels, chosen, average=None, labels=range(classes), **settings)
        told |= {f"{name}/{c}": each[c] if c in present else None for c in range(classes)}
        if classes == 2:
            told[f"{name}/binary"] = measure(labels, chosen, average="binary", **settings)
        figures[f"{name}/classes{suffix}"] = told
    counts = metrics.confusion_matrix(labels[weights > 0], chosen[weights > 0], labels=range(classes))
    figures[f"confusion{suffix}"] = {
        f"confusion/{label}/{c}": float(counts[label, c]) for label in range(classes) for c in range(classes)
    }
    return figures


def losses(loss):
    """Mean loss and perplexity."""
    return {"loss": {"loss": loss}, "perplexity": {"perplexity": math.exp(loss)}}


def many(scores, labels, weights, classes):
    """Figures of rows of logits."""
    figures = shared(labels, scores.argmax(1), weights, classes, "")
    for k in range(1, classes):
        share = metrics.top_k_accuracy_score(labels, scores, k=k, sample_weight=weights, labels=range(classes))
        figures[f"top{k}"] = {f"top{k}": share}
    exps = np.exp(scores - scores.max(1, keepdims=True))
    probabilities = exps / exps.sum(1, keepdims=True)
    told = {}
    for c in range(classes):
        both = 0 < (labels == c).sum() < len(labels)
        area = metrics.roc_auc_score(labels == c, probabilities[:, c], sample_weight=weights) if both else None
        told[f"auc/{c}"] = area
    told["auc/macro"] = float(np.mean([area for area in told.values() if area is not None]))
    if len(set(labels.tolist())) == classes:
        mean = metrics.roc_auc_score(labels, probabilities, multi_class="ovr", sample_weight=weights)
        assert abs(mean - told["auc/macro"]) < 1e-12
    figures["auc/classes"] = told
    return figures | losses(metrics.log_loss(labels, probabilities, sample_weight=weights, labels=range(classes)))


def binary(scores, labels, weights, threshold):
    """Figures of single logits."""
    figures = shared(labels, (scores >= threshold).astype(int), weights, 2, f":{threshold}")
    figures["auc"] = {"auc": metrics.roc_auc_score(labels, scores, sample_weight=weights)}
    return figures | losses(metrics.log_loss(labels, 1 / (1 + np.exp(-scores)), sample_weight=weights))


def values(scores, targets, weights):
    """Figures of values."""
    cosines = np.array([cosine_similarity(s[None], t[None])[0, 0] for s, t in zip(scores, targets)])
    return {
        "mse": {"mse": metrics.mean_squared_error(targets, scores, sample_weight=weights)},
        "mae": {"mae": metrics.mean_absolute_error(targets, scores, sample_weight=weights)},
        "cosine": {"cosine": np.average(cosines, weights=weights)},
    }


def main():
    rng = random.Random(1)
    cases = []

    def grid(rows, width):
        drawn = [rng.sample(range(-192, 193), width) for _ in range(rows)]
        return np.array(drawn, dtype=np.float64).reshape(rows, width) / 64

    def add(name, classes, scores, targets, make):
        """The case without weights and with them, some of them zero."""
        rows = len(scores)
        for suffix, weights in (("", None), (", weighted", [rng.choice([0, 1, 3, 4, 9]) / 4 for _ in range(rows)])):
            figures = make(np.ones(rows) if weights is None else np.array(weights))
            kind = "labels" if targets.dtype.kind == "i" else "targets"
            cases.append({
                "name": name + suffix, "classes": classes, "width": scores.size // rows,
                "scores": scores.reshape(-1).tolist(), kind: targets.reshape(-1).tolist(),
                "weights": weights or [], "figures": figures,
            })  # fmt: skip

    scores = grid(40, 5)
    labels = np.array([rng.choice([scores[i].argmax(), rng.randrange(5)]) for i in range(40)], dtype=int)
    add("five classes", 5, scores, labels, lambda w: many(scores, labels, w, 5))

    # Class 2 is no row's; class 3 is chosen but never right.
    absent, few = grid(24, 4), np.array([rng.choice([0, 1]) for _ in range(24)], dtype=int)
    absent[:, 2] = -4
    add("absent classes", 4, absent, few, lambda w: many(absent, few, w, 4))

    single = np.array([rng.randrange(-10, 11) for _ in range(40)]) / 4
    truth = np.array([int(rng.random() < 1 / (1 + math.exp(-s))) for s in single], dtype=int)
    add("binary with ties", 2, single, truth, lambda w: binary(single, truth, w, 0.25))

    found, wanted = grid(12, 3), grid(12, 3)
    found[4] = 0
    add("values", 0, found, wanted, lambda w: values(found, wanted, w))

    with open(sys.argv[1], "w") as file:
        lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
        file.write(f"[\n{lines}\n]\n")


main()
