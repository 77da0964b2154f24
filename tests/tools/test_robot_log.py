"""Logs of programs on robots are compared term by term with what training computes."""

import json
import shutil

import numpy as np
import pytest
import torch
from rsl_rl.models import RNNModel
from support.helpers import write_drawn_bundle
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.robot.robot_log import compare_log

NUM_STEPS = 60
JOINTS = ["FL_hip", "FR_hip", "FL_knee", "FR_knee"]
TERM = {"clip": None, "noisy": False, "history_length": 0, "flatten_history_dim": True}
ROBOT = {
    "observation_groups": {
        "policy": {
            "shape": [6],
            "terms": [
                {"name": "turn", "shape": [2], "scale": 0.5, **TERM},
                {"name": "angles", "shape": [4], "scale": None, **TERM},
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
    folder = tmp_path_factory.mktemp("bundle")
    write_drawn_bundle(folder, policy, obs[:1].to_dict(), NUM_STEPS, ROBOT)
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


def compared(bundle, folder, log):
    """Return the differences above the tolerance by term, in words without numbers, and notes."""
    np.savez(folder / "robot.npz", **log)
    found, notes = compare_log(bundle, folder / "robot.npz")
    return {each.name: each for each in found if each.largest > 1e-4}, notes


def test_a_program_without_fault_differs_by_rounding(bundle, tmp_path, log):
    np.savez(tmp_path / "robot.npz", **log)
    found, notes = compare_log(bundle, tmp_path / "robot.npz")
    names = ["policy/turn", "policy/angles", "actions", "actions/legs"]
    assert [each.name for each in found] == names
    assert max(each.largest for each in found) < 1e-5
    assert notes == ["obs/goal is not compared: raw/goal/TERM are not there"]
    found, notes = compared(bundle, tmp_path, {name: values[:20] for name, values in log.items()})
    assert found == {}
    assert notes[-1] == "the log has no episode start, so a missing reset cannot be detected"


def with_terms(bundle, folder, **entries):
    """Return a copy of a bundle whose group "policy" has other entries."""
    shutil.copytree(bundle, folder)
    metadata = json.loads((folder / "policy.json").read_text())
    metadata["observation_groups"]["policy"] |= entries
    (folder / "policy.json").write_text(json.dumps(metadata))
    return folder


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
    found, _ = compared(folder, tmp_path, raw | seen | {"reset": log["reset"]})
    assert found == {}
    reversed_order = parts[::-1] if order == "time" else [parts[i] for i in (1, 0, 3, 2)]
    wrong = {"obs/policy": np.concatenate(reversed_order, axis=1)}
    found, _ = compared(folder, tmp_path, raw | seen | wrong | {"reset": log["reset"]})
    assert found.keys() >= {"policy/turn", "policy/angle"}


def late(values):
    return np.concatenate([values[:1], values[:-1]])


OBSERVED = {
    "scale missing": (lambda obs: obs * [2, 2, 1, 1, 1, 1], "policy/turn", "ratio 2, offset 0"),
    "sign": (lambda obs: obs * [1, 1, 1, -1, 1, 1], "policy/angles", "ratio -1 to 1, offset 0"),
    "degrees": (lambda obs: obs * ([1] * 2 + [57.3] * 4), "policy/angles", "ratio 57.3"),
    "offset": (lambda obs: obs + np.eye(6)[5] / 2, "policy/angles", "offset 0 to 0.5"),
    "late": (late, "policy/turn", "one step late"),
}


@pytest.mark.parametrize("mistake", OBSERVED)
def test_a_mistake_in_an_observation_shows_in_its_term(bundle, tmp_path, log, mistake):
    change, name, text = OBSERVED[mistake]
    obs = change(log["obs/policy"])
    log |= recorded(Policy(bundle), obs, log["obs/goal"], log["reset"])
    found, _ = compared(bundle, tmp_path, log)
    assert found.keys() == {name} | ({"policy/angles"} if mistake == "late" else set())
    assert text in str(found[name])
    del log["obs/policy"]  # actions alone show that something differs
    assert compared(bundle, tmp_path, log)[0].keys() == {"actions"}


def test_a_mistake_with_actions_shows_there(bundle, tmp_path, log):
    obs, goal, starts = log["obs/policy"], log["obs/goal"], log["reset"]
    for change, cause in (
        (
            {"actions": recorded(Policy(bundle), obs, goal, np.arange(60) == 0)["actions"]},
            "never reset",
        ),
        ({"actions": late(log["actions"])}, "one step late"),
        ({"actions": recorded(Policy(bundle), goal, obs, starts)["actions"]}, ""),
    ):
        targets = {"targets": targets_of(change["actions"])}
        found, _ = compared(bundle, tmp_path, log | change | targets)
        assert {name: each.cause for name, each in found.items()} == {"actions": cause}
    found, _ = compared(bundle, tmp_path, log | {"targets": targets_of(log["actions"], offset=0.0)})
    assert str(found["actions/legs"]).startswith("actions/legs: largest difference 1.4")


def test_actions_alone_are_a_replay_of_the_bundles_observations(bundle, tmp_path):
    actions = np.load(bundle / "golden.npz")["actions"]
    assert compared(bundle, tmp_path, {"actions": actions})[0] == {}
    found, _ = compared(bundle, tmp_path, {"actions": late(actions)})
    assert found["actions"].cause == "one step late"


def test_a_table_is_read_as_arrays_are_and_the_tolerance_decides(bundle, tmp_path, log, capsys):
    log["targets"] = log["targets"] + np.where(np.arange(NUM_STEPS)[:, None] == 30, 5e-4, 0.0)
    columns = {"reset": log["reset"]}
    for name in log.keys() - {"reset"}:
        columns |= {f"{name}[{i}]": column for i, column in enumerate(log[name].T)}
    table = np.stack([*columns.values()], axis=1)
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", header=",".join(columns), comments="")
    words = ["verify", str(bundle), "--log", str(tmp_path / "a.csv")]
    assert [main(words), main([*words, "--tolerance", "1e-3"])] == [1, 0]
    shown = capsys.readouterr()
    assert "actions/legs: largest difference 5.0e-04" in shown.out
    assert "The log differs by more than 1.0e-04 in actions/legs." in shown.err


def only(*names):
    return lambda log: {name: log[name] for name in names}


def given(**arrays):
    return lambda log: log | arrays


def mistyped(name, found):
    return lambda log: {found if each == name else each: log[each] for each in log}


REFUSED = [
    (only("targets"), "Nothing in the log .* targets are not compared: the log or the"),
    (only("obs/policy"), "Nothing in the log .* raw/policy/TERM are not there; actions are not"),
    (only("raw/policy/turn", "raw/policy/angles"), "Nothing in the log .*: they are missing"),
    (only("reset", "actions", "raw/policy/turn"), "Nothing in the log .*: obs/policy is missing"),
    (mistyped("raw/policy/angles", "raw/policy/angels"), "angels of .* mean raw/policy/angles"),
    (mistyped("actions", "action"), "action of the log is unknown: did you mean actions"),
    (given(**{"obs/policy": np.zeros((60, 5))}), "has 5 values of float64 .*, expected 6 finite"),
    (given(actions=np.zeros((50, 4))), r"has steps .*'actions': \(50,\).*, expected the same"),
    (given(reset=np.asarray(True)), r"The log has steps .*'reset': \(\)"),
    (given(actions=np.full((60, 4), "0")), "actions of the log has 4 values of <U1"),
    (given(actions=np.full((60, 4), np.nan)), "actions of the log .*, expected 4 finite numbers"),
    (lambda log: {"actions": log["actions"][1:]}, "steps .*without observations those of golden"),
    (lambda _: {"joint_pos": np.zeros(3)}, "steps {}, expected .* of reset, obs/policy, raw/polic"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_log_that_does_not_fit_is_refused(bundle, tmp_path, log, change, message):
    with pytest.raises(ValueError, match=message):
        compared(bundle, tmp_path, change(log))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("robot.txt", "", r"expected a file that ends in \.npz or \.csv"),
        ("robot.csv", "actions[0],actions[2]\n1,2\n", r"'actions\[2\]' is out of order"),
        ("robot.csv", "actions[0]\n1,2\nx\n", r"robot\.csv' cannot be read"),
        ("robot.csv", "reset,actions[0]\n", "The log has steps .*, at least 2"),
    ],
)
def test_a_file_that_is_no_log_is_refused(bundle, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        compare_log(bundle, tmp_path / name)
