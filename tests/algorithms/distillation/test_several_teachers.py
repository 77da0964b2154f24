"""Several teachers: each sample has exactly the label of its own teacher."""

import copy
import shutil
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained
from support.helpers import parameters_of, roll_out, train
from support.inside import assert_same
from support.rank_processes import group, run_ranks
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

NAMES = ("walk", "trot", "see")  # ``roll_out`` draws among three
WALK = TEACHERS["walk"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the config of three teachers with their files in a folder."""
    return save_teachers(tmp_path_factory.mktemp("teachers"), NAMES)


def teachers_alone():
    return [build_alone(name, seed=10 + number) for number, name in enumerate(NAMES)]


@pytest.mark.parametrize("algorithm", [TbpttDistillation, Distillation])
def test_labels_are_those_of_each_teacher_alone(config, algorithm):
    built, alone = make(config, algorithm=algorithm), teachers_alone()
    before = parameters_of(built)
    # States continue, but rsl_rl's own update clears them.
    for seed in range(3 if algorithm is TbpttDistillation else 1):
        roll_out(built, seed)
        obs, expected = built.storage.observations, []
        for step in range(T):
            with torch.no_grad():
                labels = torch.stack([teacher(obs[step]) for teacher in alone])
            expected.append(labels[obs["skill"][step, :, 0].long(), torch.arange(N)])
            for teacher in alone:
                teacher.reset(built.storage.dones[step, :, 0])
        labels = built.storage.privileged_actions.clone()
        torch.testing.assert_close(labels, torch.stack(expected), **SAME_FLOAT32)
        built.update()
    assert not torch.equal(parameters_of(built), before)


@pytest.mark.parametrize("selector", ["support.several_teachers:by_sign", by_sign])
def test_the_selector_may_be_a_function(config, selector):
    teachers, obs = select(config, selector), first_obs()
    output, number = teachers(obs), by_sign(obs)
    for index, teacher in enumerate(teachers_alone()[:2]):
        rows = number == index
        torch.testing.assert_close(output[rows], teacher(obs)[rows], **SAME_FLOAT32)


def test_distribution_parameters_are_those_of_the_selected_teachers(config):
    teachers = select(config)
    teachers.load_checkpoints()
    models: Any = teachers.teachers
    for number, model in enumerate(models.values()):
        model.distribution.std_param.data.fill_(0.2 + number)
    obs = first_obs()
    obs["skill"][:, 0] = torch.arange(N) % 2 + 1.0  # never the first
    teachers(obs, stochastic_output=True)
    mean, std = teachers.output_distribution_params
    torch.testing.assert_close(std, (0.2 + obs["skill"]).expand(N, 2), **SAME_FLOAT32)
    teachers.reset(torch.ones(N))
    torch.testing.assert_close(teachers(obs), mean, **SAME_FLOAT32)


def test_kl_is_refused_where_a_teacher_has_no_gaussian(config):
    cfg = {key: value for key, value in WALK["cfg"].items() if key != "distribution_cfg"}
    teachers = {"trot": config["trot"], "walk": {**config["walk"], "cfg": cfg}}
    with pytest.raises(NotImplementedError, match="needs a Gaussian, but the teacher"):
        make(teachers, loss_type="kl")


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
    names = r"\(NaN where the observation group 'skill' is none of 0 \(walk\), 1 \(trot\), 2 \(see"
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


def test_a_nan_that_one_teacher_has_seen_leaves_the_memory_of_another(tmp_path):
    algorithm = make(save_teachers(tmp_path, ["walk", "trot", "hop"]))

    def spoil(step, obs):
        if step == T - 1:
            obs["state"][2], obs["skill"][2] = torch.nan, 2.0

    roll_out(algorithm, 0, done_rate=0.0, on_step=spoil)
    teachers = [algorithm.teacher.teachers[name] for name in ("trot", "hop")]
    trot, hop = (copy.deepcopy(each.get_hidden_state()) for each in teachers)
    with pytest.warns(UserWarning, match=r"'state' of environments \[2\]"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(teachers[0].get_hidden_state(), trot)
    hop[:, 2] = 0.0
    assert_same(teachers[1].get_hidden_state(), hop)


REFUSED_CONFIGS = [
    (
        {"walk": WALK["cfg"]},
        r"'walk' cannot be built from teacher\.teachers\.walk .* expected 'cfg",
    ),
    ({"walk": {**WALK, "file": "a.pt"}}, r"it has \['cfg', 'file', 'obs_groups'\]"),
    ({"walk": {**WALK, "obs_groups": ["heights"]}}, "'walk' cannot be built .*heights"),
    ({"walk": {**WALK, "obs_groups": "state"}}, "with obs_groups 'state'.* a list 'obs_groups'"),
    ({"walk": {"cfg": {"class_name": "MLPModel", "hiden_dims": [8]}}}, "'walk' .*hiden_dims"),
    ({"walk": {"cfg": {"hidden_dims": [8]}}}, "'class_name' included"),
]


@pytest.mark.parametrize(("teachers", "message"), REFUSED_CONFIGS)
def test_an_impossible_config_is_refused_by_name(teachers, message):
    with pytest.raises(ValueError, match=message):
        select(teachers)


def raising(obs):
    raise KeyError("nothing")


REFUSED_SELECTORS = [
    ("skil", r"selector is 'skil', expected one of \['camera',"),
    (raising, r"fails on the first observations .*nothing"),
    ("policy", r"the observation group 'policy', .* shape \(5, 5\)"),
    (lambda obs: torch.arange(5.0), r"3 in environment 3\), expected .* 0 \(walk\), 1 \(trot\)"),
    (lambda obs: torch.full((5,), torch.nan), r"nan in environment 0"),
    (lambda obs: obs["skill"].fill_(1.0), r"writes into the 'skill' that it is given"),
]


@pytest.mark.parametrize(("selector", "message"), REFUSED_SELECTORS)
def test_a_selector_that_names_no_teacher_is_refused_by_name(config, selector, message):
    with pytest.raises(ValueError, match=message):
        select(config, selector)


UNFIT = [
    ({"checkpoint": "nowhere.pt"}, r"teacher 'walk'.*nowhere\.pt' does not exist"),
    ({"checkpoint": None}, r"teacher\.teachers\.walk\.checkpoint is None"),
    ({"cfg": {**WALK["cfg"], "hidden_dims": [9]}}, r"'walk'.*'mlp\.0\.weight' has shape"),
]


@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_a_file_that_does_not_fit_is_refused_by_name_before_any_rollout(config, change, message):
    algorithm = make({**config, "walk": {**config["walk"], **change}})
    before = copy.deepcopy(algorithm.teacher.state_dict())
    for start in (algorithm.lazy_teacher.start_training, lambda: algorithm.act(None)):
        with pytest.raises(ValueError, match=message):
            start()
    assert_same(algorithm.teacher.state_dict(), before)
    with pytest.raises(ValueError, match=r"teacher_checkpoint is 'one\.pt', expected None with s"):
        make(config, teacher_checkpoint="one.pt")


def test_a_checkpoint_brings_all_teachers_by_name_and_needs_no_file(config):
    algorithm = make(config)
    train(algorithm, 0)
    nowhere = {name: {**config[name], "checkpoint": None} for name in reversed(NAMES)}
    resumed = make(nowhere)
    resumed.load(copy.deepcopy(algorithm.save()), None, strict=True)
    stock = make(nowhere, algorithm=Distillation)
    stock.load(copy.deepcopy(resumed.save()), None, strict=True)
    resumed.load(stock.save(), None, strict=True)
    train(resumed, 1)
    for name, teacher in zip(NAMES, teachers_alone(), strict=True):
        assert_same(resumed.teacher.teachers[name].state_dict(), teacher.state_dict())
    player = make(nowhere)
    player.load(algorithm.save(), {"student": True}, strict=True)  # a policy that plays
    assert torch.equal(parameters_of(player), parameters_of(algorithm))
    before, saved = parameters_of(resumed), algorithm.save()
    own = saved["teacher_state_dict"]
    fewer = {key: tensor for key, tensor in own.items() if "trot" not in key}
    of_ppo = {"actor_state_dict": algorithm.teacher.teachers["walk"].state_dict()}
    for checkpoint, message in (
        (of_ppo, r"to none of the teachers \['see', 'trot', 'walk'\]"),
        ({**saved, "teacher_state_dict": fewer}, r"of the teacher\.teachers\.trot\.cfg"),
    ):
        with pytest.raises(ValueError, match=message):
            resumed.load(checkpoint, None, strict=True)
    assert torch.equal(parameters_of(resumed), before)


class Skills(RecallEnv):
    """The recall task with another skill at every step."""

    def get_observations(self):
        obs = super().get_observations()
        obs["skill"] = (self.episode_length_buf % 2).float().unsqueeze(-1)
        return obs


def several(folder) -> dict[str, Any]:
    """Return two teachers, whose files a PPO runner wrote."""
    teachers, cfg = {}, fine_tuning_cfg(num_mini_batches=1)
    for name, groups, role in (("tell", "privileged", "teacher_cfg"), ("guess", "policy", "")):
        model = copy.deepcopy(cfg["algorithm"][role] if role else cfg["actor"])
        own = fine_tuning_cfg(num_mini_batches=1) | {"actor": copy.deepcopy(model)}
        own["obs_groups"]["actor"] = [groups]
        path = folder / f"{name}.pt"
        save_untrained(OnPolicyRunner(Skills(4, 3), own, log_dir=None), path)
        teachers[name] = {"cfg": model, "checkpoint": str(path), "obs_groups": [groups]}
    named = {"class_name": "rsl_tbptt.models:SelectedTeachers", "selector": "skill"}
    return {**named, "teachers": teachers}


def test_a_run_learns_resumes_plays_and_continues_without_the_files(tmp_path):
    folder = tmp_path / "teachers"
    folder.mkdir()
    cfg = {**distillation_cfg(learning_rate=1e-2), "teacher": several(folder)}

    def start(num_envs: int = 4) -> Any:
        return DistillationRunner(Skills(num_envs, 3), copy.deepcopy(cfg), log_dir=None)

    runner, losses = start(), []
    for _ in range(2):
        runner.learn(10)
        losses.append(runner.alg.metrics["behavior"])
    assert losses[1] < losses[0]
    save_untrained(runner, tmp_path / "model.pt")
    assert load_policy(tmp_path / "model.pt").is_recurrent  # as the tools do
    shutil.rmtree(folder)
    resumed, player = start(), start(1)
    resumed.load(str(tmp_path / "model.pt"))
    resumed.learn(1)
    player.load(str(tmp_path / "model.pt"), {"student": True})
    player.get_inference_policy()(player.env.get_observations())
    with pytest.raises(ValueError, match=r"The teacher 'tell' cannot be loaded from '.*tell\.pt'"):
        start().learn(1)
    tuned = fine_tuning_cfg(num_mini_batches=1, teacher_cfg=several(tmp_path))
    ppo = OnPolicyRunner(Skills(4, 3), tuned, log_dir=None)
    ppo.load(str(tmp_path / "model.pt"))
    ppo.learn(2)
    assert parameters_of(ppo.alg).isfinite().all()


def test_ppo_imitates_several_teachers_from_the_start(tmp_path):
    chosen = {"num_mini_batches": 1, "teacher_cfg": several(tmp_path)}
    chosen["critic_warmup_iterations"] = 0
    ppo = OnPolicyRunner(Skills(4, 3), fine_tuning_cfg(**copy.deepcopy(chosen)), log_dir=None)
    ppo.learn(1)
    assert ppo.alg.save()["rsl_tbptt"]["imitation"]["num_updates"] == 1
    chosen["teacher_checkpoint"] = "teacher.pt"
    with pytest.raises(ValueError, match=r"'teacher\.pt', expected None with several teachers"):
        OnPolicyRunner(Skills(4, 3), fine_tuning_cfg(**chosen), log_dir=None)


SHARES = (2, 3)


def start_of_rank(rank, config, folder):
    missing = {**config, "trot": {**config["trot"], "checkpoint": "nowhere.pt"}}
    message = "On rank 1: The teacher 'trot' cannot be loaded from 'nowhere.pt'"
    with group(rank, SHARES, folder) as share:
        chosen = missing if rank == 1 else config
        refused = make(chosen, num_envs=SHARES[rank], multi_gpu_cfg=share.cfg)
        with pytest.raises(ValueError, match=message):
            refused.lazy_teacher.start_training()


@pytest.mark.long
def test_a_file_missing_in_one_process_ends_all(tmp_path):
    run_ranks(start_of_rank, (save_teachers(tmp_path), str(tmp_path)), len(SHARES))
