"""EnvPool: its tasks as environments of rsl_rl, simulated on CPU cores by MuJoCo's own engine.

EnvPool starts the next episode in the step after an end, and ignores that step's action. Here it
starts at once, as rsl_rl expects. Each environment loads a model of its own, so the robots of
MuJoCo Playground are loaded without the meshes and textures that only pictures need: 0.1 to 1 MB
instead of 43 to 77 MB for each environment, and the same trajectories to the bit.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from rsl_tbptt.files import cached_folder
from rsl_tbptt.installation import install, installed_version

try:
    import envpool
except ImportError as error:
    raise ImportError(
        "rsl_tbptt.integrations.envpool needs EnvPool 1.2 and Python 3.11 or newer, and importing"
        f" it failed: {error}. Install it with: {install('envpool')}."
    ) from error

PLAYGROUND = os.path.join("mujoco", "playground")
"""Folder of MuJoCo Playground's robots among EnvPool's assets."""
RULES = 1
"""Version of what :func:`without_pictures` removes, in the name of each copy."""
REWARD = "reward_"
"""Start of the names by which EnvPool reports each term of a reward."""


class EnvPoolEnv(VecEnv):
    """Environments of one of EnvPool's tasks with continuous actions.

    A task with one observation has the group ``"obs"``, others have EnvPool's names.
    """

    def __init__(
        self,
        task: str,
        num_envs: int,
        seed: int = 0,
        device: str = "cpu",
        *,
        num_threads: int = 0,
        **settings: Any,
    ) -> None:
        """Make the environments and start an episode everywhere.

        Args:
            task: EnvPool's id, such as ``"Go1JoystickFlatTerrain-v1"``.
            num_envs: Number of environments.
            seed: Seed of all that the environments draw.
            device: Device of the tensors. The simulation runs on CPU cores.
            num_threads: Threads of the simulation. 0 leaves it to EnvPool.
            **settings: Settings of the task, such as ``orientation_scale=-1.0``.

        Raises:
            ValueError: If there is no such task, its actions are not continuous, or the machine has
                less memory than the environments need.
        """
        self.settings = _settings_of(task, settings)
        self._task, self.cfg = task, {"task": task, **settings}
        self.num_envs, self.device = num_envs, device
        self.max_episode_length = self.settings["max_episode_steps"]
        self.step_dt = self.settings.get("ctrl_dt")
        # The time limit is kept here, so that rsl_rl can spread the first episodes over it.
        self._made_with = {"num_threads": num_threads, **settings, "max_episode_steps": 2**30}
        self._made_with["base_path"] = str(without_pictures(Path(self.settings["base_path"])))
        _check_memory(lambda number: self._pool_of(number, seed), num_envs)
        self._pool: Any = None
        self.seed(seed)
        space = self._pool.action_space
        self.num_actions = space.shape[0]
        self._low, self._high = (
            torch.from_numpy(np.array(bound, np.float32)) for bound in (space.low, space.high)
        )
        limits = {*(-self._low).tolist(), *self._high.tolist()}
        self.clip_actions = max(limits) if len(limits) == 1 and math.inf not in limits else None
        """Bound of the actions, if all have the same; exports repeat it."""

    def _pool_of(self, number: int, seed: int) -> Any:
        # EnvPool's own seeds are consecutive: seeds next to each other would share environments.
        seeds = np.random.SeedSequence(seed).generate_state(number) >> 1  # EnvPool's are int32
        made_with = {"num_envs": number, "seed": seeds.tolist(), **self._made_with}
        return envpool.make_gymnasium(self._task, **made_with)

    def seed(self, seed: int) -> None:
        """Start anew with all that follows drawn from a seed."""
        self._pool = None  # frees its memory before the next one takes as much
        self._pool = self._pool_of(self.num_envs, seed)
        self.reset()

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        """Start an episode everywhere; return the first observations, batch size (N,)."""
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self._obs = self._groups(self._pool.reset()[0])
        return self._obs.clone(), {}

    def get_observations(self) -> TensorDict:
        """Return the current observations, batch size (N,), float32."""
        return self._obs.clone()

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step every environment; one that is done starts its next episode.

        Args:
            actions: Shape (N, A); they are clipped to the task's bounds.

        Returns:
            The observations, batch size (N,); rewards, shape (N,), float32; dones, shape (N,),
            int64; and extras: ``"time_outs"``, shape (N,), which is 1 where time alone ended the
            episode; ``"final_obs"``, the observations before any reset; ``"reward_terms"``, shape
            (N,) by name, as the task reports them; and ``"log"``, their means.
        """
        clipped = actions.cpu().clamp(self._low, self._high).numpy()
        obs, rewards, terminated, truncated, info = self._pool.step(clipped)
        self._obs = self._groups(obs)
        self.episode_length_buf = self.episode_length_buf + 1
        terminated, late = self._tensor(terminated), self._tensor(truncated)
        late |= self.episode_length_buf >= self.max_episode_length
        dones = terminated | late
        terms = {
            name.removeprefix(REWARD): self._tensor(values, torch.float32)
            for name, values in info.items()
            if name.startswith(REWARD)
        }
        extras = {
            "time_outs": late & ~terminated,
            "final_obs": self._obs.clone(),
            "reward_terms": terms,
            "log": {f"/reward/{name}": values.mean() for name, values in terms.items()},
        }
        if dones.any():
            ids = dones.nonzero().squeeze(1)
            first, _ = self._pool.reset(ids.cpu().numpy())
            self._obs[ids] = self._groups(first)
            self.episode_length_buf[ids] = 0
        rewards = self._tensor(rewards, torch.float32)
        return self._obs.clone(), rewards, dones.long(), extras

    def close(self) -> None:
        """Free the simulation."""
        self._pool = None

    def _groups(self, obs: np.ndarray | Mapping[str, np.ndarray]) -> TensorDict:
        groups = obs if isinstance(obs, Mapping) else {"obs": obs}
        tensors = {
            name: self._tensor(values[:, None] if values.ndim == 1 else values, torch.float32)
            for name, values in groups.items()
        }
        return TensorDict(tensors, batch_size=[len(next(iter(tensors.values())))])

    def _tensor(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Copy an array, as EnvPool may reuse its memory."""
        return torch.tensor(array, dtype=dtype, device=self.device)


def _settings_of(task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a task, those that a user gives included.

    Raises:
        ValueError: If there is no such task, it has no such setting or of another type, or its
            observations and actions do not fit rsl_rl's models.
    """
    if task not in envpool.list_all_envs():
        raise ValueError(f"task is {task!r}, expected one of envpool.list_all_envs().")
    known = envpool.make_spec(task).config._asdict()
    for name in settings:
        if name not in known or name in ("num_envs", "seed"):
            near = get_close_matches(name, known, cutoff=0.0)
            raise ValueError(f"{name} is no setting of {task}, expected a name such as {near}.")
    try:
        spec = envpool.make_spec(task, **settings)
    except TypeError as error:
        raise ValueError(f"{task} refuses the settings {settings}: {error}") from error
    space, observations = spec.gymnasium_action_space, spec.gymnasium_observation_space
    groups = getattr(observations, "spaces", {"obs": observations}).values()
    if not (
        len(space.shape or ()) == 1
        and np.issubdtype(space.dtype, np.floating)
        and spec.config.max_num_players == 1
        and all(group.shape is not None for group in groups)
    ):
        raise ValueError(
            f"{task} has the actions {space} and the observations {observations}, expected a vector"
            " of continuous actions for one player, and observations that are not nested."
        )
    return spec.config._asdict()


def without_pictures(assets: Path) -> Path:
    """Copy EnvPool's assets without what only pictures need, into the user's cache folder, once.

    Textures go, and meshes of class ``visual`` from bodies that state their inertia. All other
    files are links.

    Args:
        assets: Folder of a task's assets, its ``base_path``.

    Returns:
        The copy; the folder itself if it has no robots of MuJoCo Playground.

    Raises:
        OSError: If the cache folder cannot be written; ``XDG_CACHE_HOME`` names another.
    """
    if not (assets / PLAYGROUND).is_dir():
        return assets
    # The links are to this installation's files, of this release.
    installation = hashlib.sha256(str(assets.resolve()).encode()).hexdigest()[:8]
    release = installed_version(assets.name.replace("_", "-")) or envpool.__version__

    def fill(copy: Path) -> None:
        linked = {"copy_function": os.symlink, "dirs_exist_ok": True}
        shutil.copytree(assets.resolve(), copy, **linked)
        for robot in {path.parent for path in (copy / PLAYGROUND).rglob("*.xml")}:
            models = {path: ElementTree.parse(path) for path in robot.glob("*.xml")}
            _remove_pictures([*models.values()])
            for path, model in models.items():
                path.unlink()  # the link
                model.write(path)

    return cached_folder(f"{assets.name}-{release}-{RULES}-{installation}", fill)


def _remove_pictures(models: Sequence[Any]) -> None:
    """Remove meshes that only pictures show, and textures, from the XML files of a folder."""
    elements = [element for model in models for element in model.iter()]
    for body in elements:
        for geom in body.findall("geom") if body.find("inertial") is not None else ():
            if geom.get("class", "").startswith("visual") and geom.get("mesh"):
                body.remove(geom)
    used = {element.get("mesh") for model in models for element in model.iter()}
    for assets in (element for element in elements if element.tag == "asset"):
        for asset in list(assets):
            name = asset.get("name") or Path(asset.get("file", "")).stem
            if asset.tag == "texture" or (asset.tag == "mesh" and name not in used):
                assets.remove(asset)
            asset.attrib.pop("texture", None)


def _check_memory(pool_of: Callable[[int], Any], num_envs: int) -> None:
    """Measure the memory of a few environments if many are asked for, where the system tells.

    Raises:
        ValueError: If ``num_envs`` need more than is free.
    """
    known = Path("/proc/meminfo")
    if num_envs <= 16 or not known.exists():
        return
    amounts = dict(line.split(":") for line in known.read_text().splitlines())
    free = int(amounts["MemAvailable"].split()[0]) / 1024
    pools, resident = [pool_of(1)], resident_mb()  # the first loads the library, too
    pools.append(pool_of(4))
    of_one = (resident_mb() - resident) / 4
    if of_one * num_envs > free:
        raise ValueError(
            f"num_envs is {num_envs}, expected at most {int(free / of_one)}: an environment takes"
            f" {of_one:.0f} MB of the {free:.0f} MB that are free."
        )


def resident_mb() -> float:
    """Return the memory of this process, where the system tells."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
