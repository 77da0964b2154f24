"""A peer is timed only if its gradient is ours, and a missing one does not stop the others."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rsl_tbptt.bench.case import Case, build
from rsl_tbptt.bench.speed import Speed
from scripts.benchmark.peers import measure
from scripts.benchmark.peers.job import Job, Network, build_ours, build_peer
from scripts.benchmark.peers.measure import PeerSpeed, check_gradient, measure_peers, table

TINY = Job(num_envs=5, num_steps=7, done_rate=0.3, rnn_hidden_dim=8)
ALL_PEERS = tuple(measure.PEERS)


def step_by_step(job, *, forget=True):
    """Stand in for a peer: the network called step by step, with states cleared by hand."""
    model, rollout = Network(job), job.rollout()

    def outputs():
        state, latents = None, []
        for obs, starts in zip(rollout.obs, rollout.episode_starts, strict=True):
            if state is not None and forget:
                keep = (~starts).float().unsqueeze(-1)
                state = tuple(s * keep for s in state) if job.rnn_type == "lstm" else state * keep
            latent, state = model.rnn(obs.unsqueeze(0), state)
            latents.append(latent)
        return model.mlp(torch.cat(latents))

    return build_peer("1.0: stand-in", [model], outputs, rollout.labels["actions"])


def without_resets(job):
    return step_by_step(job, forget=False)


def not_a_number(job):
    """Spoil the gradient of the last parameter only."""
    peer = step_by_step(job)

    def backward():
        peer.backward()
        peer.parameters[-1].grad = torch.full_like(peer.parameters[-1], float("nan"))

    return replace(peer, backward=backward)


def idle(job):
    return replace(step_by_step(job), backward=lambda: None)


def unable(job):
    raise NotImplementedError("it has no such layer")


@pytest.fixture
def stand_ins(monkeypatch):
    """Replace the peers by the functions given by name."""

    def replace_peers(**functions):
        monkeypatch.setitem(sys.modules, "stand_ins", SimpleNamespace(**functions))
        monkeypatch.setattr(measure, "PEERS", {n: f"stand_ins:{n}" for n in functions})

    return replace_peers


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_equal_gradients_are_timed(stand_ins, rnn_type):
    stand_ins(step_by_step=step_by_step)
    (speed,) = measure_peers(replace(TINY, rnn_type=rnn_type), num_pairs=3)
    assert speed.note == "1.0: stand-in"
    assert 0 < speed.gradient_error < 1e-5
    assert speed.speed is not None
    assert len(speed.speed.ours) == len(speed.speed.theirs) == 3


@pytest.mark.parametrize("wrong", [without_resets, not_a_number, idle])
def test_another_gradient_is_refused(stand_ins, wrong):
    stand_ins(wrong=wrong, step_by_step=step_by_step)
    refused, right = measure_peers(TINY, num_pairs=1)
    assert refused.speed is None
    assert "expected less than 1e-04: times of different computations" in refused.note
    assert right.speed is not None


def test_the_refusal_names_the_error():
    ours, peer = build_ours(TINY), build_ours(TINY)
    with torch.no_grad():
        for a, b in zip(ours.parameters, peer.parameters, strict=True):
            b.copy_(a)
    assert check_gradient(ours, peer) == 0
    with torch.no_grad():
        peer.parameters[0].mul_(1.01)
    with pytest.raises(ValueError, match=r"gradient_error is .*, expected less than 1e-04"):
        check_gradient(ours, peer)


def test_a_peer_that_cannot_or_is_not_there_is_listed(stand_ins, monkeypatch):
    stand_ins(unable=unable)
    monkeypatch.setitem(measure.PEERS, "absent", "no_such_library:build")
    unable_speed, absent = measure_peers(TINY, num_pairs=1)
    assert unable_speed.note == "not timed: it has no such layer"
    assert "No module named 'no_such_library'" in absent.note
    assert "make .peers/.installed" in absent.note


def test_the_network_is_that_of_the_algorithms():
    case = Case(algorithm="distillation", num_envs=1, num_steps=1, gradient_length=1)
    student, ours = build(case, "rsl_rl").student, Network(replace(TINY, rnn_hidden_dim=256))
    ours.rnn.load_state_dict(student.rnn.rnn.state_dict())
    ours.mlp.load_state_dict(student.mlp.state_dict())
    latent = torch.randn(3, 256)
    assert torch.equal(ours.mlp(latent), student.mlp(latent))


def test_table():
    speed = Speed(ours=[0.1, 0.1, 0.1], theirs=[0.25, 0.2, 0.3])
    aligned = table(
        [
            PeerSpeed(name="fast", note="1.0: way", speed=speed, gradient_error=4.2e-7),
            PeerSpeed(name="lost", note="not timed: a | b\nc"),
        ]
    )
    lines = re.sub(" +", " ", aligned).splitlines()
    assert lines[2] == "| fast | 250 ms | 100 ms | 2.50 | 2.00 | 3.00 | 4e-07 | 1.0: way |"
    assert lines[3] == "| lost | - | - | - | - | - | - | not timed: a \\| b c |"
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


@pytest.mark.skipif(not (measure.FOLDER / ".installed").exists(), reason="make .peers/.installed")
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_installed_peers_compute_our_gradient(repository, rnn_type):
    """In a process of its own, as the peers register environments and change log levels."""
    options = (f"--rnn-type={rnn_type}", "--num-envs=5", "--num-steps=7", "--done-rate=0.3")
    command = [sys.executable, "-m", "scripts.benchmark", "peers", *options]
    command += ["--rnn-hidden-dim=8", "--pairs=1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)
    lines = re.sub(" +", " ", result.stdout).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert tuple(row[0].removeprefix("| ") for row in rows) == ALL_PEERS
    reasons = {row[0].removeprefix("| "): row[-1] for row in rows if row[1] == "-"}
    expected = {"TorchRL, triton": "needs a GPU"}
    if rnn_type == "gru":
        expected |= {name: "no GRU" for name in ALL_PEERS if name.startswith("sb3")}
    assert reasons.keys() == expected.keys(), result.stdout
    assert all(reason in reasons[name] for name, reason in expected.items())
