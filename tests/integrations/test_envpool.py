"""EnvPool: its environments as rsl_rl needs them, compared with EnvPool's and gymnasium's own."""

import numpy as np
import pytest
import torch

pytest.importorskip("envpool", reason="EnvPool needs Python 3.11")

import envpool
import gymnasium

from rsl_tbptt.integrations.envpool import EnvPoolEnv, without_pictures
from scripts.benchmark.envpool import WithMeshes

# gymnasium says so of spaces of EnvPool and of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")

GO1, ROUGH = "Go1JoystickFlatTerrain-v1", "Go1JoystickRoughTerrain-v1"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Copy assets by today's rules, whatever is in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def actions_of(env, step):
    """Return wild actions for each environment's own number of steps."""
    draws = [np.random.default_rng([n, int(s)]) for n, s in enumerate(step)]
    return np.stack([3.0 * draw.standard_normal(env.action_space.shape) for draw in draws])


def own_stream(task, num_envs, seed, steps):
    """Step EnvPool as it is: each environment's observations, (observation, reward, terminated)."""
    seeds = (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()
    env = envpool.make_gymnasium(task, num_envs=num_envs, seed=seeds, num_threads=1)
    obs, _ = env.reset()
    seen = [[(obs["state"][n].copy(), 0.0, False)] for n in range(num_envs)]
    taken, ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)
    for _ in range(steps):
        actions = np.clip(actions_of(env, taken), -1.0, 1.0)
        obs, rewards, terminated, _, _ = env.step(actions)
        for n in range(num_envs):
            seen[n].append((obs["state"][n].copy(), float(rewards[n]), bool(terminated[n])))
        taken += ~ended  # the step after an end only resets
        ended = terminated.copy()
    return seen


def test_an_episode_begins_at_once_with_what_envpool_shows_a_step_later():
    num_envs, seed = 4, 3
    expected = own_stream(GO1, num_envs, seed, 200)
    env = EnvPoolEnv(GO1, num_envs, seed, num_threads=1)
    obs = env.get_observations()["state"]
    seen = [[obs[n]] for n in range(num_envs)]
    ends = 0
    for step in range(120):
        drawn = torch.from_numpy(actions_of(env._pool, [step] * num_envs))
        obs, rewards, dones, extras = env.step(drawn)
        assert not extras["time_outs"].any()
        for n in range(num_envs):
            place = len(seen[n])
            state, reward, terminated = expected[n][place]
            assert np.array_equal(extras["final_obs"]["state"][n], state.astype(np.float32))
            assert rewards[n] == pytest.approx(reward)
            assert bool(dones[n]) == terminated
            seen[n].append(extras["final_obs"]["state"][n])
            if dones[n]:
                ends += 1
                first = expected[n][place + 1][0].astype(np.float32)
                assert np.array_equal(obs["state"][n], first)
                assert env.episode_length_buf[n] == 0
                seen[n].append(obs["state"][n])
    assert ends > 3


def test_what_a_step_returned_is_not_changed_by_the_next():
    env = EnvPoolEnv(GO1, 2, num_threads=1)
    returned = env.step(torch.zeros(2, 12))
    kept = returned[0].clone(), returned[1].clone(), returned[3]["final_obs"].clone()
    returned[0]["state"].fill_(9.0)  # changes no episode
    env.step(torch.ones(2, 12))
    assert torch.equal(returned[1], kept[1])
    assert (returned[3]["final_obs"] == kept[2]).all()
    assert not (env.get_observations()["state"] == 9.0).any()


def test_time_alone_ends_an_episode_that_goes_on_in_physics():
    limited = EnvPoolEnv(GO1, 2, 5, num_threads=1, max_episode_steps=4)
    endless = EnvPoolEnv(GO1, 2, 5, num_threads=1)
    assert limited.max_episode_length == 4
    limited.episode_length_buf = torch.tensor([0, 2])  # as rsl_rl spreads first episodes
    for step in range(4):
        obs, _, dones, extras = limited.step(torch.zeros(2, 12))
        other, *_ = endless.step(torch.zeros(2, 12))
        ended = torch.tensor([step == 3, step == 1])
        assert torch.equal(dones.bool(), ended)
        assert torch.equal(extras["time_outs"], ended)
        rows = [0, 1] if step < 2 else [0]  # the second has begun another episode
        assert torch.equal(extras["final_obs"]["state"][rows], other["state"][rows])
        assert torch.equal((obs["state"] == extras["final_obs"]["state"]).all(-1), ~ended)


def test_a_task_of_gymnasium_goes_as_in_gymnasiums_vector_environment():
    num_envs, limit = 3, 30
    ours = EnvPoolEnv("Pendulum-v1", num_envs, 1, num_threads=1, max_episode_steps=limit)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=limit)] * num_envs,
        autoreset_mode=mode,
    )
    theirs.reset(seed=1)
    first = ours.get_observations()["obs"].double()
    for n, env in enumerate(theirs.envs):
        cosine, sine, velocity = first[n].tolist()
        env.unwrapped.state = np.array([np.arctan2(sine, cosine), velocity])
    for step in range(limit):
        drawn = torch.randn(num_envs, 1, generator=torch.Generator().manual_seed(step))
        obs, rewards, dones, extras = ours.step(3.0 * drawn)
        next_obs, wanted, terminated, truncated, info = theirs.step((3.0 * drawn).numpy())
        last = step == limit - 1
        final = np.stack(info["final_obs"]) if last else next_obs
        np.testing.assert_allclose(extras["final_obs"]["obs"], final, atol=1e-3)
        np.testing.assert_allclose(rewards, wanted, atol=1e-2)
        assert dones.bool().tolist() == (terminated | truncated).tolist() == [last] * num_envs
        assert extras["time_outs"].tolist() == truncated.tolist()
        assert (obs["obs"] == extras["final_obs"]["obs"]).all().item() != last
    assert (obs["obs"][:, 2].abs() <= 1.0).all()  # a first observation is slow


@pytest.mark.parametrize(
    "task", [GO1, ROUGH, "G1JoystickRoughTerrain-v1", "T1JoystickFlatTerrain-v1"]
)
def test_without_pictures_trajectories_are_the_same_to_the_bit(task):
    plain, pictured = (kind(task, 2, 7, num_threads=1) for kind in (EnvPoolEnv, WithMeshes))
    assert plain._made_with["base_path"] != envpool.make_spec(task).config.base_path
    assert pictured._made_with["base_path"] == envpool.make_spec(task).config.base_path
    ends = 0
    for step in range(60):
        drawn = torch.randn(2, plain.num_actions, generator=torch.Generator().manual_seed(step))
        (obs, *rest, extras), (other, *others, other_extras) = (
            env.step(2.0 * drawn) for env in (plain, pictured)
        )
        assert (obs == other).all()
        assert (extras["final_obs"] == other_extras["final_obs"]).all()
        assert all(map(torch.equal, rest, others))
        ends += int(rest[1].sum())
    assert ends


def test_the_seed_decides_all_that_is_drawn():
    one, same, other = (EnvPoolEnv(GO1, 2, seed, num_threads=1) for seed in (1, 1, 2))
    first = one.get_observations()["state"]
    assert torch.equal(first, same.get_observations()["state"])
    assert not torch.equal(first, other.get_observations()["state"])
    assert not torch.equal(one.reset()[0]["state"], first)
    one.seed(1)
    assert torch.equal(one.get_observations()["state"], first)


def test_seeds_next_to_each_other_share_no_environment():
    first = [EnvPoolEnv(GO1, 4, seed, num_threads=1).get_observations() for seed in range(3)]
    states = torch.cat([obs["state"] for obs in first])
    assert len(states.unique(dim=0)) == 12


def test_an_observation_of_one_number_has_a_dimension_of_its_own():
    class Counting(EnvPoolEnv):
        def _pool_of(self, number, seed):
            pool = super()._pool_of(number, seed)
            reset = pool.reset
            pool.reset = lambda *ids: ({"angle": reset(*ids)[0][:, 0]}, {})
            return pool

    env = Counting("Pendulum-v1", 3, num_threads=1)
    assert env.get_observations()["angle"].shape == (3, 1)


def test_more_environments_than_memory_holds_are_refused():
    with pytest.raises(ValueError, match=r"num_envs is 100000, expected at most \d+: an environ"):
        WithMeshes(GO1, 100_000)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("Go1-v9", r"task is 'Go1-v9', expected one of"),
        ("CartPole-v1", r"has the actions Discrete\(2\).*expected a vector of continuous actions"),
    ],
)
def test_a_task_that_does_not_fit_is_named(task, message):
    with pytest.raises(ValueError, match=message):
        EnvPoolEnv(task, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orientation_scal": -1.0}, "orientation_scal is no setting of .*such as .'orientation_s"),
        ({"seeds": 3}, "seeds is no setting of"),
        ({"kp": "stiff"}, "refuses the settings {'kp': 'stiff'}"),
    ],
)
def test_a_setting_that_the_task_does_not_take_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        EnvPoolEnv(GO1, 2, **settings)


ROBOT = """<mujoco>
  <asset>
    <texture name="grid" builtin="checker"/>
    <material name="grid" texture="grid"/>
    <mesh file="shell.stl"/>
    <mesh name="hand" file="foot.stl"/>
  </asset>
  <worldbody>
    <body><inertial mass="1"/><geom class="visual" mesh="shell"/><geom mesh="hand"/></body>
    <body><geom class="visual" mesh="hand" material="grid"/></body>
  </worldbody>
</mujoco>"""


def test_only_what_nothing_but_pictures_needs_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one", "other"):
        for place in ("playground/robot.xml", "playground/shell.stl", "others/robot.xml"):
            file = tmp_path / name / "mujoco" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(ROBOT)
    one, other = (without_pictures(tmp_path / name) for name in ("one", "other"))
    assert one != other  # the links of an installation that is deleted would lead nowhere
    assert without_pictures(tmp_path / "one") == one
    written = (one / "mujoco" / "playground" / "robot.xml").read_text()
    assert "shell" not in written
    assert "texture" not in written
    assert written.count('mesh="hand"') == 2  # it collides; the other gives its body mass
    assert '<mesh name="hand" file="foot.stl"' in written
    assert (one / "mujoco" / "others" / "robot.xml").read_text() == ROBOT
    assert (one / "mujoco" / "playground" / "shell.stl").read_text() == ROBOT
    assert [path.parent for path in (tmp_path / "cache").glob("*/*")] == [one.parent] * 2
    nothing = tmp_path / "cache"
    assert without_pictures(nothing) == nothing
