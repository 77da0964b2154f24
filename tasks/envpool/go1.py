"""Unitree Go1 follows a commanded velocity, with what a real robot lacks and suffers from.

Robot, terrain and reward terms are MuJoCo Playground's, simulated by EnvPool at 50 Hz. The student
sees the robot's sensors with Playground's noise, and not the velocity of its base. The teacher sees
everything, without noise, too.

With :class:`Faults` each episode draws what is wrong with its robot::

    policy -> actions, late by 0 or 1 steps -> times the motors' gains, plus pushes -> robot
    robot -> sensors, plus offsets and bias -> now and then silent -> late by 0 to 2 steps -> policy

The teacher sees what is wrong with the motors, and sensors without faults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rsl_tbptt.integrations.envpool import PLAYGROUND, EnvPoolEnv

WEIGHTS = {
    "action_rate_scale": -0.05,
    "tracking_lin_vel_scale": 1.5,
    "tracking_ang_vel_scale": 0.75,
    "termination_scale": -50.0,
    "dof_pos_limits_scale": -0.2,
    "energy_scale": -2e-4,
    "feet_clearance_scale": -0.2,
    "feet_height_scale": 0.0,
    "feet_slip_scale": -0.02,
    "stand_still_scale": -0.3,
    "torques_scale": -5e-5,
}
"""Weights that are not Playground's own. Tracking counts more, effort and style of gait less.
A fall costs: Playground cuts the sum of a step's terms at 0, so that falls are free."""
ACTION_LIMITS_SCALE = -0.1
"""Weight of the square of what actions are beyond 1 and -1, which the robot does not see."""
REWARD_GAIN = 0.1
"""Of the sum of a step's terms."""
JOINTS = tuple(
    f"{leg}_{joint}_joint" for leg in ("FR", "FL", "RR", "RL") for joint in ("hip", "thigh", "calf")
)
DEFAULT_JOINT_POS = (0.1, 0.9, -1.8, -0.1, 0.9, -1.8) * 2
POLICY = """
    base_ang_vel/gyro:3 projected_gravity:3 joint_pos_rel:12 joint_vel_rel:12 last_action:12
    generated_commands:3
"""
PRIVILEGED = """
    builtin_sensor/local_linvel:3 builtin_sensor/gyro:3 projected_gravity:3 joint_pos_rel:12
    joint_vel_rel:12 arrived_before:12 generated_commands:3 builtin_sensor/gyro:3
    builtin_sensor/accelerometer:3 projected_gravity:3 builtin_sensor/local_linvel:3
    builtin_sensor/global_angvel:3 joint_pos_rel:12 joint_vel_rel:12 actuator_force:12
    feet_contact:4 builtin_sensor/FR_global_linvel:3 builtin_sensor/FL_global_linvel:3
    builtin_sensor/RR_global_linvel:3 builtin_sensor/RL_global_linvel:3 feet_air_time:4 zeros:4
    last_action:12 action_before:12
"""
FAULTY_MOTORS = "motor_gain:12 zeros:13"
"""Terms of the groups in order: functions of mjlab and of the page in the browser, MuJoCo's
sensors, widths. Zeros are pushes and delays of actions, which the page has none of."""
FEET, AXES = ("FR", "FL", "RR", "RL"), ("lin_vel_x", "lin_vel_y", "ang_vel_z")
ROBOT = f"{PLAYGROUND}/assets/mujoco_playground/_src/locomotion/go1/xmls"
LICENSE = f"{PLAYGROUND}/assets/mujoco_menagerie/unitree_go1/LICENSE"
"""Folder of the robot's models among EnvPool's assets, and the licence of its meshes."""
SENSED, GYRO, ENCODERS = slice(3, 33), slice(0, 3), slice(6, 18)
"""Sensors in Playground's ``state``: gyro, gravity, joint angles and velocities. Two of them."""
COMMAND = slice(45, 48)
"""In Playground's ``state``."""
TRUE_VELOCITY = slice(57, 59)
"""The base's velocity in the plane in Playground's ``privileged_state``."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with the robots: bounds of what each episode draws uniformly."""

    joint_offset: float = 0.05
    """Error of each encoder, up to plus or minus this, in rad."""
    gyro_bias: float = 0.1
    """Error of the gyro in each direction, in rad/s."""
    observation_delay: int = 2
    """Steps of 20 ms by which all sensors are late, from 0."""
    silence: int = 0
    """Steps for which all sensors show their last values, once in 2 s on average."""
    motor_gain: tuple[float, float] = (0.8, 1.1)
    """Share of a commanded change of a joint's target that arrives, for each motor."""
    action_delay: int = 1
    """Steps by which all actions are late, from 0."""
    push: float = 0.3
    """Standard deviation of what is added to every action at a push, once in 2 s on average. It
    fades by a fifth in each step."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is not in its range.
        """
        if not 0.0 < self.motor_gain[0] <= self.motor_gain[1]:
            raise ValueError(f"motor_gain is {self.motor_gain}, expected 0 < lowest <= highest.")
        for name, value in vars(self).items():
            if name != "motor_gain" and not value >= 0:
                raise ValueError(f"{name} is {value}, expected at least 0.")

    @property
    def in_motors(self) -> bool:
        """Whether anything is wrong with what actions do, which a teacher has to see."""
        return tuple(self.motor_gain) != (1.0, 1.0) or self.action_delay > 0 or self.push > 0.0


def _terms(words: str) -> list[dict[str, Any]]:
    """Describe the terms of an observation from words ``FUNCTION[/SENSOR]:WIDTH``."""
    plain = {"modifiers": [], "scale": None, "clip": None}
    plain |= {"history_length": 0, "flatten_history_dim": True}
    terms = []
    for word in words.split():
        function, width = word.split(":")
        name, _, sensor = function.partition("/")
        sensors = {"feet_contact": {"sensor_names": [f"{foot}_floor_found" for foot in FEET]}}
        parameters = {"sensor_name": sensor} if sensor else sensors.get(name, {})
        term = {"name": sensor or name, "function": name, "shape": [int(width)]}
        terms.append({**term, **plain, "parameters": parameters})
    return terms


FAULTLESS = Faults(
    joint_offset=0.0,
    gyro_bias=0.0,
    observation_delay=0,
    motor_gain=(1.0, 1.0),
    action_delay=0,
    push=0.0,
)
PER_STEP = 0.01
"""Probability of a push, and of a silence, in a step."""


class Go1Env(EnvPoolEnv):
    """Go1 with the observation groups ``"policy"`` and ``"privileged"``.

    A step of ``"policy"`` has 45 numbers: 30 of the sensors, the last action, the command. The
    steps of a history follow each other, the oldest first. ``"privileged"`` is Playground's
    ``privileged_state`` and the last two actions; with faults in the motors the gains, the push and
    the delay of the actions, too.
    """

    def __init__(
        self,
        terrain: str,
        num_envs: int,
        seed: int = 0,
        device: str = "cpu",
        *,
        faults: Faults = FAULTLESS,
        history: int = 1,
        gentle_steps: int = 0,
        **options: Any,
    ) -> None:
        """Make the environments.

        Args:
            terrain: ``"Flat"`` or ``"Rough"``.
            num_envs: Number N of environments.
            seed: Seed of all that is drawn.
            device: Device of the tensors.
            faults: What is wrong with the robots.
            history: Steps that the policy sees.
            gentle_steps: Steps in which penalties grow from a fifth to their full weight. With
                full ones a robot that cannot walk yet learns to stand still.
            **options: Fields of the faults that differ, options of :class:`EnvPoolEnv`, and
                settings of the task.

        Raises:
            ValueError: If one of them is unknown or out of its range.
        """
        bounds = {field.name for field in fields(Faults)} & options.keys()
        self.faults = replace(faults, **{name: options.pop(name) for name in bounds})
        if history < 1:
            raise ValueError(f"history is {history}, expected at least 1.")
        self.history, self._gentle_steps = history, gentle_steps
        self.common_step_counter = 0
        """Steps so far, under the name by which a checkpoint keeps it."""
        self._terrain, task = terrain, f"Go1Joystick{terrain}Terrain-v1"
        super().__init__(task, num_envs, seed, device, **{**WEIGHTS, **options})

    def seed(self, seed: int) -> None:
        """Start anew with all that follows drawn from a seed."""
        # Apart, so that pushes do not depend on which robots have fallen.
        self._of_episodes, self._of_steps = (
            torch.Generator().manual_seed(int(drawn))
            for drawn in np.random.SeedSequence(seed).generate_state(2)
        )
        super().seed(seed)

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        """Start an episode everywhere; return the first observations, batch size (N,)."""
        raw, _ = super().reset()
        n = self.num_envs
        self._offset, self._bias, self._gain = (torch.empty(n, width) for width in (12, 3, 12))
        self._sensors_late, self._actions_late = torch.empty(2, n, dtype=torch.long)
        self._silent, self._push = torch.empty(n), torch.empty(n, 12)
        # The newest first.
        self._sent = torch.empty(self.faults.action_delay + 2, n, 12)
        self._sensed = torch.empty(self.history + self.faults.observation_delay, n, 45)
        self._begin(torch.arange(n), raw)
        return self._seen(raw), {}

    def get_observations(self) -> TensorDict:
        """Return the current observations, batch size (N,), float32."""
        return self._seen(super().get_observations())

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step every environment, as :class:`EnvPoolEnv` does.

        Args:
            actions: Changes of the joints' targets in units of 0.5 rad. Shape: (N, 12).

        Returns:
            What :class:`EnvPoolEnv` returns, with another reward: the sum of all terms times
            :data:`REWARD_GAIN`. The extras also have ``"velocity_error"`` in the plane, shape (N,),
            in m/s.
        """
        faults, robots = self.faults, torch.arange(self.num_envs)
        self._sent = torch.cat((actions.cpu().clamp(-1.0, 1.0)[None], self._sent[:-1]))
        pushed = self._happens()[:, None]
        drawn = faults.push * torch.randn(self._push.shape, generator=self._of_steps)
        self._push = torch.where(pushed, drawn, 0.8 * self._push)
        arriving = self._sent[self._actions_late, robots] * self._gain + self._push
        _, _, dones, extras = super().step(arriving)
        last = extras["final_obs"]
        # The reward is for the command before the step, after which a new one may be drawn.
        commanded, velocity = self._sensed[0, :, 42:44], last["privileged_state"][:, TRUE_VELOCITY]
        error = (velocity.cpu() - commanded).norm(dim=-1).to(self.device)
        self._sense(last, self._silent > 0)
        self._silent = torch.where(self._happens(), float(faults.silence), self._silent - 1.0)
        extras |= {"final_obs": self._seen(last), "velocity_error": error}
        beyond = (actions.abs() - 1.0).clamp(min=0.0).square().sum(-1)
        terms = {**extras["reward_terms"], "action_limits": ACTION_LIMITS_SCALE * beyond}
        extras["reward_terms"] = {name: REWARD_GAIN * term for name, term in terms.items()}
        terms = torch.stack([*extras["reward_terms"].values()])
        walked, gentle = self.common_step_counter, self._gentle_steps
        penalties = 0.2 + 0.8 * walked / gentle if walked < gentle else 1.0
        rewards = (terms.clamp(min=0.0) + penalties * terms.clamp(max=0.0)).sum(0)
        self.common_step_counter += 1
        first = super().get_observations()
        if (begins := dones.nonzero().squeeze(1).cpu()).numel():
            self._begin(begins, first)
        return self._seen(first), rewards, dones, extras

    def describe_robot(self) -> dict[str, Any]:
        """Return what bundles and pages tell of the robot; see ``checkpoints/robot.py``."""
        policy: dict[str, Any] = {"shape": [45 * self.history]}
        if self.history == 1:  # each step has all terms, and a history would be of one term
            policy["terms"] = self._policy_terms()
        privileged = _terms(PRIVILEGED + FAULTY_MOTORS * self.faults.in_motors)
        width = sum(term["shape"][0] for term in privileged)
        action = {"name": "joint_pos", "kind": "JointPositionAction", "width": 12}
        gains = {name: [self.settings[name]] * 12 for name in ("action_scale", "kp", "kd")}
        scaled = {"scale": gains["action_scale"], "offset": DEFAULT_JOINT_POS}
        action |= {"joint_names": JOINTS, **scaled}
        limits = (self.settings[f"command_a{axis}"] for axis in range(3))
        ranges = {axis: [-limit, limit] for axis, limit in zip(AXES, limits, strict=True)}
        return {
            "observation_groups": {
                "policy": policy,
                "privileged": {"shape": [width], "terms": privileged},
            },
            "actions": [action],
            "joint_names": JOINTS,
            "default_joint_pos": DEFAULT_JOINT_POS,
            "joint_stiffness": gains["kp"],
            "joint_damping": gains["kd"],
            "command_names": ["twist"],
            "command_ranges": {"twist": ranges},
        }

    def _policy_terms(self) -> list[dict[str, Any]]:
        """Return the terms of a step of the group ``"policy"``, with their noise and errors."""
        sensed = {
            "base_ang_vel": ("noise_gyro", self.faults.gyro_bias),
            "projected_gravity": ("noise_gravity", 0.0),
            "joint_pos_rel": ("noise_joint_pos", self.faults.joint_offset),
            "joint_vel_rel": ("noise_joint_vel", 0.0),
        }
        terms, level = _terms(POLICY), self.settings["noise_level"]
        for term in terms:
            if term["function"] in sensed:
                noise, error = sensed[term["function"]]
                term |= {"noise": level * self.settings[noise], "error": error}
                term["delay_max_lag"] = self.faults.observation_delay
        return terms

    def mujoco_spec(self) -> Any:
        """Return the robot and its ground as a ``mujoco.MjSpec``, as EnvPool simulates them."""
        assets = Path(self.settings["base_path"])
        file = assets / ROBOT / f"scene_mjx_feetonly_{self._terrain.lower()}_terrain.xml"
        spec = import_module("mujoco").MjSpec.from_file(str(file))
        spec.comment = (assets / LICENSE).read_text()
        spec.option.timestep = self.settings["sim_dt"]
        for actuator in spec.actuators:
            actuator.gainprm[0], actuator.biasprm[1] = self.settings["kp"], -self.settings["kp"]
        for joint in spec.joints[1:]:  # the first is the base's
            joint.damping[0] = self.settings["kd"]
        return spec

    def _begin(self, ids: torch.Tensor, raw: TensorDict) -> None:
        """Draw what is wrong with robots whose episodes begin, and clear their past."""
        faults = self.faults

        def uniform(width: int, low: float, high: float) -> torch.Tensor:
            return low + (high - low) * torch.rand(len(ids), width, generator=self._of_episodes)

        def up_to(steps: int) -> torch.Tensor:
            return torch.randint(steps + 1, (len(ids),), generator=self._of_episodes)

        self._offset[ids] = uniform(12, -faults.joint_offset, faults.joint_offset)
        self._bias[ids] = uniform(3, -faults.gyro_bias, faults.gyro_bias)
        self._gain[ids] = uniform(12, *faults.motor_gain)
        self._sensors_late[ids] = up_to(faults.observation_delay)
        self._actions_late[ids] = up_to(faults.action_delay)
        self._silent[ids], self._push[ids], self._sent[:, ids] = 0.0, 0.0, 0.0
        self._sensed[:, ids] = self._measured(raw)[ids]

    def _sense(self, raw: TensorDict, silent: torch.Tensor) -> None:
        """Note what the sensors show after a step."""
        now = self._measured(raw)
        now[:, :30] = torch.where(silent[:, None], self._sensed[0, :, :30], now[:, :30])
        self._sensed = torch.cat((now[None], self._sensed[:-1]))

    def _measured(self, raw: TensorDict) -> torch.Tensor:
        """Return sensors with their errors, last action and command. Shape: (N, 45)."""
        state = raw["state"].cpu()
        measured = state[:, SENSED].clone()
        measured[:, GYRO] += self._bias
        measured[:, ENCODERS] += self._offset
        return torch.cat((measured, self._sent[0], state[:, COMMAND]), dim=-1)

    def _seen(self, raw: TensorDict) -> TensorDict:
        """Return what student and teacher see, batch size (N,)."""
        steps = torch.arange(self.history)[:, None]
        late = self._sensed[steps + self._sensors_late, torch.arange(self.num_envs)]
        known = self._sensed[: self.history]
        policy = torch.cat((late[..., :30], known[..., 30:]), dim=-1)  # (history, N, 45)
        privileged = [raw["privileged_state"], self._sent[0], self._sent[1]]
        if self.faults.in_motors:
            privileged += [self._gain, self._push, self._actions_late[:, None].float()]
        groups = {
            "policy": policy.flip(0).transpose(0, 1).flatten(1).to(self.device),
            "privileged": torch.cat([part.to(self.device) for part in privileged], dim=-1),
        }
        return TensorDict(groups, batch_size=[self.num_envs])

    def _happens(self) -> torch.Tensor:
        """Draw for each environment whether something rare happens in a step."""
        return torch.rand(self.num_envs, generator=self._of_steps) < PER_STEP
