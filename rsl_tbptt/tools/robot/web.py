"""Write a page that simulates a robot and its policies in the browser: docs/howto/web.md.

The folder holds the robot as one MuJoCo file, each policy as ONNX with one carried tensor,
``robot.json``, which says what the policies see and do, the page, and its libraries from npm.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, parser

from rsl_tbptt.checkpoints.robot import describe_robot
from rsl_tbptt.deploy import ONNX, read_metadata
from rsl_tbptt.files import cached_folder, output_path, write_json
from rsl_tbptt.tools.robot import unitree
from rsl_tbptt.tools.robot.export import export, publish
from rsl_tbptt.tools.robot.scene import one_file
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.evaluate import started

MARK = b'"policies"'
"""Bytes in the ``robot.json`` of every page."""
PAGE = Path(__file__).with_name("page")
"""HTML and JavaScript."""
LIBRARIES = {
    "@mujoco/mujoco@3.14.0": "mujoco.js mujoco.wasm",
    "onnxruntime-web@1.30.0": "dist/ort.wasm.bundle.min.mjs dist/ort-wasm-simd-threaded.wasm",
    "three@0.180.0": "build/three.core.min.js build/three.module.min.js"
    " examples/jsm/controls/OrbitControls.js",
}
"""Packages of npm, and the files that a page needs of them."""
FUNCTIONS = (
    *("base_ang_vel", "base_lin_vel", "projected_gravity", "builtin_sensor", "joint_pos_rel"),
    *("joint_vel_rel", "last_action", "generated_commands", "action_before", "arrived_before"),
    *("actuator_force", "motor_gain", "zeros", "feet_contact", "feet_air_time"),
)
"""Functions of observation terms that ``page/robot.js`` knows."""


def write_page(policies: Mapping[str, Any], output: Path | None = None, **where: Any) -> Path:
    """Write a page with a robot and a menu of its policies.

    Args:
        policies: A :class:`Run` or a ``LoneBundle`` for each title in the menu. All are of one
            task: the first one's is simulated.
        output: New folder, or that of an earlier page. None means ``web/`` next to the first
            policy.
        where: ``task``, ``overrides`` and ``device`` of the simulation; see
            :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The folder.

    Raises:
        ValueError: If a page cannot show the robot or what a policy sees, the output cannot be
            written, or npm is missing.
    """
    first = next(iter(policies.values()))
    output = output_path(output, first.checkpoint.parent / "web", MARK, "robot.json")
    with started(first, num_envs=1, **where) as start:
        robot = describe_robot(start.env, start.obs)
        platform, spec = first.platform, first.platform.mujoco_spec(start.env)
    model = spec.compile()
    config = {"title": start.task, "forward": platform.READS_AFTER_STEP, **_moved(robot, model)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config["policies"] = [
            {"title": title, "file": f"policy{number}.onnx.gz"}
            | _write_policy(policy, title, folder / f"policy{number}.onnx.gz", robot, model)
            for number, (title, policy) in enumerate(policies.items())
        ]
        _write_packed(folder / "scene.xml.gz", one_file(spec).encode())
        write_json(folder / "robot.json", config)
        shutil.copytree(libraries(), folder / "lib")
        shutil.copytree(PAGE, folder, dirs_exist_ok=True)
        publish(folder, output)
    return output


def _write_packed(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, mtime=0))


def _moved(robot: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return how the robot moves whatever its policy is.

    Args:
        robot: From :func:`describe_robot`.
        model: The ``mujoco.MjModel``.

    Raises:
        ValueError: If the page cannot move such a robot.
    """
    free = [joint for joint in range(model.njnt) if model.jnt_type[joint] == 0]
    kinds = [action["kind"] for action in robot.get("actions", ())]
    velocities = [r for r in robot.get("command_ranges", {}).values() if {*r} >= unitree.JOYSTICK]
    scale, offset = unitree.of_actions(robot, "scale"), unitree.of_actions(robot, "offset")
    joints = _numbers(model.joint(number).name for number in range(model.njnt))
    motor_of = {int(model.actuator_trnid[motor, 0]): motor for motor in range(model.nu)}
    motors = [motor_of.get(joints.get(joint, -1), -1) for joint in unitree.moved_joints(robot)]
    needs = {
        f"one base that moves freely, it has {len(free)}": len(free) == 1,
        f"positions of joints as actions, they are {kinds}": kinds == ["JointPositionAction"],
        "known scales and offsets of actions": scale is not None and offset is not None,
        "no clips of targets": not any(action.get("clip") for action in robot.get("actions", ())),
        "a velocity in the plane as command": len(velocities) > 0,
        # Any other motor gets its force from the simulator's Python.
        "motors that MuJoCo moves to a position": len(motors) > 0
        and all(motor >= 0 and model.actuator_biasprm[motor, 1] < 0 for motor in motors),
        "a known step_dt": "step_dt" in robot,
    }
    if missing := [need for need, there in needs.items() if not there]:
        raise ValueError(f"A page cannot simulate this robot, expected {'; '.join(missing)}.")
    groups = robot["observation_groups"].values()
    terms = [term for group in groups for term in group.get("terms", ())]
    parameters = [term.get("parameters", {}) for term in terms]
    feet = next((each["sensor_names"] for each in parameters if "sensor_names" in each), ())
    actions = {"actuators": motors, "scale": scale, "offset": offset}
    return {
        "step_dt": robot["step_dt"],
        "substeps": round(robot["step_dt"] / model.opt.timestep),
        "qpos": (model.key_qpos[0] if model.nkey else model.qpos0).tolist(),
        "feet": [int(model.sensor(foot).adr[0]) for foot in feet],
        "base": int(model.jnt_bodyid[free[0]]),
        "base_dof": int(model.jnt_dofadr[free[0]]),
        "actions": {**actions, "clip": robot.get("clip_actions")},
        "commands": {name: velocities[0][name] for name in ("lin_vel_x", "lin_vel_y", "ang_vel_z")},
    }


def _numbers(names: Iterator[str]) -> dict[str, int]:
    """Return the places of names, which a scene prefixes by ``ROBOT/``."""
    return {name.rpartition("/")[2]: number for number, name in enumerate(names)}


def _write_policy(
    policy: Any, title: str, file: Path, robot: Mapping[str, Any], model: Any
) -> dict[str, Any]:
    """Write a policy and return what it sees and carries.

    Raises:
        ValueError: If the page has no form for what it sees.
    """
    with tempfile.TemporaryDirectory() as name:
        bundle = policy.checkpoint.parent
        if isinstance(policy, Run):
            bundle = export(policy, Path(name, "bundle"), drawn=True)["output"]
            if bundle is None:
                raise ValueError(f"{policy.checkpoint} and its ONNX file differ: see `export`.")
        metadata, network = read_metadata(bundle), onnx.load(bundle / ONNX)
    groups = metadata["observation_groups"]
    if {*metadata["inputs"]} != {*groups}:
        raise ValueError(f"{title} joins its groups, expected a bundle without --single-input.")
    inputs = {
        group: [*_terms(f"{title}'s {group}", seen["shape"], group, robot, model)]
        for group, seen in groups.items()
    }
    _write_packed(file, with_carried_state(network, metadata).SerializeToString())
    return {"inputs": inputs, "carried": sum(map(math.prod, metadata["state_shapes"]))}


def _terms(
    title: str, shape: list[int], group: str, robot: Mapping[str, Any], model: Any
) -> Iterator[dict[str, Any]]:
    """Yield what the page has to know of each term of a group.

    Raises:
        ValueError: If the environment does not tell the terms, or the page does not know one.
    """
    described = robot["observation_groups"].get(group, {})
    terms = described.get("terms", ())
    sensors = {model.sensor(number).name: number for number in range(model.nsensor)}
    sensor_of = [term.get("parameters", {}).get("sensor_name") for term in terms]
    unknown = [
        term["name"]
        for term, sensor in zip(terms, sensor_of, strict=True)
        if term.get("function") not in FUNCTIONS
        or term.get("modifiers")
        or sensor not in (None, *sensors)
    ]
    by_time = described.get("history_order") == "time"
    if not terms or unknown or by_time or described["shape"] != shape:
        raise ValueError(
            f"{title} shows {unknown or described}, expected shape {shape} and terms that a page"
            f" can compute, each of {FUNCTIONS}, with histories joined by term. It has no height"
            " scans and no images."
        )
    joints = _numbers(model.joint(number).name for number in range(model.njnt))
    zeros = dict(zip(robot["joint_names"], robot["default_joint_pos"], strict=True))
    for term, sensor in zip(terms, sensor_of, strict=True):
        entry = {"function": term["function"], "clip": term.get("clip")}
        if {"noise", "error"} & term.keys():
            entry |= {"noise": term.get("noise", 0.0), "error": term.get("error", 0.0)}
        entry |= {"width": unitree.width_of(term), "history": unitree.history(term)}
        entry |= {"scale": unitree.scale_of(term), "late": term.get("delay_max_lag", 0)}
        if sensor:
            adr = int(model.sensor_adr[sensors[sensor]])
            entry |= {"function": "builtin_sensor", "adr": adr}
        if term["function"] in ("joint_pos_rel", "joint_vel_rel"):
            names = unitree.joints_of(term, robot)
            ids = [joints[name] for name in names]
            entry |= {"qpos": model.jnt_qposadr[ids].tolist(), "zero": [zeros[n] for n in names]}
            entry["dof"] = model.jnt_dofadr[ids].tolist()
        yield entry


def with_carried_state(model: onnx.ModelProto, metadata: Mapping[str, Any]) -> onnx.ModelProto:
    """Join the states of a policy into one tensor, in the form of mjswan.

    Args:
        model: A bundle's ``policy.onnx``, which is changed.
        metadata: Its ``policy.json``.

    Returns:
        The model with the inputs ``adapt_hx``, shape (1, S), and ``is_init``, shape (1,), bool,
        which clears it, and the output ``next,adapt_hx``; unchanged if there is no state.
    """
    names, shapes, graph = metadata["state_names"], metadata["state_shapes"], model.graph
    if not names:
        return model
    sizes = [math.prod(shape) for shape in shapes]
    texts = [
        "cleared = Constant<value_float=0.0>()",
        "kept = Where(is_init, cleared, adapt_hx)",
        f"sizes = Constant<value_ints={sizes}>()",
        f"{', '.join(f'{name}_kept' for name in names)} = Split<axis=1>(kept, sizes)",
        "flat = Constant<value_ints=[1, -1]>()",
    ]
    for name, shape in zip(names, shapes, strict=True):
        texts += [f"{name}_shape = Constant<value_ints={shape}>()"]
        texts += [f"{name}_in = Reshape({name}_kept, {name}_shape)"]
    nodes = [*map(parser.parse_node, texts), *graph.node]
    nodes += [parser.parse_node(f"{name}_flat = Reshape({name}_out, flat)") for name in names]
    flat = [f"{name}_flat" for name in names]
    nodes.append(helper.make_node("Concat", flat, ["next,adapt_hx"], axis=1))
    of_state = [f"{name}_{end}" for name in names for end in ("in", "out")]
    inputs, outputs = (
        [value for value in values if value.name not in of_state]
        for values in (graph.input, graph.output)
    )
    number, flag, state = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, [1, sum(sizes)]
    inputs.append(helper.make_tensor_value_info("adapt_hx", number, state))
    inputs.append(helper.make_tensor_value_info("is_init", flag, [1]))
    outputs.append(helper.make_tensor_value_info("next,adapt_hx", number, state))
    for field, values in (("node", nodes), ("input", inputs), ("output", outputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    return model


def libraries() -> Path:
    """Fetch the page's libraries by npm into the user's cache folder, once.

    Returns:
        The folder with the files, which are packed where the page unpacks them.

    Raises:
        ValueError: If npm is missing or fails.
    """

    def fetch(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            command = ["npm", "install", "--ignore-scripts", "--prefix", name, *LIBRARIES]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise ValueError(
                    f"npm could not fetch {[*LIBRARIES]}, which a page needs: install Node.js, or"
                    f" mend {getattr(error, 'stderr', '') or error}"
                ) from error
            for package, files in LIBRARIES.items():
                source = Path(name, "node_modules", package.rpartition("@")[0])
                notes = json.loads((source / "package.json").read_text())
                with (folder / "LICENSES").open("a") as licences:
                    licences.write(f"{package}: {notes['license']}, {notes['author']}\n")
                for file in map(source.joinpath, files.split()):
                    if file.suffix == ".wasm":
                        _write_packed(folder / f"{file.name}.gz", file.read_bytes())
                    else:
                        shutil.copy(file, folder)

    versions = (package.rpartition("@")[2] for package in LIBRARIES)
    return cached_folder(f"web-{'-'.join(versions)}", fetch)
