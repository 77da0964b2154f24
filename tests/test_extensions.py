"""Your own term, cell and extension: one file of yours each, as docs/howto/extensions.md builds."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import CASES, CONCURRENT, MIRROR, NORMALIZED, SMOOTH, turn_signs
from support.helpers import make_distillation, make_ppo, parameters_of, roll_out, train
from support.inside import add_gradient, assert_same, everything, extension, through_a_file
from support.operations_recording import OperationsRecording
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.recording import Recorder
from rsl_tbptt.extensions import Extension
from rsl_tbptt.models import RecurrentModel
from scripts.notebooks import ROOT, blocks

PAGES = ["extensions.md", "extensions.zh-CN.md"]
pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


@pytest.fixture(params=PAGES)
def page(request, tmp_path, monkeypatch):
    """Write the files of a page into a folder that Python imports from."""
    text = (ROOT / "docs" / "howto" / request.param).read_text(encoding="utf-8")
    files = {block.file: block.text for block in blocks(text) if block.file}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (entries,) = [
        block.text.partition("= ")[2]
        for block in blocks(text)
        if block.text.startswith("extensions =")
    ]
    return eval(entries)


def make(kind: str = "ppo", **options: Any) -> Any:
    if kind == "ppo":
        options = {"gradient_length": 3, "num_mini_batches": 2, **options}
        return make_ppo(TbpttPPO, 7, 6, "lstm", "lstm", **options)
    return make_distillation(TbpttDistillation, 7, 6, **{"gradient_length": 3, **options})


@pytest.mark.parametrize("kind", ["ppo", "distillation"])
def test_a_term_of_a_page_is_trained_and_logged(page, kind):
    with_term, without = make(kind, extensions=page), make(kind)
    for algorithm in (with_term, without):
        train(algorithm, 0, 1)
    assert with_term.metrics["smoothness"] > 0
    assert "smoothness" in with_term.loss_names
    assert not torch.equal(parameters_of(with_term), parameters_of(without))


@pytest.mark.parametrize("page", PAGES[:1], indirect=True)
@pytest.mark.usefixtures("page")
def test_an_extension_with_networks_and_one_with_weights_learn():
    source = Path(str(importlib.import_module("estimator").__file__))
    del sys.modules["estimator"]
    text = source.read_text().replace('observations["height"]', 'observations["state"]')
    text = text.replace('{"height"}', '{"state"}').replace("width, 1)", "width, 7)")
    source.write_text(text)
    entries = [{"class_name": "estimator:HeightEstimator"}, {"class_name": "careful:Careful"}]
    algorithm = make("distillation", extensions=entries, learning_rate=0.02)
    train(algorithm, 0, 1)
    first = algorithm.metrics["height"]
    train(algorithm, *[0] * 30)
    assert algorithm.metrics["height"] < 0.7 * first
    resumed = make("distillation", extensions=entries, learning_rate=0.02)
    resumed.load(through_a_file(algorithm.save()), None, strict=True)
    assert_same(everything(resumed), everything(algorithm))


@pytest.mark.parametrize("page", PAGES[:1], indirect=True)
@pytest.mark.usefixtures("page")
def test_a_cell_of_a_page_is_imported_by_its_name():
    obs = make().storage.observations[0]
    model = RecurrentModel(obs, {"actor": ["policy"]}, "actor", 2, rnn_type="cells:MGU")
    assert model.rnn.rnn.mode == "MGU"
    assert model(obs).shape == (6, 2)
    with pytest.raises(ValueError, match=r"rnn_type is .* a type, expected a Cell"):
        RecurrentModel(obs, {"actor": ["policy"]}, "actor", 2, rnn_type="torch.nn:LSTM")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**SMOOTH, "coeff": 1.0}, "Unknown option 'coeff' of Smoothness: did you mean 'coef'"),
        ({**SMOOTH, "coef": -1.0}, r"extensions\[0\]\.coef is -1.0, expected a positive number"),
        ({"coef": 1.0}, r"extensions\[0\] is .*, expected a dictionary with 'class_name'"),
        ({"class_name": "smoothness:Gone"}, r"class_name is 'smoothness:Gone', expected a qualifi"),
        ({"class_name": "torch.nn:Linear"}, "expected a subclass of rsl_tbptt.extensions.Extensio"),
        ({"class_name": f"{__name__}:Taken"}, r"extensions\[0\] has a state named \['heads'\]"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(entry, message):
    with pytest.raises(ValueError, match=message):
        make(extensions=[entry])


class Taken(Extension):
    """A state with a name that checkpoints use."""

    def __init__(self, options: Any, algorithm: Any) -> None:
        super().__init__(options, algorithm)
        self.state = {"heads": 2}


def test_two_extensions_need_two_names():
    with pytest.raises(ValueError, match=r"extensions\[1\] has the name 'Smoothness', which an"):
        make(extensions=[SMOOTH, SMOOTH])


class Idle(Extension):
    """A network whose loss has the coefficient 0."""

    def __init__(self, options: Any, algorithm: Any) -> None:
        super().__init__(options, algorithm)
        width = algorithm.get_policy().rnn.rnn.hidden_size
        self.modules = {"head": torch.nn.Linear(width, 1)}

    def losses(self, policy: Any, samples: Any) -> Any:
        yield "idle", 0.0, self.modules["head"](policy.latent).square().mean(-1)


@pytest.mark.parametrize("name", ["ppo-whole", "distillation-buffer"])
def test_a_coefficient_of_0_leaves_every_bit(name):
    trained = []
    silent = [{**SMOOTH, "coef": 0.0, "noise_coef": 0.0}, {"class_name": Idle}]
    for extensions in (None, silent):
        algorithm = CASES[name].build(extensions=extensions)
        drawn = torch.rand(1)  # by what comes after an algorithm is built
        for seed in range(3):
            torch.manual_seed(seed)
            CASES[name].fill(algorithm, seed)
            algorithm.update()
        models = [model.state_dict() for model in algorithm.stateful_models().values()]
        trained.append([models, algorithm.optimizer.state_dict(), drawn])
    assert_same(*trained)


@pytest.mark.usefixtures("float64_here")
@pytest.mark.parametrize("unit", ["env", "window"])
def test_the_gradient_of_a_term_of_neighbours_does_not_depend_on_chunks_and_joined_windows(
    unit, monkeypatch
):
    """It is that of the definition: the smoothness of each window, over the samples."""
    gradients = []
    for at_once, chunks in ((1, 1), (3, 1), (1, 3)):
        monkeypatch.setattr("rsl_tbptt.algorithms.replay.best_num_windows", lambda *_, n=at_once: n)
        options = {"minibatch_unit": unit, "num_micro_batches": chunks, "num_mini_batches": 1}
        term = {**SMOOTH, "coef": 2.0, "noise_coef": 0.0}
        algorithm = make(extensions=[term], **options)
        roll_out(algorithm, 0)
        add_gradient(algorithm, algorithm.batches.of_envs(torch.arange(6)))
        gradients.append(torch.cat([p.grad.flatten() for p in algorithm.actor.parameters()]))
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], **EXACT_FLOAT64)


@pytest.mark.usefixtures("float64_here")
def test_smoothness_by_its_definition():
    coef = 0.7
    algorithm = make(
        "distillation",
        extensions=[{**SMOOTH, "coef": coef}],
        gradient_length=7,
        num_mini_batches=1,
        num_learning_epochs=1,
        optimizer="sgd",
        learning_rate=1e-12,
    )
    roll_out(algorithm, 0)
    stored, student = algorithm.storage, algorithm.student
    student.reset()
    means = []
    for step in range(7):
        means.append(student(stored.observations[step]))
        student.reset(stored.dones[step, :, 0])
    steps = (torch.stack(means[1:]) - torch.stack(means[:-1])).square().mean(-1)
    follows = stored.dones[:-1, :, 0] == 0
    expected = (steps * follows).sum() / (7 * 6)
    assert algorithm.update()["smoothness"] == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.usefixtures("float64_here")
def test_the_twin_of_the_mirror_lives_through_the_mirrored_episode():
    algorithm = make("distillation", extensions=[MIRROR])
    roll_out(algorithm, 0, done_rate=0.0)
    images = extension(algorithm, "Mirror").labels()["mirror"]
    student, stored = algorithm.student, algorithm.storage
    student.reset()
    for step in range(7):
        mirrored = turn_signs(None, stored.observations[step], None)[0][6:]
        torch.testing.assert_close(images[step], -student(mirrored), **EXACT_FLOAT64)


@pytest.mark.usefixtures("float64_here")
@pytest.mark.parametrize("starts", [0, 1])
def test_a_concurrent_teacher_by_its_definition(starts):
    """Who acts, and the gradients of both, from the models' layers step by step."""
    options = {"gradient_length": 7, "num_mini_batches": 1, "entropy_coef": 0.0}
    algorithm = make(extensions=[CONCURRENT], actor_kwargs=NORMALIZED, **options)
    train(algorithm, *range(starts))
    actor, encoder = algorithm.actor, algorithm.own_extensions[0].encoder
    state = None if starts == 0 else [part.clone() for part in actor.get_hidden_state()]
    roll_out(algorithm, 7)
    stored, (first, *others) = algorithm.storage, actor.mlp
    acts = torch.tensor([False, True] * 3)
    losses = []
    for obs, actions, advantages, done in zip(
        stored.observations, stored.actions, stored.advantages, stored.dones, strict=True
    ):
        memory, state = actor.rnn.rnn(actor.obs_normalizer(obs["policy"])[None], state)
        of_student, of_teacher = first(memory[0]), encoder(obs["state"])
        output = torch.where(acts[:, None], of_teacher, of_student)
        for layer in others:
            output = layer(output)
        actor.distribution.update(output)
        chance = actor.distribution.log_prob(actions)
        of_teacher = of_teacher.detach()
        distance = (of_student - of_teacher).square().sum(-1) / of_teacher.square().sum(-1)
        loss = -advantages[:, 0] * (chance - chance.detach()).exp()
        losses.append(loss + 0.6 * 2 * torch.where(acts, 0.0, distance))
        state = [part * (1.0 - done) for part in state]
    learned = [*actor.parameters(), *encoder.parameters()]
    expected = torch.autograd.grad(torch.stack(losses).mean(), learned)
    for optimizer in algorithm.optimizers:
        optimizer.zero_grad()
    add_gradient(algorithm, algorithm.batches.of_envs(torch.arange(6)))
    for parameter, gradient in zip(learned, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **EXACT_FLOAT64)


class Counting(Extension):
    """A term whose weights are a tensor and a number of its state."""

    def __init__(self, options: Any, algorithm: Any) -> None:
        super().__init__(options, algorithm)
        self.state = {"steps": algorithm.storage.rewards.new_ones(()), "updates": 1}

    def process_env_step(self, obs: Any, rewards: torch.Tensor, dones: torch.Tensor) -> Any:
        self.state["steps"] = self.state["steps"] + 1.0
        return rewards

    def losses(self, policy: Any, samples: Any) -> Any:
        weight = 0.01 * self.state["updates"] * self.state["steps"]
        yield "counting", weight, policy.mean.square().mean(-1)

    def advance(self, metrics: dict[str, float]) -> None:
        self.state["updates"] += 1


def counted(num_updates: int, *, records: bool, breaks: bool = False) -> Any:
    """Train with a recorded state, or without; the last rollout may meet NaN."""
    algorithm = make(extensions=[{"class_name": Counting}], scan_engine="reference")
    if records:
        algorithm.recorder = Recorder("cpu", capture=OperationsRecording)
    for seed in range(num_updates):
        broken = breaks and seed == num_updates - 1
        torch.manual_seed(seed)
        roll_out(algorithm, seed, on_step=spoil if broken else None)
        algorithm.update()
    return algorithm


def spoil(step: int, obs: Any, *_: Any) -> None:
    obs["policy"][0] = torch.nan


@pytest.fixture
def operations_without_state(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("operations_without_state")
def test_recorded_steps_read_the_state_of_an_extension():
    assert_same(*(everything(counted(5, records=records)) for records in (False, True)))


@pytest.mark.usefixtures("operations_without_state")
@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
@pytest.mark.parametrize("records", [False, True])
def test_a_dropped_rollout_restores_the_state(records):
    algorithm = counted(3, records=records, breaks=True)
    (counting,) = algorithm.own_extensions
    assert counting.state == {"steps": torch.tensor(1.0 + 2 * 7), "updates": 3}


class FirstHalf(Extension):
    """Train on the first half of the environments, with twice the weight."""

    def labels(self) -> dict[str, torch.Tensor]:
        weights = torch.zeros_like(self.algorithm.storage.rewards.squeeze(-1))
        weights[:, : weights.shape[1] // 2] = 2.0
        return {"weight": weights}


@pytest.mark.usefixtures("float64_here")
def test_weights_of_samples_are_those_of_all_terms():
    gradients = []
    for extensions, envs in ((None, 3), ([{"class_name": FirstHalf}], 6)):
        algorithm = make(extensions=extensions, num_micro_batches=2)
        roll_out(algorithm, 0)
        add_gradient(algorithm, algorithm.batches.of_envs(torch.arange(envs)))
        gradients.append(torch.cat([p.grad.flatten() for p in algorithm.parameters]))
    torch.testing.assert_close(*gradients, **EXACT_FLOAT64)


def test_a_checkpoint_of_a_concurrent_teacher_is_the_student():
    algorithm, plain = make(extensions=[CONCURRENT]), make()
    train(algorithm, 0)
    algorithm.actor.reset()
    plain.load(through_a_file(algorithm.save()), None, strict=True)
    obs = algorithm.storage.observations[0]
    assert torch.equal(algorithm.actor(obs), plain.actor(obs))


def test_a_concurrent_teacher_needs_ppo_a_student_and_an_actor_that_is_not_compiled():
    with pytest.raises(ValueError, match="share is 1, expected less: of 6 environments it leaves"):
        make(extensions=[{**CONCURRENT, "share": 1}])
    with pytest.raises(ValueError, match="ConcurrentTeacher is set in a distillation, expected it"):
        make("distillation", extensions=[CONCURRENT])
    algorithm = make(extensions=[CONCURRENT])
    algorithm.actor = torch.nn.Sequential(algorithm.actor)  # as rsl_rl's compile replaces it
    with pytest.raises(ValueError, match="set torch_compile_mode to None"):
        roll_out(algorithm, 0)


def test_a_smooth_policy_without_memory_is_refused():
    with pytest.raises(ValueError, match="Smoothness is set, expected a policy with memory"):
        make_ppo(TbpttPPO, 7, 6, "mlp", "mlp", extensions=[SMOOTH])
