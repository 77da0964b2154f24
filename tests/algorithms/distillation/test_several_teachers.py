"""Several teachers: each sample has exactly the label of its own teacher."""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained
from support.helpers import parameters_of, roll_out, train
from support.inside import assert_same
from support.several_teachers import (
    TEACHERS,
    N,
    T,
    build_alone,
    by_sign,
    first_obs,
    make,
    save_teachers,
    select,
)
from support.tolerances import SAME_FLOAT32
from support.trained import load_policy

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")

WALK = TEACHERS["walk"]
BY_SIGN = "support.several_teachers:by_sign"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the config of all teachers with their files; ``roll_out`` draws the first three."""
    return save_teachers(tmp_path_factory.mktemp("teachers"))


def teachers_alone():
    return [build_alone(name, seed=10 + number) for number, name in enumerate(TEACHERS)]


@pytest.mark.parametrize(
    ("algorithm", "selector"),
    [(TbpttDistillation, "skill"), (TbpttDistillation, BY_SIGN), (Distillation, "skill")],
)
def test_labels_are_those_of_each_teacher_alone(config, algorithm, selector):
    built, alone = make(config, selector, algorithm=algorithm), teachers_alone()
    before = parameters_of(built)
    # States continue, but rsl_rl's own update clears them.
    for seed in range(3 if algorithm is TbpttDistillation else 1):
        roll_out(built, seed)
        obs, expected = built.storage.observations, []
        for step in range(T):
            with torch.no_grad():
                labels = torch.stack([teacher(obs[step]) for teacher in alone])
            number = by_sign(obs[step]) if selector == BY_SIGN else obs["skill"][step, :, 0]
            expected.append(labels[number.long(), torch.arange(N)])
            for teacher in alone:
                teacher.reset(built.storage.dones[step, :, 0])
        labels = built.storage.privileged_actions.clone()
        torch.testing.assert_close(labels, torch.stack(expected), **SAME_FLOAT32)
        built.update()
    assert not torch.equal(parameters_of(built), before)


def test_distribution_parameters_are_those_of_the_selected_teachers(config):
    teachers, obs = select(config), first_obs()
    teachers.load_checkpoints()
    for number, model in enumerate(teachers._models):
        model.distribution.std_param.data.fill_(0.2 + number)
    obs["skill"][:, 0] = torch.arange(N) % 2 + 1.0  # never the first
    teachers(obs, stochastic_output=True)
    _, std = teachers.output_distribution_params
    torch.testing.assert_close(std, (0.2 + obs["skill"]).expand(N, 2), **SAME_FLOAT32)


@pytest.mark.parametrize("bad", [7.0, 0.5, float("inf")])
def test_a_sample_of_no_teacher_is_named_and_nothing_is_lost(config, bad):
    algorithm, executed = make(config, teacher_action_share=1.0), []
    train(algorithm, 0)
    before = parameters_of(algorithm)

    def spoil(step, obs):
        if step == 2:
            obs["skill"][1] = bad

    act = algorithm.act
    algorithm.act = lambda obs: executed.append(act(obs)) or executed[-1]
    roll_out(algorithm, 0, on_step=spoil)
    assert torch.stack(executed).isfinite().all()  # no NaN reaches an environment
    assert algorithm.storage.privileged_actions[2, 1].isnan().all()
    names = r"\(NaN where the observation group 'skill' is none of 0 \(walk\), 1 \(trot\), 2 .*hop"
    kind = "observation group 'skill'" if bad == float("inf") else rf"teacher actions {names}\)\)"
    with pytest.warns(UserWarning, match=rf"{kind} of environments \[1\], first at step 2"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert torch.equal(parameters_of(algorithm), before)
    assert "behavior" in train(algorithm, 1)


def test_labels_of_teachers_that_are_not_selected_do_not_matter(config):
    results = []
    for poison in (0.0, torch.nan):
        algorithm = make(config)

        def spoil(step, obs, poison=poison):
            obs["camera"][obs["skill"].squeeze(-1) < 2] = poison

        assert "behavior" in train(algorithm, 0, on_step=spoil)
        results.append(parameters_of(algorithm))
    assert torch.equal(*results)


def test_a_nan_that_one_teacher_has_seen_leaves_the_memory_of_another(config):
    algorithm = make(config)

    def spoil(step, obs):
        if step == T - 1:
            obs["state"][2], obs["skill"][2] = torch.nan, 3.0

    roll_out(algorithm, 0, done_rate=0.0, on_step=spoil)
    teachers = [algorithm.teacher.teachers[name] for name in ("trot", "hop")]
    trot, hop = (copy.deepcopy(each.get_hidden_state()) for each in teachers)
    with pytest.warns(UserWarning, match=r"'state' of environments \[2\]"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(teachers[0].get_hidden_state(), trot)
    hop[:, 2] = 0.0
    assert_same(teachers[1].get_hidden_state(), hop)


def raising(obs):
    raise KeyError("nothing")


REFUSED = [
    ([WALK, TEACHERS["trot"]], "skill", "teachers is a list, expected a mapping of names to teac"),
    ({"walk": WALK["cfg"]}, "skill", r"built from teacher\.teachers\.walk .* expected 'cfg"),
    ({"walk": {**WALK, "file": "a.pt"}}, "skill", r"it has \['cfg', 'file', 'obs_groups'\]"),
    ({"walk": {**WALK, "obs_groups": "state"}}, "skill", "with obs_groups 'state'.* a list 'obs"),
    ({"walk": {"cfg": {"hidden_dims": [8]}}}, "skill", "'class_name' included"),
    (TEACHERS, "skil", r"selector is 'skil', expected one of \['camera',"),
    (TEACHERS, raising, r"fails on the first observations .*nothing"),
    (TEACHERS, "policy", r"the observation group 'policy', .* shape \(5, 5\)"),
    (TEACHERS, lambda obs: torch.arange(5.0), r"4 in environment 4\), expected .* 0 \(walk"),
    (TEACHERS, lambda obs: torch.full((5,), torch.nan), r"nan in environment 0"),
    (TEACHERS, lambda obs: obs["skill"].fill_(1.0), r"writes into the 'skill' that it is given"),
]


@pytest.mark.parametrize(("teachers", "selector", "message"), REFUSED)
def test_an_impossible_config_or_selector_is_refused_by_name(teachers, selector, message):
    with pytest.raises(ValueError, match=message):
        select(teachers, selector)


UNFIT = [
    ({"checkpoint": "nowhere.pt"}, r"teacher 'walk'.*nowhere\.pt' does not exist"),
    ({"checkpoint": None}, r"teacher\.teachers\.walk\.checkpoint is None"),
    ({"cfg": {**WALK["cfg"], "hidden_dims": [9]}}, r"'walk'.*'mlp\.0\.weight' has shape"),
]


@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_a_file_that_does_not_fit_is_refused_by_name_before_any_rollout(config, change, message):
    algorithm = make({**config, "walk": {**config["walk"], **change}})
    before = copy.deepcopy(algorithm.teacher.state_dict())
    with pytest.raises(ValueError, match=message):
        algorithm.act(None)
    assert_same(algorithm.teacher.state_dict(), before)
    with pytest.raises(ValueError, match=r"teacher_checkpoint is 'one\.pt', expected None with s"):
        make(config, teacher_checkpoint="one.pt")


def test_a_checkpoint_brings_all_teachers_by_name_and_needs_no_file(config):
    algorithm = make(config)
    train(algorithm, 0)
    nowhere = {name: {**config[name], "checkpoint": None} for name in reversed(TEACHERS)}
    resumed = make(nowhere)
    resumed.load(copy.deepcopy(algorithm.save()), None, strict=True)
    stock = make(nowhere, algorithm=Distillation)
    stock.load(copy.deepcopy(resumed.save()), None, strict=True)
    resumed.load(stock.save(), None, strict=True)
    train(resumed, 1)
    for name, teacher in zip(TEACHERS, teachers_alone(), strict=True):
        assert_same(resumed.teacher.teachers[name].state_dict(), teacher.state_dict())
    before, saved = parameters_of(resumed), algorithm.save()
    own = saved["teacher_state_dict"]
    fewer = {key: tensor for key, tensor in own.items() if "trot" not in key}
    of_ppo = {"actor_state_dict": algorithm.teacher.teachers["walk"].state_dict()}
    for checkpoint, message in (
        (of_ppo, r"to none of the teachers \['hop', 'see', 'trot', 'walk'\]"),
        ({**saved, "teacher_state_dict": fewer}, r"of the teacher\.teachers\.trot\.cfg"),
    ):
        with pytest.raises(ValueError, match=message):
            resumed.load(checkpoint, None, strict=True)
    assert torch.equal(parameters_of(resumed), before)


def test_runners_resume_play_and_continue_by_ppo_without_the_files(tmp_path):
    cfg, files = distillation_cfg(), {n: tmp_path / f"{n}.pt" for n in ("tell", "guess")}
    teachers = {
        "tell": {"cfg": cfg["teacher"], "checkpoint": str(files["tell"])},
        "guess": {"cfg": cfg["student"], "checkpoint": str(files["guess"])},
    }
    teachers["guess"]["obs_groups"] = ["policy"]
    several = {"class_name": "rsl_tbptt.models:SelectedTeachers", "selector": BY_SIGN}
    cfg["teacher"] = several | {"teachers": teachers}
    tuned = fine_tuning_cfg(num_mini_batches=1, critic_warmup_iterations=0)
    tuned["algorithm"]["teacher_cfg"] = cfg["teacher"]

    def distilling(num_envs: int = 4) -> Any:
        return DistillationRunner(RecallEnv(num_envs, 3), copy.deepcopy(cfg), log_dir=None)

    def imitating() -> Any:
        return OnPolicyRunner(RecallEnv(4, 3), copy.deepcopy(tuned), log_dir=None)

    first = distilling()
    for name, teacher in first.alg.teacher.teachers.items():
        torch.save({"actor_state_dict": teacher.state_dict()}, files[name])
    for runner in (first, imitating()):
        runner.learn(1)
    save_untrained(first, tmp_path / "model.pt")
    assert load_policy(tmp_path / "model.pt").is_recurrent  # as the tools do
    files["tell"].unlink()
    for resumed in (distilling(), imitating()):
        resumed.load(str(tmp_path / "model.pt"))
        resumed.learn(1)
    player = distilling(1)
    player.load(str(tmp_path / "model.pt"), {"student": True})
    player.get_inference_policy()(player.env.get_observations())
    for runner in (distilling(), imitating()):
        with pytest.raises(ValueError, match=r"'tell' cannot be loaded from '.*tell\.pt'"):
            runner.learn(1)
