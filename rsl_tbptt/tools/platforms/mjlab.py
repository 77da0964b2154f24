"""mjlab: its own environments and commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsl_tbptt.files import ENV
from rsl_tbptt.tools.platforms import Platform, Simulation, Trained, Training
from rsl_tbptt.tools.platforms.noted import Found, noted_settings

if TYPE_CHECKING:
    import torch


CAMERA = "video_camera"
"""Name of the camera in the scene."""
SKY, HORIZON = (0.6, 0.75, 0.95), (0.95, 0.97, 1.0)

LOG_ROOT = Path("logs", "rsl_rl")
"""Where mjlab logs, below the working directory, if it is not told otherwise."""


class Mjlab(Platform):
    """mjlab, whose registered ids name task and agent."""

    TITLE = "mjlab"
    PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang")
    EXTRA = "mjlab"
    TASKS = "mjlab.tasks"
    PROGRAM = "play"

    def trained_in(self, folder: Path) -> bool:
        """Return whether the environment's config in a log folder is of mjlab's form."""
        path = folder / ENV
        # sim.mujoco; Isaac Lab's file of this name has no such section.
        return path.is_file() and "\n  mujoco:" in path.read_text("utf-8", "replace")

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Find the registered task whose agent is most like the noted one; mjlab notes no id.

        Options that a command line has changed do not matter, other classes or groups do.

        Raises:
            ValueError: If none or several tasks have such an agent.
        """
        if task is not None:
            return Trained(task, "")
        from rsl_tbptt.checkpoints.describing import agent_config

        registry, noted = _registry(), _nature(agent_config(checkpoint))
        agents = {task: asdict(registry.load_rl_cfg(task)) for task in registry.list_tasks()}
        found = [task for task, agent in agents.items() if _nature(agent) == noted]
        if len(found) != 1:
            raise ValueError(
                f"--task is missing, expected {f'one of {found}' if found else 'an id'}: mjlab does"
                f" not note it, and {len(found)} of its tasks have an agent like that next to"
                f" {checkpoint}."
            )
        return Trained(found[0], "")

    def registered_agent(self, trained: Trained) -> Mapping[str, Any]:
        """Return the agent of mjlab's registry."""
        return asdict(_registry().load_rl_cfg(trained.task))

    def noted_settings(self, folder: Path, trained: Trained) -> Found:
        """Compare the configs of a run with those of mjlab's registry."""
        registry = _registry()
        registered = {
            "agent": registry.load_rl_cfg(trained.task),
            "env": registry.load_env_cfg(trained.task),
        }
        values, others = noted_settings(folder, registered, asdict)
        experiment = folder.parent.name  # below which mjlab looks for the run
        if experiment != registered["agent"].experiment_name:
            values["agent.experiment_name"] = experiment
        return values, others

    @contextmanager
    def simulated_env(self, simulation: Simulation) -> Iterator[Any]:
        """Simulate a task.

        Raises:
            ValueError: If there are overrides, or no such task.
        """
        if simulation.overrides:
            raise ValueError(
                f"overrides is {[*simulation.overrides]}, expected none: mjlab's tasks have no"
                " presets."
            )
        registry, task = _registry(), simulation.task
        if task not in registry.list_tasks():
            raise ValueError(f"The task is '{task}', expected one of {registry.list_tasks()}.")
        cfg = registry.load_env_cfg(task)
        simulation.noted.apply(cfg, asdict)
        cfg.scene.num_envs, cfg.seed = simulation.num_envs, simulation.seed
        if simulation.image_size is not None:
            _add_camera(cfg, *simulation.image_size)
        made = import_module("mjlab.envs").ManagerBasedRlEnv(cfg, simulation.device)
        simulation.noted.warn_of_others(cfg)
        wrapper = import_module("mjlab.rl").RslRlVecEnvWrapper
        with closing(wrapper(made, clip_actions=simulation.clip_actions)) as env:
            yield env

    def renderer(self, env: Any) -> Callable[[], torch.Tensor]:
        """Return a function to the last images of the camera: (N, height, width, 3), uint8."""
        camera = env.unwrapped.scene[CAMERA]
        return lambda: camera.data.rgb

    def task_id(self, task: str, agent: str) -> str:
        """Return ``<task>-<agent>``, as mjlab has one agent per id; without an agent, the id."""
        return f"{task}-{agent}" if agent else task

    def train_command(self, training: Training, *, device: str) -> list[str]:
        """Write mjlab's `train`."""
        command = ["train", self.task_id(training.task, training.agent)]
        command += ["--env.scene.num-envs", str(training.num_envs)]
        command += ["--agent.max-iterations", str(training.iterations)]
        command += ["--agent.seed", str(training.seed), "--agent.run-name", training.run_name]
        if training.checkpoint is not None:
            command += _resume(training.checkpoint)
        for name, value in training.settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        command += ["--video", "True"] * training.video
        gpus = "None" if device == "cpu" else f"[{device.removeprefix('cuda:')}]"
        return [*command, "--gpu-ids", gpus]

    def play_command(
        self, trained: Trained, checkpoint: Path, *, num_envs: int, device: str
    ) -> list[str]:
        """Write mjlab's `play`."""
        command = ["play", trained.task, "--checkpoint-file", str(checkpoint)]
        return [*command, "--num-envs", str(num_envs), "--device", device]


PLATFORM = Mjlab()


def _registry() -> Any:
    """Return mjlab's registry of tasks, filled. It takes seconds, and only environments need it."""
    import_module("mjlab.tasks")
    return import_module("mjlab.tasks.registry")


def _nature(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an agent's config that identify it."""
    parts = {name: part for name, part in agent.items() if isinstance(part, Mapping)}
    kinds = {
        name: (part["class_name"], part.get("rnn_type"))
        for name, part in parts.items()
        if "class_name" in part
    }
    groups = {name: [*names] for name, names in parts.get("obs_groups", {}).items()}
    return {"experiment": agent.get("experiment_name"), "kinds": kinds, "groups": groups}


def _resume(checkpoint: Path) -> list[str]:
    """Return the arguments that load ``<log root>/<experiment>/<run>/<file>`` before training."""
    log_root = checkpoint.parent.parent.parent
    arguments = [] if log_root == LOG_ROOT else ["--log-root", str(log_root)]
    run = ["--agent.load-run", checkpoint.parent.name, "--agent.load-checkpoint", checkpoint.name]
    return [*arguments, "--agent.resume", "True", *run]


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
        spec.camera(CAMERA).mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACK  # follows without rotating
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
