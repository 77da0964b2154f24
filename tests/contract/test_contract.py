"""The behaviour that a one-line change gives, with any supported rsl_rl and its stock runner.

The assertions are the same for 3.1.2, 5.0.1, 5.4.2 and 5.5.1: `make test-matrix` runs all of them.
"""

import pytest
import torch
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms.health import limit_of
from scripts.pipeline.events import read_curves

KINDS = ["distillation", "ppo"]
BOTH = {"done_rate", "skipped_updates"}
METRICS = {
    "distillation": BOTH | {"behavior", "buffer", "grad_norm", "optimizer_steps", "flushed_steps"},
    "ppo": BOTH | {"surrogate", "entropy", "kl", "actor_grad_norm", "critic_grad_norm"},
}


def train(runner, iterations=1):
    """Let the runner learn and return the metrics of each update."""
    metrics, update = [], runner.alg.update

    def recorded():
        losses = update()
        reported = getattr(runner.alg, "metrics", {})  # rsl_rl's own has none
        others = {name: v for name, v in reported.items() if name != "value"}
        metrics.append({**others, **losses})  # whose value has another name in rsl_rl 3
        return losses

    runner.alg.update = recorded
    runner.learn(iterations)
    return metrics


@pytest.mark.parametrize("kind", KINDS)
def test_mistyped_option_is_refused(make_runner, kind):
    with pytest.raises(ValueError, match="did you mean 'gradient_length'"):
        make_runner(kind, gradient_lenght=4)


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_trains_and_reports(make_runner, era, kind, recurrent):
    options = {"gradient_length": 2} if recurrent else {}
    runner = make_runner(kind, recurrent=recurrent, learning_rate=1e-2, **options)
    before = era.parameters(runner.alg)
    metrics = train(runner, iterations=3)
    assert len(metrics) == 3
    expected = METRICS[kind] | ({era.value_loss} if kind == "ppo" else set())
    assert expected <= set(metrics[-1])
    assert all(limit_of(name) for name in metrics[-1].keys() - expected)  # the watch's own
    after = era.parameters(runner.alg)
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)
    assert runner.current_learning_iteration == 2


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_round_trip_and_resume(make_runner, era, kind, tmp_path):
    first = make_runner(kind, log_dir=tmp_path / "first", learning_rate=1e-2)
    train(first, iterations=2)
    second = make_runner(kind, log_dir=tmp_path / "second", learning_rate=1e-2)
    assert not torch.equal(era.parameters(second.alg), era.parameters(first.alg))
    second.load(str(tmp_path / "first" / "model_1.pt"))
    assert torch.equal(era.parameters(second.alg), era.parameters(first.alg))
    assert second.current_learning_iteration == 1
    step = [state["step"] for state in second.alg.optimizer.state_dict()["state"].values()]
    assert step == [state["step"] for state in first.alg.optimizer.state_dict()["state"].values()]
    train(second, iterations=2)
    assert second.current_learning_iteration == 2
    assert (tmp_path / "second" / "model_2.pt").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_done_clears_the_state_of_its_environment(make_runner, era, kind):
    runner = make_runner(kind)
    dones = torch.tensor([1, 0, 0, 1, 0, 0])
    with torch.inference_mode():
        obs = runner.env.get_observations()
        runner.alg.act(obs)
        runner.alg.process_env_step(obs, torch.zeros(6), dones, {})
    is_clear = (era.state(runner.alg) == 0).all(dim=-1).all(dim=0)
    assert is_clear.tolist() == dones.bool().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_state_carries_over_updates(make_runner, era, kind):
    """Without learning, two rollouts of 2 steps end in the state of one of 4 steps."""
    options = {"learning_rate": 1e-12} | ({"schedule": "fixed"} if kind == "ppo" else {})
    twice = make_runner(kind, num_steps=2, **options)
    twice.learn(2)
    once = make_runner(kind, num_steps=4, **options)
    once.learn(1)
    torch.testing.assert_close(era.state(twice.alg), era.state(once.alg), **PARITY_FLOAT32)
    once.learn(1)
    assert not torch.allclose(era.state(twice.alg), era.state(once.alg), **PARITY_FLOAT32)


@pytest.mark.parametrize("by_option", [True, False])
def test_teacher_comes_from_a_ppo_checkpoint(make_runner, era, tmp_path, by_option):
    ppo = make_runner("ppo", models=era.teacher_models(), log_dir=tmp_path, learning_rate=1e-2)
    train(ppo)
    file = str(tmp_path / "model_0.pt")
    options = {"teacher_checkpoint": file} if by_option else {}
    runner = make_runner("distillation", **options)
    if not by_option:
        assert not torch.equal(era.teacher_parameters(runner.alg), era.actor_parameters(ppo.alg))
        runner.load(file)
    train(runner)
    assert torch.equal(era.teacher_parameters(runner.alg), era.actor_parameters(ppo.alg))


@pytest.mark.parametrize("kind", KINDS)
def test_all_metrics_of_an_update_are_curves(make_runner, kind, tmp_path):
    runner = make_runner(kind, log_dir=tmp_path)
    runner.learn(3)
    (getattr(runner, "writer", None) or runner.logger.writer).flush()  # a thread of its own writes
    curves = read_curves(tmp_path)
    assert all(curves[f"Loss/{name}"][0] == [0, 1, 2] for name in ("done_rate", "skipped_updates"))
    for name, value in runner.alg.metrics.items():
        if name != "value":  # rsl_rl 3's value_function
            assert curves[f"Loss/{name}"][1][-1] == pytest.approx(value, rel=1e-5)
