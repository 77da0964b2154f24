"""Pages for the browser: the scene, the carried state, and which robots are refused."""

import copy
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("envpool", reason="EnvPool needs Python 3.11")

from rsl_tbptt.checkpoints.robot import describe_robot
from rsl_tbptt.deploy import read_metadata
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import load_platform
from rsl_tbptt.tools.robot import scene, web
from rsl_tbptt.tools.robot.verify import read_golden
from rsl_tbptt_tasks.envpool.go1 import Faults, Go1Env

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDENT = EXAMPLES / "go1_real_student"


@pytest.fixture(scope="module")
def env():
    return Go1Env("Flat", 1, faults=Faults(), num_threads=1)


@pytest.fixture(scope="module")
def robot(env):
    return describe_robot(env, env.get_observations())


@pytest.fixture(scope="module")
def model(env):
    return env.mujoco_spec().compile()


@pytest.fixture
def without_npm(monkeypatch, tmp_path):
    """Let pages have no libraries, which are npm's."""
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(web, "libraries", lambda: tmp_path / "lib")


def test_the_page_has_files_for_each_policy_and_is_written_again(tmp_path, without_npm):
    page, title = tmp_path / "page", f"A student={STUDENT}"
    for titles in ([title, f"{EXAMPLES / 'go1_real_memoryless'}"], [title]):
        assert main(["web", *titles, "--output", str(page)]) == 0
    config = json.loads((page / "robot.json").read_text())
    [policy] = config["policies"]
    assert (policy["title"], policy["carried"]) == ("A student", 512)
    assert [term["width"] for term in policy["inputs"]["policy"]] == [3, 3, 12, 12, 12, 3]
    assert (config["step_dt"], config["substeps"], config["forward"]) == (0.02, 5, False)
    for file in ("index.html", "page.js", "robot.js", "scene.xml.gz", policy["file"]):
        assert (page / file).is_file()


def test_a_title_is_refused_that_two_policies_have(tmp_path, without_npm, capsys):
    words = ["web", str(STUDENT), str(STUDENT), "--output", str(tmp_path / "page")]
    assert main(words) == 1
    assert "Two policies have the title 'go1_real_student'" in capsys.readouterr().err


def test_another_program_s_folder_is_not_touched(tmp_path, without_npm, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    assert main(["web", str(STUDENT), "--output", str(tmp_path / "mine")]) == 1
    assert "which this command has not written" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["index.html"]


@pytest.mark.parametrize("level", [0, 1])
def test_one_file_moves_as_the_simulator_s_model(env, level):
    spec = env.mujoco_spec()
    text = scene.one_file(spec)
    assert "Unitree" in text.partition("<mujoco")[0]  # the licence of the meshes
    assert "file=" not in text
    mujoco: Any = import_module("mujoco")
    models = env.mujoco_spec().compile(), mujoco.MjModel.from_xml_string(text)
    positions = []
    for model in models:
        generator, data = np.random.default_rng(level), mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        for _ in range(100):
            data.ctrl = model.key_ctrl[0] + 0.2 * generator.standard_normal(12)
            mujoco.mj_step(model, data, 5)
        positions.append(data.qpos.copy())
    np.testing.assert_allclose(*positions, atol=1e-9)
    assert models[1].mesh_facenum.max() <= scene.FACES < models[0].mesh_facenum.max()


def test_the_carried_state_acts_as_the_bundle_does_until_it_is_cleared():
    golden, metadata = read_golden(STUDENT / "golden.npz"), read_metadata(STUDENT)
    carrying = web.with_carried_state(onnx.load(STUDENT / "policy.onnx"), metadata)
    onnx.checker.check_model(carrying, full_check=True)
    session = onnxruntime.InferenceSession(carrying.SerializeToString())
    state, actions = np.full((1, 512), 7.0, np.float32), []
    for starts, obs in zip(golden["reset"], golden["obs/policy"], strict=True):
        feeds = {"policy": obs[None], "adapt_hx": state, "is_init": np.array([starts])}
        found, state = map(np.asarray, session.run(["actions", "next,adapt_hx"], feeds))
        actions.append(found[0])
    np.testing.assert_allclose(actions, golden["actions"], atol=1e-5)


def test_a_policy_without_memory_stays_as_it_is():
    folder = EXAMPLES / "go1_real_memoryless"
    network = onnx.load(folder / "policy.onnx")
    assert web.with_carried_state(copy.deepcopy(network), read_metadata(folder)) == network


def test_the_page_knows_the_functions_that_are_let_through():
    [body] = re.findall(
        r"const TERMS = \{\n(.*?)^\};", (web.PAGE / "robot.js").read_text(), re.S | re.M
    )
    assert sorted(re.findall(r"^  (\w+):", body, re.M)) == sorted(web.FUNCTIONS)


@pytest.mark.parametrize(
    ("lack", "change"),
    [
        ("positions of joints as actions", lambda r, _: r["actions"][0].update(kind="Effort")),
        ("known scales and offsets", lambda r, _: r["actions"][0].update(offset=None)),
        ("no clips of targets", lambda r, _: r["actions"][0].update(clip=[-1.0, 1.0])),
        ("a velocity in the plane", lambda r, _: r.pop("command_ranges")),
        ("a known step_dt", lambda r, _: r.pop("step_dt")),
        ("one base that moves freely", lambda _, m: m.jnt_type.__setitem__(0, 3)),
        ("motors that MuJoCo moves", lambda _, m: m.actuator_biasprm.__setitem__((0, 1), 0.0)),
    ],
)
def test_a_robot_that_a_page_cannot_move_is_refused(robot, model, lack, change):
    robot, model = copy.deepcopy(robot), copy.copy(model)
    assert web._moved(robot, model)["actions"]["actuators"] == [*range(12)]
    change(robot, model)
    with pytest.raises(ValueError, match=f"A page cannot simulate this robot, expected {lack}"):
        web._moved(robot, model)


@pytest.mark.parametrize(
    "change",
    [
        lambda group: group["terms"][0].update(function="height_scan"),
        lambda group: group["terms"][0].update(modifiers=["filter"]),
        lambda group: group["terms"][0].update(parameters={"sensor_name": "radar"}),
        lambda group: group.update(history_order="time"),
        lambda group: group.update(shape=[46]),
        lambda group: group.pop("terms"),
    ],
)
def test_observations_that_a_page_cannot_compute_are_refused(robot, model, change):
    robot = copy.deepcopy(robot)
    assert len([*web._terms("It", [45], "policy", robot, model)]) == 6
    change(robot["observation_groups"]["policy"])
    with pytest.raises(ValueError, match="no height scans and no images"):
        list(web._terms("It", [45], "policy", robot, model))


def test_a_sensor_without_noise_may_be_wrong(robot, model):
    robot = copy.deepcopy(robot)
    for term in robot["observation_groups"]["policy"]["terms"]:
        for name in ("noise", "parameters", "modifiers", "clip"):
            term.pop(name, None)
    first, *_, last = web._terms("It", [45], "policy", robot, model)
    assert (first["noise"], first["error"]) == (0.0, 0.1)
    assert "noise" not in last


def test_rough_ground_is_refused_before_a_file_is_written(tmp_path, without_npm, capsys):
    output = tmp_path / "page"
    words = ["web", str(STUDENT), "--task", "Tbptt-Go1-Rough-Real", "--output", str(output)]
    assert main(words) == 1
    assert "The ground has 1 fields of heights, expected flat ground" in capsys.readouterr().err
    assert [*output.iterdir()] == []


@pytest.mark.parametrize("name", ["isaaclab", "envpool", "rsl_rl"])
def test_a_simulation_without_mujoco_s_model_is_refused(name):
    platform = load_platform(name)
    with pytest.raises(ValueError, match=f"{platform.TITLE} simulates object without telling"):
        platform.mujoco_spec(object())


def test_missing_libraries_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"npm could not fetch .*three@.* install Node.js"):
        web.libraries()
    assert not any((tmp_path / "rsl_tbptt").iterdir())
