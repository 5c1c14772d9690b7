"""For the script that `train.evaluate` names: measure a trained model on rows that the training did not learn from.

It runs after the training, in a process of its own, and what it saves is what the gates judge. The standard library
only, and CPython 3.10 or later, as amlkit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

TYPE_CHECKING = False  # as the type checkers know it, without the price of importing typing
if TYPE_CHECKING:
    from typing import Any

    from aml_nox.kit import amlkit
else:
    import amlkit


def held_out() -> tuple[list[list[Any]], list[Any]]:
    """The rows of inputs and the truths of the file that spec.json names as `held_out`, as `amlkit.read_table`.

    Raises:
        amlkit.KitError: spec.json names none, or a line does not fit: file and line are named.

    """
    name = amlkit.dataset_spec().get("held_out")
    if not isinstance(name, str) or not name:
        raise amlkit.KitError(f'{amlkit.dataset_dir() / "spec.json"}: it names no "held_out" file')
    return amlkit.read_table(name)


def evaluate(predict: Callable[[list[list[Any]]], Iterable[Any]], task: str | None = None) -> dict[str, float]:
    """Predict the held-out rows, measure, save the metrics and give them.

    `predict` is called once, with all rows. `task` is "classification" or "regression"; where it is not given,
    regression for an output of type number, and classification for all others.

    Raises:
        ValueError: the predictions cannot be measured, or there is no such task.
        amlkit.KitError: as `held_out`.

    """
    name = task or _usual_task()
    if name not in _TASKS:
        raise ValueError(f"there is no task {name!r}: it is {' or '.join(_TASKS)}")
    rows, truth = held_out()
    metrics = _TASKS[name](truth, predict(rows))
    amlkit.save_metrics(metrics)
    return metrics


def _usual_task() -> str:
    outputs = amlkit.dataset_spec()["outputs"]
    return "regression" if [each["type"] for each in outputs] == ["number"] else "classification"


def classification(truth: Iterable[Any], predicted: Iterable[Any]) -> dict[str, float]:
    """How often the predicted class is the true one.

    `count`, `accuracy`, `macro_precision`, `macro_recall` and `macro_f1`: means over all classes that are true or
    predicted somewhere, in which a value without a case (0/0) counts as 0, as in scikit-learn; `recall.<class>` of each
    class that is true somewhere.

    Raises:
        ValueError: of unlike lengths, empty, NaN or None among them, or texts against numbers.

    """
    pairs = _pairs(truth, predicted, _label)
    if len({isinstance(label, str) for pair in pairs for label in pair}) > 1:
        raise ValueError("some classes are texts and some are numbers: no prediction of the one kind is of the other")
    true, guessed = (Counter(side) for side in zip(*pairs, strict=True))
    right = Counter(label for label, guess in pairs if label == guess)
    classes = list(true | guessed)
    return {
        "count": len(pairs),
        "accuracy": right.total() / len(pairs),
        "macro_precision": _mean([_ratio(right[each], guessed[each]) for each in classes]),
        "macro_recall": _mean([_ratio(right[each], true[each]) for each in classes]),
        "macro_f1": _mean([_ratio(2 * right[each], true[each] + guessed[each]) for each in classes]),
        **{f"recall.{_name(each)}": right[each] / true[each] for each in sorted(true)},
    }


def regression(truth: Iterable[Any], predicted: Iterable[Any]) -> dict[str, float]:
    """How far the predicted number is from the true one.

    `count`, `mae` (mean absolute error), `rmse` (root of the mean squared error), `max_error` (the largest absolute
    one), and `r2`, the coefficient of determination, which is left out where the truth is constant.

    Raises:
        ValueError: of unlike lengths, empty, something that is no finite number, or errors beyond every float.

    """
    pairs = _pairs(truth, predicted, _number)
    try:
        return _distances([true for true, _ in pairs], [guess - true for true, guess in pairs])
    except OverflowError as error:
        raise ValueError("the numbers are too large to be measured") from error


def _distances(truth: Sequence[float], errors: Sequence[float]) -> dict[str, float]:
    metrics = {
        "count": len(errors),
        "mae": _mean([abs(error) for error in errors]),
        "rmse": _length(errors) / math.sqrt(len(errors)),
        "max_error": max(abs(error) for error in errors),
    }
    if min(truth) == max(truth):
        return metrics
    mean = _mean(truth)
    ratio = _length(errors) / _length([value - mean for value in truth])
    r2 = 1 - ratio * ratio
    # Truths can lie so close together that they are as good as constant.
    return {**metrics, "r2": r2} if math.isfinite(r2) else metrics


def _length(values: Sequence[float]) -> float:
    """The root of the sum of the squares, which themselves may leave a float's range."""
    length = math.hypot(*values)
    if not math.isfinite(length):
        raise OverflowError
    return length


def _pairs(truth: Iterable[Any], predicted: Iterable[Any], read: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    true, guessed = [read(each) for each in truth], [read(each) for each in predicted]
    if len(true) != len(guessed):
        raise ValueError(f"there are {len(guessed)} predictions for {len(true)} truths")
    if not true:
        raise ValueError("there is nothing to measure")
    return list(zip(true, guessed, strict=True))


def _label(value: Any) -> Any:  # noqa: ANN401 - of any library
    label = amlkit.plain(value)
    if not isinstance(label, str | int | float) or label != label:  # noqa: PLR0124 - NaN is no class
        raise ValueError(f"{value!r} is no class: a text, bool or number")
    return label


def _number(value: Any) -> float:  # noqa: ANN401 - of any library
    number = amlkit.plain(value)
    try:
        if isinstance(number, int | float) and math.isfinite(number):
            return float(number)
    except OverflowError:  # an integer beyond every float
        pass
    raise ValueError(f"{value!r} is no finite number")


def _name(label: float | str) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


_TASKS = {"classification": classification, "regression": regression}
