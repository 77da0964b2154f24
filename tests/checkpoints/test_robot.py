"""Properties of the robot in a checkpoint, read from environments without a simulator.

The tests of the tasks cover Isaac Lab's and mjlab's managers.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.robot import describe_robot

OBS = TensorDict({"policy": torch.zeros(4, 7), "camera": torch.zeros(4, 1, 8, 9)}, batch_size=[4])
GROUPS = {"policy": {"shape": [7]}, "camera": {"shape": [1, 8, 9]}}


def test_an_environment_without_managers_provides_groups_and_step_time():
    wrapped = SimpleNamespace(unwrapped=SimpleNamespace(step_dt=0.02), clip_actions=100.0)
    expected = {"observation_groups": GROUPS, "step_dt": 0.02, "clip_actions": 100.0}
    assert describe_robot(wrapped, OBS) == expected
    assert describe_robot(object(), OBS) == {"observation_groups": GROUPS}


def test_an_environments_own_entries_replace_those_found():
    own = {"joint_names": ["hip", "knee"], "step_dt": 0.01}
    env = SimpleNamespace(step_dt=0.02, describe_robot=lambda: own)
    assert describe_robot(env, OBS) == {"observation_groups": GROUPS, **own}


def history_of(order):
    """A group of Isaac Lab's own manager, whose terms use every option."""
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    from isaaclab.managers import ObservationGroupCfg, ObservationManager, ObservationTermCfg
    from isaaclab.utils.modifiers import DigitalFilterCfg, ModifierCfg, scale

    def angles(env):
        return torch.ones(env.num_envs, 2)

    def speed(env):
        return torch.full((env.num_envs, 1), 5.0)

    group: Any = ObservationGroupCfg(history_length=2, history_order=order)
    doubled = ModifierCfg(func=scale, params={"multiplier": torch.tensor(2.0)})
    smooth = DigitalFilterCfg(A=[0.0], B=[0.5, 0.5])
    group.angles = ObservationTermCfg(func=angles, modifiers=[doubled, smooth], delay_max_lag=3)
    group.speed = ObservationTermCfg(func=speed, scale=0.1)
    env: Any = SimpleNamespace(num_envs=4, device="cpu", scene=None)
    env.sim = SimpleNamespace(is_playing=lambda: True)
    env.observation_manager = ObservationManager({"policy": group}, env)
    obs: Any = env.observation_manager.compute()
    return describe_robot(env, TensorDict(obs, batch_size=[4]))["observation_groups"]["policy"], obs


@pytest.mark.parametrize(
    ("order", "expected"), [("term", [1, 1, 1, 1, 0.5, 0.5]), ("time", [1, 1, 0.5, 1, 1, 0.5])]
)
def test_isaac_labs_terms_provide_modifiers_delay_and_order_of_history(order, expected):
    group, obs = history_of(order)
    assert obs["policy"][0].tolist() == pytest.approx(expected)
    assert group["history_order"] == order
    angles, speed = group["terms"]
    module = "isaaclab.utils.modifiers.modifier"
    assert angles["modifiers"] == [
        {"name": f"{module}:scale", "params": {"multiplier": 2.0}},
        {"name": f"{module}:DigitalFilter", "params": {}, "A": [0.0], "B": [0.5, 0.5]},
    ]
    assert (angles["delay_min_lag"], angles["delay_max_lag"]) == (0, 3)
    assert (speed["modifiers"], speed["delay_max_lag"], speed["scale"]) == ([], 0, 0.1)


def observed(function, **settings):
    none = dict.fromkeys(("scale", "clip", "noise"))
    told = {"func": function, "history_length": 0, "flatten_history_dim": True, **none}
    return SimpleNamespace(**told, **settings)


def described(widths, *terms, of_mjlab=False, **env):
    """Describe a robot whose policy sees some terms of some widths."""
    manager = SimpleNamespace(
        active_terms={"policy": [str(index) for index in range(len(terms))]},
        group_obs_term_dim={"policy": [(width,) for width in widths]},
    )
    if of_mjlab:
        manager.get_term_cfg = lambda _, name: terms[int(name)]
    else:
        manager._group_obs_term_cfgs = {"policy": [*terms]}
    found = describe_robot(SimpleNamespace(observation_manager=manager, **env), OBS)
    return found, found["observation_groups"]["policy"]


def test_mjlabs_terms_provide_their_delay():
    late = observed(broken, delay_min_lag=1, delay_max_lag=2)
    _, group = described([7], late, of_mjlab=True)
    [term] = group["terms"]
    assert (term["delay_min_lag"], term["delay_max_lag"], term["modifiers"]) == (1, 2, [])
    assert group["history_order"] == "term"


def broken(*args: object) -> Any:
    raise RuntimeError("no such joint")


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("describe_robot", SimpleNamespace(describe_robot=broken)),
        ("describe_robot", SimpleNamespace(describe_robot=lambda: {"a": object()})),
        (
            "(actions|joints)",
            SimpleNamespace(action_manager=SimpleNamespace(active_terms=["legs"])),
        ),
        ("observation_groups", SimpleNamespace(observation_manager=object())),
    ],
)
def test_values_that_cannot_be_read_are_named_and_do_not_end_the_training(name, env):
    with pytest.warns(UserWarning, match=rf"^{name} of SimpleNamespace could not be read"):
        found = describe_robot(env, OBS)
    assert found.keys() <= {"observation_groups"} - {name}


def base_ang_vel(env):
    return torch.zeros(4, 3)


class Phase:
    """A term that is an object, as terms that are classes become."""

    def __call__(self, env):
        return torch.zeros(4, 4)


def test_functions_of_observations_and_ranges_of_commands_are_recorded():
    ranges = SimpleNamespace(lin_vel_x=(-1.0, 1.0), heading=None)
    widest = SimpleNamespace(lin_vel_x=(-2.0, 2.0))
    commands = {
        "velocity": SimpleNamespace(cfg=SimpleNamespace(ranges=ranges)),
        "grown": SimpleNamespace(cfg=SimpleNamespace(ranges=ranges, limit_ranges=widest)),
        "motion": SimpleNamespace(),
    }
    manager = SimpleNamespace(active_terms=[*commands], get_term=commands.get)
    terms = observed(base_ang_vel), observed(Phase())
    found, group = described([3, 4], *terms, command_manager=manager)
    assert [term["function"] for term in group["terms"]] == ["base_ang_vel", "Phase"]
    assert found["command_names"] == [*commands]
    assert found["command_ranges"] == {
        "velocity": {"lin_vel_x": [-1.0, 1.0]},
        "grown": {"lin_vel_x": [-2.0, 2.0]},
    }


SELECTED = {
    "all": (slice(None), {}),
    "first": (slice(0, 1), {"joint_names": ["hip"]}),
    "by list": ([2, 0], {"joint_names": ["foot", "hip"]}),
    "by number": (1, {"joint_names": ["knee"]}),
    "by tensor, as in Isaac Lab 3.0": (torch.tensor([1, 2]), {"joint_names": ["knee", "foot"]}),
}


@pytest.mark.parametrize(("joint_ids", "expected"), SELECTED.values(), ids=SELECTED.keys())
def test_the_joints_that_a_term_selects_are_recorded_in_order(joint_ids, expected):
    """Names of joints are indices by then, in Isaac Lab and mjlab, in the order of the term."""
    params = {
        "asset_cfg": SimpleNamespace(name="robot", joint_ids=joint_ids, joint_names=["h.*"]),
        "command_name": "base_velocity",
        "function": base_ang_vel,
        "weights": torch.ones(3),
        "object": Phase(),
    }
    scene = {"robot": SimpleNamespace(joint_names=["hip", "knee", "foot"])}
    _, group = described([7], observed(base_ang_vel, params=params), scene=scene)
    [term] = group["terms"]
    assert term["parameters"] == {
        "asset_cfg": {"entity": "robot", **expected},
        "command_name": "base_velocity",
        "function": f"{__name__}:base_ang_vel",
        "weights": "torch:Tensor",
        "object": f"{__name__}:Phase",
    }


@pytest.mark.parametrize("sdk_names", [["knee", "hip"], None])
def test_the_order_of_motors_is_recorded_if_the_robots_config_has_it(sdk_names):
    zeros = torch.zeros(4, 2)
    data = SimpleNamespace(default_joint_pos=zeros, joint_stiffness=zeros, joint_damping=zeros)
    robot = SimpleNamespace(
        joint_names=["hip", "knee"],
        cfg=SimpleNamespace(joint_sdk_names=sdk_names),
        data=data,
        actuators={},
    )
    action = SimpleNamespace(_asset=robot, _joint_names=robot.joint_names, action_dim=2)
    action.cfg = SimpleNamespace(asset_name="robot")
    manager = SimpleNamespace(active_terms=["legs"], get_term=lambda _: action)
    found = describe_robot(SimpleNamespace(action_manager=manager), OBS)
    assert found["joint_names"] == ["hip", "knee"]
    assert found.get("joint_sdk_names") == sdk_names
    assert found["actions"][0]["entity"] == "robot"
