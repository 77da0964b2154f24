"""Write a policy in C99 without allocation: emx-onnx-cgen translates its ONNX file.

Read ``policy.h`` first. ``policy.c`` implements it and includes ``policy_model.c``, which is
generated. ``policy_golden.c`` has a ``main`` that replays the golden trajectory on the robot.
"""

import copy
import ctypes
import itertools
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from rsl_tbptt.deploy import groups_in, join, read_metadata

C_CODE = "c"
"""Folder of the C code in a bundle."""
FLAGS = ("-std=c99", "-O2")
"""Compiler flags for comparisons with the trained policy."""
REPLAY = Path(__file__).with_name("c_templates") / "replay.c"
"""Program that runs a policy in C over a trajectory."""
MOST_GOLDEN_NUMBERS = 50_000
"""Limit of the numbers in ``policy_golden.c``'s observations; with images it has fewer steps."""


@dataclass(frozen=True)
class Exported:
    """An exported policy, from which targets are written."""

    model: onnx.ModelProto
    """One step with a single input ``obs``, and with the bundle's metadata."""
    torchscript: Path
    """The bundle's TorchScript file, which newer releases of torch may not write."""
    metadata: Mapping[str, Any]
    """Content of ``policy.json``."""
    trajectory: Mapping[str, np.ndarray]
    """The golden trajectory."""


def write_c(folder: Path, exported: Exported, extra: Sequence[str] = ()) -> None:
    """Write a policy in C.

    Args:
        folder: Folder to write into; it is created if missing.
        exported: The policy.
        extra: Names of templates to render as well.

    Raises:
        ValueError: If the generator does not know an operator of the model.
    """
    from rsl_tbptt.tools.templates import fill  # only here: replaying needs no templates

    metadata = exported.metadata
    values = {
        "checkpoint": _comment(metadata["checkpoint"]),
        "control_hz": metadata["control_hz"],
        "places": [*_places(metadata["observation_groups"])],
        "constants": _constants(metadata["robot"]),
        **_interface(exported.model),
        **_golden(exported.trajectory),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy_model.c").write_text(_generated(exported.model), encoding="utf-8")
    for name in ("policy.h", "policy.c", "policy_golden.c", *extra):
        text = fill(REPLAY.with_name(f"{name}.j2"), **values)
        (folder / name).write_text(text, encoding="utf-8")


def _generated(model: onnx.ModelProto) -> str:
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions

    options = CompilerOptions(
        model_name="policy_model",
        large_temp_threshold_bytes=0,  # no heap
        large_weight_threshold=0,  # no file of weights
    )
    model = copy.deepcopy(model)
    del model.metadata_props[:]  # the generator copies them into a comment, which "*/" ends
    for node in model.graph.node:
        for attribute in [each for each in node.attribute if each.name == "direction"]:
            node.attribute.remove(attribute)  # release 1.4 refuses it for a GRU; default: forward
    try:
        return Compiler(options).compile(model)
    except Exception as error:  # the generator has exception types of its own
        raise ValueError(
            f"The policy cannot be written in C: {error}. Use its ONNX or TorchScript file."
        ) from error


def run_c(
    folder: Path, golden: Mapping[str, np.ndarray], flags: Sequence[str] = FLAGS
) -> np.ndarray | None:
    """Compile a policy, which the caller trusts, and run it over a trajectory.

    Args:
        folder: Folder that :func:`write_c` wrote.
        golden: The trajectory.
        flags: Compiler flags.

    Returns:
        The actions, shape (T, A); None without a C compiler.

    Raises:
        ValueError: If it does not compile or run, or the number of actions is another one.
    """
    if (compiler := _compiler()) is None:
        return None
    obs = [join(groups) for groups in zip(*groups_in(golden).values(), strict=True)]
    rows = np.column_stack([golden["reset"], obs]).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        program = Path(name, "policy")
        _compile([compiler, *flags, f"-I{folder}", folder / "policy.c", REPLAY, "-lm"], program)
        result = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=False)
    size = golden["actions"].size * np.dtype(np.float32).itemsize
    if result.returncode or len(result.stdout) != size:
        raise ValueError(
            f"{folder / 'policy.c'} ends with status {result.returncode} after"
            f" {len(result.stdout)} bytes of actions, expected status 0 and {size} bytes:"
            f" {result.stderr.decode(errors='replace')}"
        )
    return np.frombuffer(result.stdout, np.float32).reshape(golden["actions"].shape)


class CPolicy:
    """A policy in C, run in this process as :class:`rsl_tbptt.deploy.Policy` runs ONNX."""

    def __init__(self, bundle: Path, flags: Sequence[str] = FLAGS) -> None:
        """Compile and load it; the caller trusts the bundle.

        Args:
            bundle: A folder of ``rsl-tbptt export --target c``.
            flags: Compiler flags.

        Raises:
            ValueError: If there is no C code, no C compiler, or it does not compile.
        """
        self.metadata = read_metadata(bundle)
        source, compiler = bundle / C_CODE / "policy.c", _compiler()
        if not source.is_file() or compiler is None:
            raise ValueError(
                f"{source} and a C compiler are needed, expected both: export with --target c, and"
                " install cc, gcc or clang."
            )
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "policy.so")
            _compile([compiler, *flags, "-shared", "-fPIC", source, "-lm"], library)
            self._library = ctypes.CDLL(str(library))
        self._library.policy_state.restype = ctypes.POINTER(ctypes.c_float)
        self._library.policy_init()
        self._actions = np.zeros(self.metadata["outputs"]["actions"]["shape"], np.float32)
        self._num_states = sum(map(math.prod, self.metadata["state_shapes"]))

    @property
    def state(self) -> np.ndarray:
        """A copy of the recurrent state; assign to it to set the state."""
        return np.asarray(self._library.policy_state()[: self._num_states], np.float32)

    @state.setter
    def state(self, state: np.ndarray) -> None:
        ctypes.memmove(self._library.policy_state(), state.ctypes.data, state.nbytes)

    def step(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the actions, (A,), for observation groups by name."""
        obs = join([*observations.values()])
        self._library.policy_step(obs.ctypes, self._actions.ctypes)
        return self._actions.copy()


def _compiler() -> str | None:
    """Return the path of a C compiler."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _compile(command: Sequence[str | Path], output: Path) -> None:
    """Run a C compiler.

    Raises:
        ValueError: If the compiler fails or prints a warning.
    """
    words = [*map(str, command), "-o", str(output)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode or result.stderr:
        raise ValueError(f"The policy's C code does not compile cleanly: {result.stderr}")


def _interface(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the sizes of the model's inputs and outputs."""
    inputs, outputs = (
        {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        for values in (model.graph.input, model.graph.output)
    )
    (_, num_obs), *states = inputs.values()
    heads = [*outputs.items()][1 + len(states) :]
    starts = itertools.accumulate(map(math.prod, states), initial=0)
    tails = ["".join(f"[{size}]" for size in shape[1:]) for shape in states]
    return {
        "num_obs": num_obs,
        "num_actions": outputs["actions"][1],
        "num_states": sum(map(math.prod, states)),
        "states": [*zip(starts, tails, strict=False)],
        "heads": {_identifier(name): math.prod(shape) for name, shape in heads},
    }


def _places(groups: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield name, start and description of groups and terms in the observations."""
    start = 0
    for group, description in groups.items():
        name, begin, width = _identifier(group).upper(), start, math.prod(description["shape"])
        yield name, begin, f"{width} numbers"
        # In the order "time" the steps of one term are not next to each other.
        by_time = description.get("history_order") == "time"
        for term in () if by_time else description.get("terms", ()):
            scale = "" if term["scale"] is None else f", times {term['scale']}"
            words = _comment(f"{math.prod(term['shape'])} numbers{scale}")
            yield f"{name}_{_identifier(term['name']).upper()}", start, words
            start += math.prod(term["shape"])
        start = begin + width


def _constants(robot: Mapping[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return the C type and the values of the robot's known properties, by name."""
    names = ("default_joint_pos", "joint_stiffness", "joint_damping")
    numbers = {name: robot.get(name) for name in names}
    numbers |= {f"action_{name}": of_actions(robot, name) for name in ("scale", "offset")}
    moved = [joint for action in robot.get("actions", ()) for joint in action["joint_names"]]
    texts = {"joint_names": robot.get("joint_names"), "action_joints": moved}
    known = {n: ("float ", [*map(repr, v)]) for n, v in numbers.items() if v is not None}
    return known | {n: ("char *const ", [*map(json.dumps, v)]) for n, v in texts.items() if v}


def per_action(value: Any, width: int) -> Any:
    """Return one number per action: repeats a single number, keeps a list or None."""
    return [float(value)] * width if isinstance(value, (int, float)) else value


def of_actions(robot: Mapping[str, Any], name: str) -> list[float] | None:
    """Return the scale or offset of every action in order; None if one is not known."""
    values = [per_action(action[name], action["width"]) for action in robot.get("actions", ())]
    return [*itertools.chain(*values)] if values and None not in values else None


def _golden(trajectory: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return as many steps of both episodes as :data:`MOST_GOLDEN_NUMBERS` allows."""
    groups, num_steps = [*groups_in(trajectory).values()], len(trajectory["actions"])
    obs = [join([each[step] for each in groups]) for step in range(num_steps)]
    most, second = max(MOST_GOLDEN_NUMBERS // (2 * len(obs[0])), 1), num_steps // 2
    steps = [*range(num_steps)[:second][:most], *range(num_steps)[second:][:most]]

    def literals(row: Any) -> list[str]:
        return [f"{value!r}f" for value in np.asarray(row, np.float32).tolist()]

    return {
        "resets": [int(trajectory["reset"][step]) for step in steps],
        "obs": [literals(obs[step]) for step in steps],
        "actions": [literals(trajectory["actions"][step]) for step in steps],
    }


def _identifier(name: str) -> str:
    """Turn a name into a C identifier."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _comment(text: str) -> str:
    """Make a text safe inside a C comment."""
    return text.replace("*/", "* /")
