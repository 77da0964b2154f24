"""A peer is timed only if its gradient equals ours; a missing peer does not stop the others."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scripts.benchmark.case import Case
from scripts.benchmark.peers import measure
from scripts.benchmark.peers.measure import Network, build_peer, rollout, table

TINY = Case(num_envs=8, num_steps=7, done_rate=0.3, rnn_hidden_dim=8)
ALL_PEERS = tuple(measure.PEERS)


def step_by_step(case, *, forget=True):
    """Stand in for a peer: the network called step by step, with states cleared by hand."""
    model, drawn = Network(case), rollout(case)

    def outputs():
        state, latents = None, []
        for obs, starts in zip(drawn.obs, drawn.episode_starts, strict=True):
            if state is not None and forget:
                keep = (~starts).float().unsqueeze(-1)
                state = tuple(s * keep for s in state) if case.rnn_type == "lstm" else state * keep
            latent, state = model.rnn(obs.unsqueeze(0), state)
            latents.append(latent)
        return model.mlp(torch.cat(latents))

    return build_peer("1.0: stand-in", [model], outputs, drawn.labels["actions"])


def without_resets(case):
    return step_by_step(case, forget=False)


def not_a_number(case):
    """Spoil the gradient of the last parameter only."""
    peer = step_by_step(case)

    def backward():
        peer.backward()
        peer.parameters[-1].grad = torch.full_like(peer.parameters[-1], float("nan"))

    return replace(peer, backward=backward)


def idle(case):
    return replace(step_by_step(case), backward=lambda: None)


def unable(case):
    raise NotImplementedError("it has no a | b\nlayer")


def rows(monkeypatch, case, **functions):
    """Return the table's cells by peer, with functions as the peers."""
    monkeypatch.setitem(sys.modules, "stand_ins", SimpleNamespace(**functions))
    peers = {name: f"stand_ins:{name}" for name in functions} | {"absent": "no_such_library:build"}
    monkeypatch.setattr(measure, "PEERS", peers)
    lines = re.sub(" +", " ", table(case, 3)).replace("\\|", "/").splitlines()
    cells = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    return {name: rest for name, *rest in cells}


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_equal_gradients_are_timed_and_others_refused(monkeypatch, rnn_type):
    wrong = {"no_resets": without_resets, "nan": not_a_number, "idle": idle}
    case = replace(TINY, rnn_type=rnn_type)
    found = rows(monkeypatch, case, right=step_by_step, unable=unable, **wrong)
    theirs, ours, ratio, error, how = found["right"]
    assert theirs.endswith(" ms")
    assert ours.endswith(" ms")
    assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", ratio)
    assert float(error) < 1e-5
    assert how == "1.0: stand-in"
    for name in wrong:
        assert found[name][0] == "-"
        assert "expected less than 1e-04: times of different computations" in found[name][-1]
    assert found["unable"][-1] == "not timed: it has no a / b layer"
    assert "No module named 'no_such_library'" in found["absent"][-1]
    assert "make .peers/.installed" in found["absent"][-1]


@pytest.mark.skipif(not (measure.FOLDER / ".installed").exists(), reason="make .peers/.installed")
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_installed_peers_compute_our_gradient(repository, rnn_type):
    """Runs in a separate process, because the peers register environments and change log levels."""
    options = (f"--rnn-type={rnn_type}", "--num-envs=8", "--num-steps=7", "--done-rate=0.3")
    command = [sys.executable, "-m", "scripts.benchmark", "peers", *options]
    command += ["--rnn-hidden-dim=8", "--pairs=1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)
    lines = re.sub(" +", " ", result.stdout).splitlines()
    cells = [line[2:].split(" | ") for line in lines if line.startswith("| ")][1:]
    assert tuple(row[0] for row in cells) == ALL_PEERS
    reasons = {row[0]: row[-1] for row in cells if row[1] == "-"}
    expected = {"TorchRL, triton": "needs a GPU"}
    if rnn_type == "gru":
        expected |= {name: "no GRU" for name in ALL_PEERS if name.startswith("sb3")}
    assert reasons.keys() == expected.keys(), result.stdout
    assert all(reason in reasons[name] for name, reason in expected.items())
