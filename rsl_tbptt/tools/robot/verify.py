"""Run the files of a bundle, to compare them with the trained policy."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rsl_tbptt.deploy import GOLDEN, Policy, groups_in


def verify(bundle: Path) -> dict[str, float]:
    """Replay the golden trajectory of a bundle in its ONNX files.

    Returns:
        The largest difference of an action: ``onnx``, and ``unitree`` if the bundle has it. Also
        the largest difference of each auxiliary head's prediction, by the head's name.

    Raises:
        ValueError: If the folder is not a bundle, or a file in it is another policy's.
    """
    policy, golden = Policy(bundle), read_golden(bundle / GOLDEN)
    _check_complete(golden, bundle / GOLDEN)
    heads = [name for name in policy.metadata["outputs"] if name in golden and name != "actions"]
    outputs = run_onnx(policy, golden, ("actions", *heads))
    actions = {"onnx": outputs["actions"]}
    if (folder := bundle / "unitree" / "exported").exists():
        actions["unitree"] = run_onnx(Policy(folder), golden, ("actions",))["actions"]
    differences = {name: largest_difference(a, golden["actions"]) for name, a in actions.items()}
    return differences | {name: largest_difference(outputs[name], golden[name]) for name in heads}


def read_golden(path: Path) -> dict[str, np.ndarray]:
    """Read a trajectory; :mod:`rsl_tbptt.tools.robot.golden` describes its arrays.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        with np.load(path) as file:  # allow_pickle is False
            return dict(file)
    except Exception as error:  # a damaged archive can raise almost anything
        raise ValueError(f"The trajectory '{path}' cannot be read: {error}") from error


def _check_complete(golden: Mapping[str, np.ndarray], path: Path) -> None:
    """Check that a golden trajectory has what a replay needs.

    Raises:
        ValueError: If an array is missing or has another number of steps.
    """
    # Older releases of numpy save their option allow_pickle as an array, too, a scalar.
    lengths = {name: len(array) for name, array in golden.items() if array.ndim > 0}
    if not {"reset", "actions"} <= {*lengths} or len({*lengths.values()}) != 1:
        raise ValueError(
            f"The trajectory '{path}' has the arrays {lengths}, expected 'reset', 'actions' and"
            " others of as many steps: export the policy again."
        )


def run_onnx(
    policy: Policy, golden: Mapping[str, np.ndarray], outputs: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Return outputs of the stepper over a trajectory, shape (T, ...) each."""
    groups, rows = groups_in(golden), []
    for step, starts in enumerate(golden["reset"]):
        if starts:
            policy.reset()
        policy.step({name: values[step] for name, values in groups.items()})
        rows.append({name: policy.outputs[name][0] for name in outputs})
    return {name: np.stack([row[name] for row in rows]) for name in outputs}


def largest_difference(values: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference; NaN if there is one."""
    return float(np.abs(values - expected).max())
