"""mjlab: its own environments and commands; see ``Platform``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsl_tbptt.tools.platforms import ENV, NotedEnv, Trained, Training

if TYPE_CHECKING:
    import torch


TITLE = "mjlab"
EXTRA = "mjlab"
TASKS = "mjlab.tasks"
PROGRAM = "play"
RENDERS = True
PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang")

CAMERA = "video_camera"
"""Name of the camera in the scene."""
SKY, HORIZON = (0.6, 0.75, 0.95), (0.95, 0.97, 1.0)

LOG_ROOT = Path("logs", "rsl_rl")
"""Where mjlab logs, below the working directory, if it is not told otherwise."""


def trained_here(checkpoint: Path) -> bool:
    """Return whether the environment's config beside a checkpoint is of mjlab's form."""
    path = checkpoint.parent / ENV
    # sim.mujoco; Isaac Lab's file of this name has no such section.
    return path.is_file() and "\n  mujoco:" in path.read_text(encoding="utf-8")


def find_trained(checkpoint: Path, task: str | None = None) -> Trained:
    """Find the registered task whose agent is most like the noted one; mjlab notes no id.

    Options that a command line has changed do not matter, other classes or groups do; see
    :class:`rsl_tbptt.tools.platforms.Platform`.

    Raises:
        ValueError: If none or several tasks have such an agent.
    """
    if task is not None:
        return Trained(task, "")
    from rsl_tbptt.checkpoints.describing import agent_config

    registry, noted = _registry(), _nature(agent_config(checkpoint))
    found = [
        task
        for task in registry.list_tasks()
        if _nature(asdict(registry.load_rl_cfg(task))) == noted
    ]
    if len(found) != 1:
        raise ValueError(
            f"--task is missing, expected {f'one of {found}' if found else 'an id'}: mjlab does not"
            f" note it, and {len(found)} of its tasks have an agent like that beside {checkpoint}."
        )
    return Trained(found[0], "")


def registered_agent(trained: Trained) -> Mapping[str, Any]:
    """Return the agent of mjlab's registry; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    return asdict(_registry().load_rl_cfg(trained.task))


def _registry() -> Any:
    """Return mjlab's registry of tasks, filled. It takes seconds, and only environments need it."""
    import_module("mjlab.tasks")
    return import_module("mjlab.tasks.registry")


def _nature(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an agent's config no option on the command line usually changes."""
    parts = {name: part for name, part in agent.items() if isinstance(part, Mapping)}
    kinds = {
        name: (part["class_name"], part.get("rnn_type"))
        for name, part in parts.items()
        if "class_name" in part
    }
    groups = {name: [*names] for name, names in parts.get("obs_groups", {}).items()}
    return {"experiment": agent.get("experiment_name"), "kinds": kinds, "groups": groups}


@contextmanager
def simulated_env(
    task: str,
    *,
    num_envs: int,
    seed: int,
    device: str,
    clip_actions: float | None,
    overrides: Sequence[str],
    image_size: tuple[int, int] | None = None,
    noted: Path | None = None,
) -> Iterator[Any]:
    """Simulate a task; see :class:`rsl_tbptt.tools.platforms.Platform`.

    Raises:
        ValueError: If there are overrides, or no such task.
    """
    if overrides:
        raise ValueError(
            f"overrides is {[*overrides]}, expected none: mjlab's tasks have no presets."
        )
    registry = _registry()
    if task not in registry.list_tasks():
        raise ValueError(f"The task is '{task}', expected one of {registry.list_tasks()}.")
    env_cfg = registry.load_env_cfg(task)
    trained = None if noted is None else NotedEnv(noted)
    if trained is not None:
        trained.apply(env_cfg, asdict)
    env_cfg.scene.num_envs = num_envs
    env_cfg.seed = seed
    if image_size is not None:
        _add_camera(env_cfg, *image_size)
    made = import_module("mjlab.envs").ManagerBasedRlEnv(env_cfg, device)
    if trained is not None:
        trained.warn_of_others(env_cfg, asdict)
    env = import_module("mjlab.rl").RslRlVecEnvWrapper(made, clip_actions=clip_actions)
    try:
        yield env
    finally:
        env.close()


def _add_camera(env_cfg: Any, width: int, height: int) -> None:
    """Add a camera where mjlab's own viewer has one, rendered by Warp instead of OpenGL."""
    mujoco, sensor = import_module("mujoco"), import_module("mjlab.sensor")
    viewer, edit = env_cfg.viewer, env_cfg.scene.spec_fn
    body, (x, y, z) = _looked_at(env_cfg)
    azimuth, elevation = math.radians(viewer.azimuth), math.radians(viewer.elevation)
    flat = viewer.distance * math.cos(elevation)
    # A camera looks down. It is lifted to the horizon and more, then turned from north to there.
    lift, turn = (math.pi / 2 + elevation) / 2, (azimuth - math.pi / 2) / 2
    # mjlab renders all cameras alike, so those that a policy sees through decide.
    others = [other for other in env_cfg.scene.sensors if isinstance(other, sensor.CameraSensorCfg)]
    shared = ("use_textures", "use_shadows", "enabled_geom_groups")
    look = {name: getattr(others[0], name) for name in shared} if others else {"use_shadows": True}
    camera = sensor.CameraSensorCfg(
        name=CAMERA,
        parent_body=body,
        pos=(
            x - flat * math.cos(azimuth),
            y - flat * math.sin(azimuth),
            z - viewer.distance * math.sin(elevation),
        ),
        quat=(
            math.cos(turn) * math.cos(lift),
            math.cos(turn) * math.sin(lift),
            math.sin(turn) * math.sin(lift),
            math.sin(turn) * math.cos(lift),
        ),
        fovy=viewer.fovy,
        width=width,
        height=height,
        **look,
    )

    def edited(spec: Any) -> None:
        if edit is not None:
            edit(spec)
        spec.camera(CAMERA).mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACK  # goes along, turns not
        skybox = mujoco.mjtTexture.mjTEXTURE_SKYBOX
        if all(texture.type != skybox for texture in spec.textures):
            gradient = mujoco.mjtBuiltin.mjBUILTIN_GRADIENT
            colours = {"rgb1": SKY, "rgb2": HORIZON, "width": 32, "height": 192}
            spec.add_texture(name="sky", type=skybox, builtin=gradient, **colours)

    env_cfg.scene.sensors = (*env_cfg.scene.sensors, camera)
    env_cfg.scene.spec_fn = edited


def _looked_at(env_cfg: Any) -> tuple[str | None, tuple[float, float, float]]:
    """Return the body that the viewer follows, None for the world, and a place from its origin."""
    viewer, entities = env_cfg.viewer, env_cfg.scene.entities
    if viewer.origin_type == viewer.OriginType.WORLD:
        return None, viewer.lookat
    entity = viewer.entity_name or next(iter(entities))
    body = viewer.body_name or next(b.name for b in entities[entity].spec_fn().bodies if b.joints)
    return f"{entity}/{body}", (0.0, 0.0, 0.0)


def restart(env: Any, seed: int) -> Any:
    """Start an episode everywhere; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    env.seed(seed)
    obs, _ = env.reset()
    return obs


def step_seconds(env: Any) -> float:
    """Return the duration of a step."""
    return env.unwrapped.step_dt


def renderer(env: Any) -> Callable[[], torch.Tensor]:
    """Return a function to what the camera saw after the last step.

    Returns:
        A function to images, shape (N, height, width, 3), uint8, which the next ones overwrite.
    """
    camera = env.unwrapped.scene[CAMERA]
    return lambda: camera.data.rgb


def task_id(task: str, agent: str) -> str:
    """Return ``<task>-<agent>``: mjlab has one agent per id."""
    return f"{task}-{agent}"


def train_command(training: Training, *, device: str) -> list[str]:
    """Write mjlab's `train`; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    command = ["train", task_id(training.task, training.agent)]
    command += ["--env.scene.num-envs", str(training.num_envs)]
    command += ["--agent.max-iterations", str(training.iterations)]
    command += ["--agent.seed", str(training.seed), "--agent.run-name", training.run_name]
    if training.checkpoint is not None:
        command += _resume(training.checkpoint)
    gpus = "None" if device == "cpu" else f"[{device.removeprefix('cuda:')}]"
    return [*command, "--gpu-ids", gpus]


def _resume(checkpoint: Path) -> list[str]:
    """Return the arguments that load ``<log root>/<experiment>/<run>/<file>`` before training."""
    log_root = checkpoint.parent.parent.parent
    arguments = [] if log_root == LOG_ROOT else ["--log-root", str(log_root)]
    run = ["--agent.load-run", checkpoint.parent.name, "--agent.load-checkpoint", checkpoint.name]
    return [*arguments, "--agent.resume", "True", *run]


def play_command(trained: Trained, checkpoint: Path, *, num_envs: int, device: str) -> list[str]:
    """Write mjlab's `play`; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    command = ["play", trained.task, "--checkpoint-file", str(checkpoint)]
    return [*command, "--num-envs", str(num_envs), "--device", device]
