"""The page with a robot, in a browser: it computes what training and bundles compute."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.bundle import LoneBundle
from rsl_tbptt.tools.robot.verify import read_golden
from rsl_tbptt.tools.robot.web import write_page
from rsl_tbptt.tools.run import read_run
from rsl_tbptt.tools.simulate.policies import build_policy
from rsl_tbptt_tasks.envpool.go1 import Go1Env
from scripts.ci.site_looks import chromium, look, served

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDENT, MLP = EXAMPLES / "go1_real_student", EXAMPLES / "go1_real_memoryless"
SUPPORT = Path(__file__).parents[1] / "support"
TEACHER = EXAMPLES / "go1_real_teacher" / "model_899.pt"
LSTM, MEMORYLESS, KNOWS = range(3)
"""Places in the menu."""
SEED = "let seed = 1; Math.random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;"
SETTINGS = "Object.assign(robot, { errors: 0, late: 0, forgets: false, gain: 1 });"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the folder of a page with the three policies of the study."""
    bundles = {"LSTM student": LoneBundle(STUDENT), "MLP student": LoneBundle(MLP)}
    return write_page(
        {**bundles, "Teacher": read_run(TEACHER)}, tmp_path_factory.mktemp("page") / "push_it"
    )


@pytest.fixture(scope="module")
def driver():
    with chromium() as driver:
        driver.set_script_timeout(300)
        yield driver


@pytest.fixture(scope="module")
def address(page):
    with served(page) as address:
        yield address


@pytest.fixture
def run(driver, address):
    return runner(driver, address)


def runner(driver, address):
    """Return a function that runs JavaScript with a robot, in a tab without its picture."""
    driver.get(f"{address}/robot.json")

    def run(code, *values):
        loaded = f"const {{ load }} = await import('{address}/robot.js'); {SEED}"
        return driver.execute_async_script(
            f"const [values, done] = [arguments[0], arguments[1]]; (async () => {{ {loaded}"
            f" const robot = window.robot ??= await load(); {SETTINGS} {code} }})()"
            ".then((value) => done({ value }), (error) => done({ error: error.stack }));",
            values,
        )["value"]

    return run


REPLAY = """
const [policy, steps] = values, [actions, memories] = [[], []];
robot.start(robot.config.policies[policy]);
for (const { reset, obs } of steps) {
  if (reset) robot.begin();
  actions.push(await robot.act(obs));
}
return actions;
"""


@pytest.mark.parametrize(("place", "bundle"), [(LSTM, STUDENT), (MEMORYLESS, MLP)])
def test_actions_on_a_golden_trajectory_are_the_bundle_s(run, place, bundle):
    golden = read_golden(bundle / "golden.npz")
    steps = [
        {"reset": bool(reset), "obs": {"policy": obs.tolist()}}
        for reset, obs in zip(golden["reset"], golden["obs/policy"], strict=True)
    ]
    np.testing.assert_allclose(run(REPLAY, place, steps), golden["actions"], atol=1e-4)


ROLLOUT = """
const [policy, { qpos, qvel, commands, gain, actions }] = values;
robot.start(robot.config.policies[policy]);
robot.begin();
robot.data.qpos.set(qpos);
robot.data.qvel.set(qvel);
robot.mujoco.mj_forward(robot.model, robot.data);
robot.gain = gain;
const [seen, acted] = [[], []];
robot.act = async (obs) => {
  seen.push(Object.values(obs).flat());
  acted.push(await Object.getPrototypeOf(robot).act.call(robot, obs));
  return actions[acted.length - 1];
};
for (robot.command of commands) await robot.step();
delete robot.act;
return { seen, acted };
"""


def start_of(first, spec):
    """Return positions and velocities at the start of an episode, from what the teacher sees.

    The robot stands level, turned by a random angle, and moves at random.
    """
    seen = first["privileged"][0].double().numpy()
    gyro, velocity, angular = seen[48:51], seen[57:60], seen[60:63]
    turn = np.arctan2(angular[1], angular[0]) - np.arctan2(gyro[1], gyro[0])
    sine, cosine = np.sin(turn), np.cos(turn)
    turned = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    qpos = spec.compile().key_qpos[0].copy()
    qpos[3:7] = np.cos(turn / 2), 0, 0, np.sin(turn / 2)
    of_base = velocity - np.cross(gyro, spec.site("imu").pos)
    return qpos, np.concatenate((turned @ of_base, gyro, np.zeros(12)))


@pytest.mark.parametrize("place", [LSTM, KNOWS])
def test_the_page_sees_and_does_what_training_does(run, place):
    # Gains other than 1, because the teacher sees them.
    settings = {"noise_level": 0.0, "motor_gain": (0.9, 0.9), "action_delay": 0, "push": 0.0}
    errors = {"joint_offset": 0.0, "gyro_bias": 0.0, "observation_delay": 0}
    env = Go1Env("Flat", 1, 3, num_threads=1, **settings, **errors)
    obs = env.get_observations()
    qpos, qvel = start_of(obs, env.mujoco_spec())
    group = "policy" if place == LSTM else "privileged"
    student = Policy(STUDENT)
    teacher = build_policy(read_run(TEACHER), obs=obs)
    seen, actions, commands = [], [], []
    for _ in range(100):
        seen.append(obs[group][0].numpy())
        commands.append(obs["policy"][0, -3:].tolist())
        with torch.inference_mode():
            acted = student.step(seen[-1]) if place == LSTM else teacher(obs)[0].numpy()
        actions.append(acted)
        obs, _, dones, _ = env.step(torch.from_numpy(acted)[None])
        assert not dones.any()
    start = {"qpos": qpos.tolist(), "qvel": qvel.tolist(), "gain": 0.9}
    start |= {"actions": np.stack(actions).tolist(), "commands": commands}
    found = run(ROLLOUT, place, start)
    np.testing.assert_allclose(found["seen"], seen, atol=1e-4)
    np.testing.assert_allclose(found["acted"], actions, atol=1e-4)


WALK = """
const [policy, forgets, late, errors] = values;
Object.assign(robot, { forgets, late, errors, command: [0.5, 0, 0] });
robot.start(robot.config.policies[policy]);
let [error, falls] = [0, 0];
for (let step = 0; step < 500; step++) {
  await robot.step();
  falls += robot.hasFallen;
  if (step >= 250) error += robot.trackingError / 250;
}
const [x, y] = robot.data.qpos;
return { x, y, error, falls };
"""


@pytest.mark.parametrize("place", [LSTM, MEMORYLESS, KNOWS])
def test_policies_walk_for_ten_seconds(run, place):
    walked = run(WALK, place, False, 0, 0.0)
    assert walked["x"] > 4.0
    assert walked["falls"] == 0
    assert walked["error"] < 0.15


def test_without_memory_the_lstm_does_not_follow_the_command(run):
    remembers, forgets = (run(WALK, LSTM, forgets, 1, 1.0) for forgets in (False, True))
    assert remembers["x"] > 4.0
    assert remembers["error"] < 0.2
    assert forgets["error"] > 0.4


PULLED = """
const [policy, distance] = values;
robot.start(robot.config.policies[policy]);
robot.begin();
Object.assign(robot, { command: [0, 0, 0] });
robot.pull.select = robot.config.base;
robot.pull.refselpos.set([0, distance, robot.data.qpos[2]]);
for (let step = 0; step < 25; step++) await robot.step();
robot.pull.select = 0;
return robot.data.qpos[1];
"""


def test_the_mouse_pulls_the_robot(run):
    assert run(PULLED, KNOWS, 0.3) > 0.02
    assert run(PULLED, KNOWS, -0.3) < -0.02


def rows(driver):
    """Return error and falls by what acted."""
    lines = driver.find_elements(By.CSS_SELECTOR, "#results tr")
    cells = [[cell.text for cell in line.find_elements(By.TAG_NAME, "td")] for line in lines]
    return {title: (float(error), int(falls)) for title, error, falls in cells}


def test_a_user_pushes_the_robot_and_lets_it_forget(driver, address, tmp_path):
    for width in (375, 1280):
        assert look(driver, f"{address}/index.html", width, "light", tmp_path / "seen.png") == []
    wait = WebDriverWait(driver, 60, ignored_exceptions=[IndexError, KeyError, ValueError])
    wait.until(lambda _: rows(driver)["LSTM student"][0] < 0.2)
    canvas = driver.find_element(By.TAG_NAME, "canvas")
    followed = rows(driver)["LSTM student"][0]
    drag = ActionChains(driver).move_to_element(canvas).click_and_hold()
    drag.move_by_offset(200, -50).perform()
    wait.until(lambda _: rows(driver)["LSTM student"][0] > followed + 0.05)
    ActionChains(driver).release().perform()
    driver.find_element(By.ID, "forgets").click()
    wait.until(lambda _: rows(driver)["LSTM student, forgetting"][0] > 0.3)
    driver.find_element(By.CSS_SELECTOR, "#policy option:last-child").click()
    assert not driver.find_element(By.ID, "forgets").is_enabled()
    wait.until(lambda _: rows(driver)["Teacher"][0] < 0.15)
    assert [entry["message"] for entry in driver.get_log("browser")] == []


OBSERVED = """
robot.start(robot.config.policies[0]);
robot.begin();
return values[0].map(({ qpos, qvel, action, command }) => {
  robot.data.qpos.set(qpos);
  robot.data.qvel.set(qvel);
  robot.mujoco.mj_forward(robot.model, robot.data);
  Object.assign(robot, { command, actions: [action] });
  return Object.values(robot.observe()).flat();
});
"""


def test_a_robot_of_mjlab(tmp_path, driver):
    python = Path(os.environ.get("MJLAB", ".venv-mjlab"), "bin", "python")
    if not python.exists():
        pytest.skip("mjlab's environment is not there: make test-matrix")
    student, folder = EXAMPLES / "go1_flat_student", tmp_path / "page"
    subprocess.run([python, SUPPORT / "mjlab_web.py", student, folder], check=True)
    states = json.loads((folder / "states.json").read_text())
    with served(folder) as address:
        run = runner(driver, address)
        seen = run(OBSERVED, states)
        walked = run(WALK, 0, False, 0, 0.0)
    np.testing.assert_allclose(seen, [state["seen"] for state in states], atol=1e-4)
    assert walked["x"] > 3.5
    assert walked["falls"] == 0
