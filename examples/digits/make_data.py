"""Make the files of data/ from the digits that scikit-learn ships; they are committed, so nobody needs to run this.

`aml/.venv/bin/python examples/digits/make_data.py`: 1,347 rows to train on, and 450 held out, drawn by class.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

DATA = Path(__file__).parent / "data"
SPEC = {
    "schema": 1,
    "inputs": [
        {
            "name": "pixels",
            "type": "number",
            "shape": [64],
            "description": "8 x 8 pixels by rows, 0 (paper) to 16 (ink)",
        }
    ],
    "outputs": [{"name": "digit", "type": "integer", "shape": []}],
    "held_out": "held-out.csv",
}


def main() -> None:
    """Split and write."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    DATA.mkdir(exist_ok=True)
    for name, rows, digits in (("train.csv", train_x, train_y), ("held-out.csv", test_x, test_y)):
        with (DATA / name).open("w", encoding="ascii", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([*(f"pixels_{index}" for index in range(64)), "digit"])
            writer.writerows([*map(int, row), digit] for row, digit in zip(rows, digits, strict=True))
    (DATA / "spec.json").write_text(json.dumps(SPEC, indent=1) + "\n", encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()
