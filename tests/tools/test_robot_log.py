"""Logs of programs on robots: reading them, and faults that the logs of our tasks do not show."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from rsl_rl.models import RNNModel
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.robot.export import Recorded, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.robot_log import diagnose_log
from rsl_tbptt.tools.robot.robot_program import usual_orders

NUM_STEPS = 60
JOINTS = ["FL_hip", "FR_hip", "FL_knee", "FR_knee"]
ALL_JOINTS = {"asset_cfg": {"entity": "robot", "joint_names": JOINTS}}
TERM = {"clip": None, "noisy": False, "history_length": 0, "flatten_history_dim": True}
ROBOT = {
    "observation_groups": {
        "policy": {
            "shape": [6],
            "terms": [
                {"name": "turn", "shape": [2], "scale": 0.5, **TERM},
                {"name": "angles", "shape": [4], "scale": None, **TERM, "parameters": ALL_JOINTS},
            ],
        },
        "goal": {"shape": [6]},
    },
    "joint_names": JOINTS,
    "clip_actions": 0.05,
    "actions": [
        {"name": "legs", "kind": "JointPositionAction", "width": 4, "joint_names": JOINTS}
        | {"scale": 0.3, "offset": [0.7, 0.7, -1.4, -1.4], "clip": [[-1.41, 0.71]] * 4}
    ],
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    torch.manual_seed(0)
    obs = TensorDict({"policy": torch.randn(50, 6), "goal": torch.randn(50, 6)}, batch_size=[50])
    sizes = {"hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 8}
    groups = {"actor": ["policy", "goal"]}
    policy = RNNModel(obs, groups, "actor", 4, obs_normalization=True, **sizes)
    policy.update_normalization(obs)
    policy.eval()
    golden = draw(policy, {}, {name: obs[name][:1] for name in ("policy", "goal")}, NUM_STEPS, 0)
    folder = tmp_path_factory.mktemp("bundle")
    about = {"checkpoint": "model_1.pt", "iteration": 1}
    write_bundle(folder, Recorded(policy, golden, "drawn"), {}, ROBOT, about)
    return folder


@pytest.fixture
def log(bundle):
    """The log of a program without fault."""
    generator, policy = np.random.default_rng(0), Policy(bundle)
    raw = {"turn": generator.normal(size=(60, 2)), "angles": generator.normal(size=(60, 4))}
    goal = generator.normal(size=(60, 6))
    obs = np.concatenate([0.5 * raw["turn"], raw["angles"]], axis=1)
    starts = np.arange(60) % 20 == 0
    return {
        "reset": starts,
        **{f"raw/policy/{name}": values for name, values in raw.items()},
        **recorded(policy, obs, goal, starts),
    }


def recorded(policy, obs, goal, starts):
    actions = []
    for step in range(NUM_STEPS):
        if starts[step]:
            policy.reset()
        actions.append(policy.step({"policy": obs[step], "goal": goal[step]}))
    actions = np.stack(actions)
    return {"obs/policy": obs, "obs/goal": goal, "actions": actions, "targets": targets_of(actions)}


def targets_of(actions, offset=(0.7, 0.7, -1.4, -1.4)):
    return (actions.clip(-0.05, 0.05) * 0.3 + offset).clip(-1.41, 0.71)


def diagnosed(bundle, folder, log):
    np.savez(folder / "robot.npz", **log)
    return diagnose_log(bundle, folder / "robot.npz")


def test_a_program_without_fault_differs_by_rounding(bundle, tmp_path, log):
    found = diagnosed(bundle, tmp_path, log)
    assert found.faults == []
    assert found.differences.keys() == {"obs/policy", "actions", "targets"}
    assert max(found.differences.values()) < 1e-5
    assert found.notes == ["obs/goal is not compared: raw/goal/TERM are not there"]


def with_terms(bundle, folder, **entries):
    """Return a copy of a bundle whose group "policy" has other entries."""
    shutil.copytree(bundle, folder)
    metadata = json.loads((folder / "policy.json").read_text())
    metadata["observation_groups"]["policy"] |= entries
    (folder / "policy.json").write_text(json.dumps(metadata))
    return folder


def test_a_term_that_training_delays_may_be_late(bundle, tmp_path, log):
    log["raw/policy/turn"] = np.roll(log["raw/policy/turn"], -1, axis=0)
    assert [fault.kind for fault in diagnosed(bundle, tmp_path, log).faults] == ["late"]
    [turn, angles] = ROBOT["observation_groups"]["policy"]["terms"]
    delayed = with_terms(bundle, tmp_path / "b", terms=[turn | {"delay_max_lag": 1}, angles])
    assert diagnosed(delayed, tmp_path, log).faults == []


@pytest.mark.parametrize("order", ["term", "time"])
def test_histories_are_joined_by_term_or_by_time(bundle, tmp_path, log, order):
    turn, angle = log["raw/policy/turn"][:, :1], log["raw/policy/angles"][:, :2]
    terms = [
        TERM | {"name": "turn", "shape": [2], "scale": None, "history_length": 2},
        TERM | {"name": "angle", "shape": [4], "scale": None, "history_length": 2},
    ]
    folder = with_terms(bundle, tmp_path / "b", terms=terms, history_order=order)

    def before(values):
        return np.where(log["reset"][:, None], values, np.roll(values, 1, axis=0))

    parts = [before(turn), before(angle), turn, angle]
    parts = [parts[i] for i in ((0, 2, 1, 3) if order == "term" else range(4))]
    seen = recorded(Policy(bundle), np.concatenate(parts, axis=1), log["obs/goal"], log["reset"])
    raw = {"raw/policy/turn": turn, "raw/policy/angle": angle}
    found = diagnosed(folder, tmp_path, raw | seen | {"reset": log["reset"]})
    assert found.faults == []
    assert found.differences["obs/policy"] < 1e-6


def test_several_faults_are_told_apart(bundle, tmp_path, log):
    obs = log["obs/policy"][:, [0, 1, 3, 2, 5, 4]] * [1, 1, 1, 1, -1, 1]
    policy = Policy(bundle)
    log |= recorded(policy, obs, log["obs/goal"], np.arange(NUM_STEPS) == 0)
    log["targets"] = targets_of(log["actions"], offset=0.0)
    found = {fault.kind: fault.text for fault in diagnosed(bundle, tmp_path, log).faults}
    assert found == {
        "sign flipped": "policy/angles: the sign of FL_knee is flipped",
        "permuted": "policy/angles: in the order FR_hip, FL_hip, FR_knee, FL_knee, expected"
        " FL_hip, FR_hip, FL_knee, FR_knee",
        "not reset": "the memory is not cleared where an episode starts",
        "offset missing": "actions/legs: the offset [0.7, 0.7, -1.4, -1.4] is missing",
    }


def test_groups_that_are_joined_in_the_wrong_order_are_named(bundle, tmp_path, log):
    obs, goal = log["obs/policy"], log["obs/goal"]
    swapped = recorded(Policy(bundle), goal, obs, log["reset"])
    log |= {name: swapped[name] for name in ("actions", "targets")}
    [fault] = diagnosed(bundle, tmp_path, log).faults
    assert (fault.kind, fault.text) == (
        "swapped",
        "groups are joined in the order goal, policy, expected policy, goal",
    )


def test_the_order_of_groups_does_not_depend_on_which_were_logged(bundle, tmp_path, log):
    obs, goal = log["obs/policy"], log["obs/goal"]
    for given in ((goal, obs), (obs, goal)):
        found = log | {"actions": recorded(Policy(bundle), *given, log["reset"])["actions"]}
        del found["obs/policy"], found["targets"]
        kinds = [fault.kind for fault in diagnosed(bundle, tmp_path, found).faults]
        assert kinds == (["swapped"] if given[0] is goal else [])


def test_differences_without_a_known_fault_are_reported(bundle, tmp_path, log):
    log["actions"] = np.tanh(3.0 * log["actions"]) + 0.2
    log["targets"] = log["actions"] ** 2
    texts = [fault.text for fault in diagnosed(bundle, tmp_path, log).faults]
    assert re.match(r"actions: 4 of 4 numbers differ by .* no known fault explains it", texts[0])
    assert re.match(r"actions/legs: 4 of 4 numbers .* no known fault explains it", texts[-1])


def walk(seed, deviation=0.2):
    """Return what the sensors of a robot that moves to and fro measure, at angles about 0.8."""
    generator, time = np.random.default_rng(seed), np.arange(NUM_STEPS)[:, None]
    phases = generator.uniform(0, 7, 6)
    values = deviation * np.sin(0.4 * time + phases) + [0, 0, 0.8, 0.8, 0.8, 0.8]
    return values, generator


def noisy(values, generator, noise):
    """Read sensors."""
    return values + noise * generator.normal(size=values.shape)


def logged(bundle, readings, wrong=np.positive):
    """Return the log of a program that gives ``wrong`` angles, and reads sensors for the log."""
    (raw, read_again), starts = readings, np.arange(NUM_STEPS) % 20 == 0
    obs = np.concatenate([0.5 * raw[:, :2], wrong(raw[:, 2:])], axis=1)
    terms = {"raw/policy/turn": read_again[:, :2], "raw/policy/angles": read_again[:, 2:]}
    seen = recorded(Policy(bundle), obs, np.zeros((NUM_STEPS, 6)), starts)
    return {"reset": starts, **terms, **seen}


DIFFERENT = {
    "degrees": np.rad2deg,
    "default positions not subtracted": lambda angles: angles + np.asarray([0.1, -0.1, 0.8, -1.5]),
    "a constant": np.zeros_like,
    "of another robot": lambda angles: walk(99)[0][:, 2:],
}


@pytest.mark.parametrize("noise", [0.0, 0.005])
@pytest.mark.parametrize("wrong", DIFFERENT.values(), ids=DIFFERENT)
def test_observations_that_differ_by_more_than_noise_are_a_failure(
    bundle, tmp_path, capsys, wrong, noise
):
    values, generator = walk(0)
    readings = [noisy(values, generator, noise) for _ in range(2)]
    np.savez(tmp_path / "a.npz", **logged(bundle, readings, wrong))
    assert main(["verify", str(bundle), "--log", str(tmp_path / "a.npz")]) == 1
    assert re.search(
        r"FAULT unexplained: policy/angles: [34] of 4 numbers", capsys.readouterr().out
    )
    np.savez(tmp_path / "b.npz", **logged(bundle, readings))
    assert main(["verify", str(bundle), "--log", str(tmp_path / "b.npz")]) == 0


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_joint_that_differs_is_a_failure(bundle, tmp_path, noise):
    values, generator = walk(0)
    readings = [noisy(values, generator, noise) for _ in range(2)]
    log = logged(bundle, readings, lambda angles: angles + 0.1 * (np.arange(4) == 1))
    [fault] = diagnosed(bundle, tmp_path, log).faults
    assert fault.text.startswith("policy/angles: 1 of 4 numbers differ by up to 0.1")


def test_a_robot_that_stands_still_has_no_fault(bundle, tmp_path):
    for seed in range(8):
        values, generator = walk(seed, deviation=0.0)
        readings = [noisy(values, generator, 0.02) for _ in range(2)]
        found = diagnosed(bundle, tmp_path, logged(bundle, readings))
        assert found.faults == []
        assert "policy/turn is not compared: its noise hides it" in found.notes


@pytest.mark.parametrize("name", ["raw/policy/angles", "obs/policy"])
def test_a_spike_does_not_hide_a_fault(bundle, tmp_path, name):
    values, generator = walk(0)
    readings = [noisy(values, generator, 0.005) for _ in range(2)]
    log = logged(bundle, readings, np.negative)
    log[name][30, -1] = 1e3
    found = diagnosed(bundle, tmp_path, log)
    text = "policy/angles: the sign is flipped"
    assert [fault.text for fault in found.faults if fault.kind == "sign flipped"] == [text]


def test_an_action_scale_that_is_a_little_off_is_a_failure(bundle, tmp_path, log):
    log["targets"] = targets_of(log["actions"] * 0.25 / 0.3)
    [fault] = diagnosed(bundle, tmp_path, log).faults
    assert re.match(r"actions/legs: 4 of 4 numbers differ by up to 0.0\d+, and no", fault.text)


def test_the_tolerance_decides(bundle, tmp_path, log):
    log["targets"] = log["targets"] + np.where(np.arange(NUM_STEPS)[:, None] == 30, 5e-4, 0.0)
    np.savez(tmp_path / "a.npz", **log)
    words = ["verify", str(bundle), "--log", str(tmp_path / "a.npz")]
    assert [main(words), main([*words, "--tolerance", "1e-3"])] == [1, 0]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["targets"], "Nothing in the log .* targets are not compared: actions are missing"),
        (["obs/policy"], "Nothing in the log .* raw/policy/TERM are not there; actions are not"),
        (["raw/policy/turn", "raw/policy/angles"], "Nothing in the log .*: they are missing"),
        (["reset", "actions", "raw/policy/turn"], "Nothing in the log .*: obs/policy is missing"),
    ],
)
def test_a_log_with_nothing_to_compare_is_refused(bundle, tmp_path, log, names, message):
    with pytest.raises(ValueError, match=message):
        diagnosed(bundle, tmp_path, {name: log[name] for name in names})


@pytest.mark.parametrize(
    ("name", "mistyped"), [("raw/policy/angles", "raw/policy/angels"), ("actions", "action")]
)
def test_a_mistyped_array_is_refused(bundle, tmp_path, log, name, mistyped):
    log[mistyped] = log.pop(name)
    with pytest.raises(ValueError, match=f"{mistyped} of the log is unknown: did you mean {name}"):
        diagnosed(bundle, tmp_path, log)


LEGS = JOINTS[::-1]
"""The joints as a term orders them that selects all by name."""


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ({"parameters": {"asset_cfg": {"entity": "robot", "joint_names": LEGS}}}, "FR_hip"),
        ({"parameters": {}, "function": "joint_pos_rel"}, "FL_knee"),
        ({"parameters": {}, "function": "my_angles"}, "[2]"),
        ({"parameters": {"asset_cfg": {"entity": "arm"}}, "function": "joint_pos_rel"}, "[2]"),
        ({}, "[2]"),
    ],
)
def test_a_joint_is_named_only_where_it_is_certain(bundle, tmp_path, log, term, expected):
    [turn, angles] = ROBOT["observation_groups"]["policy"]["terms"]
    angles = {name: value for name, value in angles.items() if name != "parameters"} | term
    folder = with_terms(bundle, tmp_path / "b", terms=[turn, angles])
    log["raw/policy/angles"][:, 2] *= -1.0
    [fault] = diagnosed(folder, tmp_path, {n: v for n, v in log.items() if n != "actions"}).faults
    assert fault.text == f"policy/angles: the sign of {expected} is flipped"


def test_numbers_far_from_those_of_training_are_reported(bundle, tmp_path, log):
    obs = log["obs/policy"] + np.where(np.arange(6) == 4, 57.3, 0.0)
    log["raw/policy/angles"] = obs[:, 2:]
    log |= recorded(Policy(bundle), obs, log["obs/goal"], log["reset"])
    [note, _] = diagnosed(bundle, tmp_path, log).notes
    assert re.match(r"obs/policy\[4\] is 57.* on average, in training it was -?0\.\d", note)


def test_actions_alone_are_a_replay_of_the_bundles_observations(bundle, tmp_path):
    golden = dict(np.load(bundle / "golden.npz"))
    found = diagnosed(bundle, tmp_path, {"actions": golden["actions"]})
    assert (found.faults, found.differences["actions"] < 1e-5) == ([], True)
    late = np.roll(golden["actions"], 1, axis=0)
    assert [f.kind for f in diagnosed(bundle, tmp_path, {"actions": late}).faults] == ["late"]
    with pytest.raises(ValueError, match=r"The log has 59 steps .* expected the 60 of golden"):
        diagnosed(bundle, tmp_path, {"actions": golden["actions"][1:]})


def test_a_table_is_read_as_arrays_are(bundle, tmp_path, log, capsys):
    columns = {"reset": log["reset"]}
    for name in log.keys() - {"reset"}:
        columns |= {f"{name}[{i}]": column for i, column in enumerate(log[name].T)}
    table = np.stack([*columns.values()], axis=1)
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", header=",".join(columns), comments="")
    assert main(["verify", str(bundle), "--log", str(tmp_path / "a.csv")]) == 0
    assert "no fault" in capsys.readouterr().out
    log["targets"] *= -1
    np.savez(tmp_path / "b.npz", **log)
    assert main(["verify", str(bundle), "--log", str(tmp_path / "b.npz")]) == 1
    printed = capsys.readouterr()
    assert "FAULT sign flipped: actions/legs: the sign is flipped" in printed.out
    assert "1 fault(s)" in printed.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"obs/policy": np.zeros((60, 5))},
            "obs/policy of the log has 5 numbers per step, expected 6",
        ),
        ({"actions": np.zeros((50, 4))}, r"The log has steps .*'actions': 50.*, expected the same"),
        ({"reset": np.asarray(True)}, "reset of the log: expected numbers"),
        ({"actions": np.full((60, 4), "0")}, "actions of the log: expected numbers"),
        ({"actions": np.full((60, 4), np.nan)}, "actions of the log is not finite at step 0"),
    ],
)
def test_a_log_that_does_not_fit_is_refused(bundle, tmp_path, log, change, message):
    with pytest.raises(ValueError, match=message):
        diagnosed(bundle, tmp_path, log | change)


def test_a_file_that_is_no_log_is_refused(bundle, tmp_path):
    with pytest.raises(
        ValueError, match=r"none of the arrays .*: reset, obs/policy, raw/policy/turn"
    ):
        diagnosed(bundle, tmp_path, {"joint_pos": np.zeros(3)})
    with pytest.raises(ValueError, match=r"expected a file that ends in \.npz or \.csv"):
        diagnose_log(bundle, tmp_path / "robot.txt")
    (tmp_path / "robot.csv").write_text("actions[0],actions[2]\n1,2\n")
    with pytest.raises(ValueError, match=r"'actions\[2\]' is out of order"):
        diagnose_log(bundle, tmp_path / "robot.csv")
    (tmp_path / "robot.csv").write_text("actions[0]\n1,2\nx\n")
    with pytest.raises(ValueError, match=r"robot\.csv' cannot be read"):
        diagnose_log(bundle, tmp_path / "robot.csv")
    (tmp_path / "robot.csv").write_text("reset,actions[0]\n")
    with pytest.raises(ValueError, match=r"The log has steps .*, at least 2"):
        diagnose_log(bundle, tmp_path / "robot.csv")


def test_orders_of_joints_that_others_use():
    legs = ["FL_hip", "FL_knee", "FR_hip", "FR_knee"]
    assert {tuple(legs[i] for i in order) for order in usual_orders(legs)} == {
        ("FL_hip", "FR_hip", "FL_knee", "FR_knee"),
        ("FR_hip", "FR_knee", "FL_hip", "FL_knee"),
    }
    assert usual_orders(["hip"]) == usual_orders([]) == []
