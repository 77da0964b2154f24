"""Several teachers: each sample has exactly the label of its own teacher."""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import parameters_of
from support.inside import assert_same
from support.several_teachers import (
    MEMORYLESS,
    TEACHERS,
    LabelledByHand,
    N,
    T,
    by_sign,
    load_alone,
    make,
    random_rollout,
    roll_out,
    save_teachers,
    select,
)
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32

from rsl_tbptt.core import hidden_state
from rsl_tbptt.models import teacher_group

ALL = tuple(TEACHERS)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the config of four teachers with their files in a folder."""
    return save_teachers(tmp_path_factory.mktemp("teachers"))


@pytest.fixture(params=[True, False], ids=["rows_of_their_own", "all_rows"])
def _choosing(request, monkeypatch):
    """Run each test with the selection of rows as on a CPU, and as on a GPU."""
    monkeypatch.setattr(teacher_group, "_choosing_is_cheap", lambda selected: request.param)


def train(algorithm, obs, dones):
    roll_out(algorithm, obs, dones)
    return algorithm.update()


def some(config, names):
    return {name: config[name] for name in names}


@pytest.mark.usefixtures("_choosing")
@pytest.mark.parametrize("names", [ALL, ("trot",)])
def test_labels_are_those_of_each_teacher_alone(config, names):
    chosen = some(config, names)
    algorithm, by_hand = make(chosen), LabelledByHand(load_alone(chosen))
    for seed in range(3):  # states continue
        obs, dones = random_rollout(seed, len(names))
        roll_out(algorithm, obs, dones)
        expected = by_hand(obs, dones)
        torch.testing.assert_close(algorithm.storage.privileged_actions, expected, **SAME_FLOAT32)
        assert torch.equal(
            algorithm.experience.newest().labels["teacher"].long(),
            obs["skill"].squeeze(-1).long(),
        )
        algorithm.update()


def mean_losses(algorithm, obs, labels, dones):
    """Return the mean loss of each teacher's samples at fixed parameters, by name."""
    student = copy.deepcopy(algorithm.student)
    student.reset(hidden_state=hidden_state.clone(algorithm.experience.start_state))
    losses = []
    with torch.no_grad():
        for step in range(len(dones)):
            losses.append((student(obs[step]) - labels[step]).square().mean(-1))
            student.reset(dones[step].long())
    losses, skill = torch.stack(losses), obs["skill"].squeeze(-1)
    return {
        name: losses[skill == number].mean().item()
        for number, name in enumerate(algorithm.teacher.names)
        if (skill == number).any()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"num_mini_batches": 2, "num_learning_epochs": 2, "update_length": 2},
        {"buffer_rollouts": 2, "buffer_share": 100.0, "num_micro_batches": 2},
    ],
    ids=str,
)
def test_the_loss_of_each_teacher_is_the_mean_over_its_samples(config, options):
    algorithm = make(config, learning_rate=1e-30, **options)
    for seed in range(2):
        obs, dones = random_rollout(seed, len(config) - seed)  # at last without the last teacher
        roll_out(algorithm, obs, dones)
        labels = algorithm.storage.privileged_actions.clone()
        expected = mean_losses(algorithm, obs, labels, dones)
        metrics = algorithm.update()
        found = {k: v for k, v in metrics.items() if k.startswith("behavior/")}
        assert found == pytest.approx({f"behavior/{k}": v for k, v in expected.items()}, rel=1e-4)
        assert not any("num_samples" in name for name in metrics)


@pytest.mark.parametrize("selector", ["support.several_teachers:by_sign", by_sign])
def test_the_selector_may_be_a_function(config, selector):
    chosen = some(config, MEMORYLESS)
    teachers = select(chosen, selector)
    obs, _ = random_rollout(3, 2)
    output, number = teachers(obs[0]), by_sign(obs[0])
    for index, model in enumerate(load_alone(chosen).values()):
        rows = number == index
        torch.testing.assert_close(output[rows], model(obs[0])[rows], **SAME_FLOAT32)


@pytest.mark.usefixtures("_choosing")
@pytest.mark.parametrize("loss_type", ["mse", "kl"])
def test_labels_at_once_are_those_of_the_steps(config, loss_type):
    chosen = some(config, MEMORYLESS)
    stepwise, batched = (
        make(chosen, loss_type=loss_type, batch_teacher_labels=at_once) for at_once in (False, True)
    )
    with torch.no_grad():  # deviations that differ between teachers
        for algorithm in (stepwise, batched):
            algorithm.teacher.load_checkpoints()
            for number, model in enumerate(algorithm.teacher.teachers.values()):
                model.distribution.std_param.fill_(0.2 + 0.3 * number)
            algorithm.teacher_loaded = True
            algorithm.lazy_teacher.is_loaded = True
    for seed in range(2):
        obs, dones = random_rollout(seed, len(chosen))
        metrics = []
        for algorithm in (stepwise, batched):
            torch.manual_seed(seed)
            metrics.append(train(algorithm, obs, dones))
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
        of_rollouts = [each.experience.newest().labels for each in (stepwise, batched)]
        for name, label in of_rollouts[0].items():
            torch.testing.assert_close(of_rollouts[1][name], label, **SAME_FLOAT32)
        if loss_type == "kl":
            std = 0.2 + 0.3 * obs["skill"].expand(T, N, 2)
            torch.testing.assert_close(of_rollouts[0]["std"], std, **SAME_FLOAT32)
        parameters = [parameters_of(algorithm) for algorithm in (stepwise, batched)]
        torch.testing.assert_close(*parameters, **PARITY_FLOAT32)


def test_kl_is_refused_where_a_teacher_has_no_gaussian(config):
    cfg = {key: v for key, v in TEACHERS["walk"]["cfg"].items() if key != "distribution_cfg"}
    teachers = {"trot": config["trot"], "walk": {**config["walk"], "cfg": cfg}}
    with pytest.raises(NotImplementedError, match="needs a Gaussian, but the teacher"):
        make(teachers, loss_type="kl")


def test_rsl_rls_own_algorithm_runs_with_them(config):
    algorithm = make(config, algorithm=Distillation, gradient_length=3)
    by_hand = LabelledByHand(load_alone(config))
    before = parameters_of(algorithm)
    obs, dones = random_rollout(0, len(config))
    roll_out(algorithm, obs, dones)
    expected = by_hand(obs, dones)
    torch.testing.assert_close(algorithm.storage.privileged_actions, expected, **SAME_FLOAT32)
    algorithm.update()
    assert not torch.equal(parameters_of(algorithm), before)


@pytest.mark.parametrize("bad", [7.0, 0.5, float("inf")])
def test_a_sample_of_no_teacher_is_named_and_nothing_is_lost(config, bad):
    algorithm = make(config, teacher_action_share=1.0)
    obs, dones = random_rollout(0, len(config))
    train(algorithm, obs, dones)
    before = parameters_of(algorithm)
    obs["skill"][2, 1] = bad
    executed = roll_out(algorithm, obs, dones)
    assert executed.isfinite().all()  # no NaN reaches an environment
    assert algorithm.storage.privileged_actions[2, 1].isnan().all()
    message = (
        r"observation group 'skill' of environments \[1\], first at step 2"
        if bad == float("inf")
        else r"the choice of a teacher by the observation group 'skill', which is none of"
        r" 0 \(walk\), 1 \(trot\), 2 \(see\), 3 \(hop\), of environments \[1\], first at step 2"
    )
    with pytest.warns(UserWarning, match=message):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert torch.equal(parameters_of(algorithm), before)
    roll_out(algorithm, *random_rollout(1, len(config)))
    assert "behavior/hop" in algorithm.update()


def test_labels_of_teachers_that_are_not_selected_do_not_matter(config):
    """A NaN of a teacher that is not selected reaches nothing."""
    chosen = some(config, MEMORYLESS)
    results = []
    for poison in (False, True):
        algorithm = make(chosen)
        obs, dones = random_rollout(0, len(chosen))
        if poison:
            obs["camera"][obs["skill"].squeeze(-1) == 0] = torch.nan
        torch.manual_seed(0)
        assert "behavior" in train(algorithm, obs, dones)
        results.append(parameters_of(algorithm))
    assert torch.equal(*results)


REFUSED_CONFIGS = [
    ({}, "teachers has the names"),
    ({"train": TEACHERS["walk"]}, "teachers has the names"),
    ({"walk": TEACHERS["walk"]["cfg"]}, r"teachers\['walk'\] has the keys"),
    ({"walk": {**TEACHERS["walk"], "obs_groups": ["heights"]}}, "'walk' has obs_groups"),
    ({"walk": {**TEACHERS["walk"], "obs_groups": "state"}}, "'walk' has obs_groups"),
    (
        {"walk": {"cfg": {"class_name": "MLPModel", "hiden_dims": [8]}, "obs_groups": ["state"]}},
        r"'walk' cannot be built from teacher\.teachers\.walk\.cfg .*hiden_dims",
    ),
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
    (
        lambda obs: torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0]),
        r"2 in environment 2\), expected .* 0 \(walk\), 1 \(see\)",
    ),
    (lambda obs: torch.full((5,), torch.nan), r"nan in environment 0"),
]


@pytest.mark.parametrize(("selector", "message"), REFUSED_SELECTORS)
def test_a_selector_that_names_no_teacher_is_refused_by_name(config, selector, message):
    with pytest.raises(ValueError, match=message):
        select(some(config, MEMORYLESS), selector)


UNFIT = [
    ({"checkpoint": "nowhere.pt"}, r"teacher 'walk'.*nowhere\.pt' does not exist"),
    ({"checkpoint": None}, r"teacher\.teachers\.walk\.checkpoint is None"),
    (
        {"cfg": {**TEACHERS["walk"]["cfg"], "hidden_dims": [9]}},
        r"'walk'.*'mlp\.0\.weight' has shape",
    ),
]


@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_a_file_that_does_not_fit_is_refused_by_name_before_any_rollout(config, change, message):
    algorithm = make({**config, "walk": {**config["walk"], **change}})
    before = copy.deepcopy(algorithm.teacher.state_dict())
    for start in (algorithm.lazy_teacher.start_training, lambda: algorithm.act(None)):
        with pytest.raises(ValueError, match=message):
            start()
    assert_same(algorithm.teacher.state_dict(), before)


def test_a_checkpoint_brings_all_teachers_by_name_and_needs_no_file(config):
    algorithm = make(config)
    train(algorithm, *random_rollout(0, len(config)))
    nowhere = {name: {**config[name], "checkpoint": None} for name in reversed(ALL)}
    resumed = make(nowhere)
    resumed.load(copy.deepcopy(algorithm.save()), None, strict=True)
    assert torch.equal(parameters_of(resumed), parameters_of(algorithm))
    stock = make(nowhere, algorithm=Distillation, gradient_length=3)
    stock.load(copy.deepcopy(resumed.save()), None, strict=True)
    resumed.load(stock.save(), None, strict=True)
    assert torch.equal(parameters_of(resumed), parameters_of(algorithm))
    train(resumed, *random_rollout(1, len(config)))
    for name, model in load_alone(config).items():
        assert_same(resumed.teacher.teachers[name].state_dict(), model.state_dict())
    player = make(nowhere)
    player.load(algorithm.save(), {"student": True}, strict=True)  # a policy that plays
    assert torch.equal(parameters_of(player), parameters_of(algorithm))


def test_a_nan_that_one_teacher_has_seen_leaves_the_memory_of_another(config):
    algorithm = make(config)
    obs, dones = random_rollout(0, len(config))
    obs["state"][-1, 2], obs["skill"][-1, 2] = torch.nan, ALL.index("hop")
    roll_out(algorithm, obs, torch.zeros_like(dones))
    teachers = [algorithm.teacher.teachers[name] for name in ("trot", "hop")]
    trot, hop = (copy.deepcopy(each.get_hidden_state()) for each in teachers)
    with pytest.warns(UserWarning, match=r"'state' of environments \[2\]"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(teachers[0].get_hidden_state(), trot)
    hop[:, 2] = 0.0
    assert_same(teachers[1].get_hidden_state(), hop)


@pytest.mark.usefixtures("_choosing")
def test_distribution_parameters_are_those_of_the_selected_teachers(config):
    """Even if the first of them has no row."""
    teachers = select(config)
    teachers.load_checkpoints()
    models: Any = teachers.teachers
    for number, model in enumerate(models.values()):
        model.distribution.std_param.data.fill_(0.2 + number)
    obs = random_rollout(0, len(config))[0][0]
    obs["skill"].clamp_(min=1.0)
    teachers(obs, stochastic_output=True)
    mean, std = teachers.output_distribution_params
    torch.testing.assert_close(std, (0.2 + obs["skill"]).expand(N, 2), **SAME_FLOAT32)
    teachers.reset()
    torch.testing.assert_close(teachers(obs), mean, **SAME_FLOAT32)


def test_a_checkpoint_of_other_teachers_is_refused(config):
    algorithm = make(config)
    algorithm.lazy_teacher.start_training()
    before, saved = parameters_of(algorithm), algorithm.save()
    teacher = saved["teacher_state_dict"]
    fewer = {key: tensor for key, tensor in teacher.items() if "hop" not in key}
    of_ppo = {"actor_state_dict": algorithm.teacher.teachers["walk"].state_dict()}
    for checkpoint, message in (
        (of_ppo, r"to none of the teachers \['walk', 'trot', 'see', 'hop'\]"),
        ({**saved, "teacher_state_dict": fewer}, r"of the teacher\.teachers\.hop\.cfg"),
    ):
        with pytest.raises(ValueError, match=message):
            algorithm.load(checkpoint, None, strict=True)
    assert torch.equal(parameters_of(algorithm), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_checkpoint": "one.pt"}, r"teacher_checkpoint is 'one\.pt', expected None with"),
        ({"auxiliary": {"hint": {"target": "teacher:mlp.0"}}}, "expected no layer of a teacher wi"),
        (
            {"loss_type": [{"loss": "mse", "actions": [1, 2], "name": "walk"}]},
            r"loss_type\[0\]\.name is 'walk'",
        ),
    ],
)
def test_options_for_a_single_teacher_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        make(config, **options)


def test_samples_without_a_teacher_are_allowed_if_their_weight_is_zero(config):
    """Such samples have no label and cause no NaN in the teachers' own losses."""
    chosen = some(config, MEMORYLESS)
    results = []
    for number in (0.0, 7.0):
        algorithm = make(
            chosen,
            imitation_weight=lambda transitions: (torch.arange(N) != 2).float().expand(T, N),
            teacher_action_share=0.5,
        )
        obs, dones = random_rollout(0, len(chosen))
        roll_out(algorithm, obs, dones)  # the first rollout must be valid
        algorithm.update()
        obs["skill"][:, 2] = number
        torch.manual_seed(0)
        results.append((train(algorithm, obs, dones), parameters_of(algorithm)))
    (expected, plain), (metrics, parameters) = results
    assert metrics == expected
    assert "behavior/walk" in metrics
    assert torch.equal(parameters, plain)
