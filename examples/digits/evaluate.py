"""Measure the trained model on the held-out digits: the gates of aml.toml judge what this saves."""

from __future__ import annotations

import pickle

import aml_eval
import amlkit


def main() -> None:
    """Load the model of this job, and let it tell the held-out digits."""
    model = pickle.loads((amlkit.model_dir() / "digits.pickle").read_bytes())  # noqa: S301 - the job itself wrote it
    metrics = aml_eval.evaluate(model.predict)
    print(f"{metrics['count']} digits that it has not seen: accuracy {metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
