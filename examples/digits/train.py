"""Train a classifier on handwritten digits; `nox -s train -- -- --gamma 0.002` sets a parameter.

The model goes to model/ of the job's directory. What it has learnt is measured by evaluate.py, on digits that this
script does not read.
"""

from __future__ import annotations

import pickle

import amlkit
from sklearn.svm import SVC

STEPS = 4


def main() -> None:
    """Fit on growing shares of the digits, telling how it goes; keep the last model."""
    gamma = amlkit.parameters(gamma=0.001).gamma
    images, digits = amlkit.read_table("train.csv")
    for step in range(1, STEPS + 1):
        count = len(images) * step // STEPS
        model = SVC(gamma=gamma).fit(images[:count], digits[:count])
        accuracy = model.score(images, digits)
        amlkit.log_metrics(step, digits=count, train_accuracy=accuracy)
        amlkit.progress(step / STEPS, f"{count} digits learnt")
    (amlkit.model_dir() / "digits.pickle").write_bytes(pickle.dumps(model))
    amlkit.save_metrics(train_accuracy=accuracy, gamma=gamma)
    print(f"{count} digits learnt, {accuracy:.2%} of them are told apart")


if __name__ == "__main__":
    main()
