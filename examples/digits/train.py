"""Train a classifier on the 1,797 handwritten digits that scikit-learn ships (UCI ML, Alpaydin and Kaynak, 1998).

Run by `nox -s train`: metrics go to metrics.json, the model to model/, both in the job's own directory.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC


def main() -> None:
    """Fit, measure on digits that the model has not seen, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gamma", type=float, default=0.001, help="width of the kernel")
    gamma = parser.parse_args().gamma
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    model = SVC(gamma=gamma).fit(train_x, train_y)
    accuracy = float(accuracy_score(test_y, model.predict(test_x)))
    print(f"{len(train_x)} digits learnt, {len(test_x)} judged: accuracy {accuracy:.4f}")
    job = Path(os.environ["AML_JOB_DIR"])
    (job / "metrics.json").write_text(json.dumps({"accuracy": accuracy, "gamma": gamma}))
    (job / "model" / "digits.pickle").write_bytes(pickle.dumps(model))


if __name__ == "__main__":
    main()
