"""What a scan prepares of its weights: right with and without packing, kept only while they are."""

import pytest
import torch

from rsl_tbptt.core.scan import recurrent_scan, unchanged_weights
from rsl_tbptt.core.scan.cpu import weights

pytestmark = pytest.mark.engines(name={"compiled"})

T, N, D, H = 5, 6, 3, 4


@pytest.fixture(params=["packed", "each time"])
def packing(request, monkeypatch):
    """MKL's packed products where this torch has them, and torch's own."""
    if request.param == "packed" and not weights._packs():
        pytest.skip("this torch packs no products")
    monkeypatch.setattr(weights, "_packs", lambda: request.param == "packed")


def gradients(rnn, engine, num_envs=N):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(T, num_envs, D, generator=generator).to(rnn.weight_ih_l0.dtype)
    starts = torch.rand(T, num_envs, generator=generator) < 0.3
    outputs, _ = recurrent_scan(rnn, inputs, None, starts, engine)
    return torch.autograd.grad(outputs.square().sum(), list(rnn.parameters()))


@pytest.mark.parametrize("real", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_those_of_the_reference(engine, cell, packing, real, layers):
    torch.manual_seed(1)
    rnn = cell.rnn_type(D, H, layers).to(real)
    expected = gradients(rnn.double(), "reference")
    found = gradients(rnn.to(real), engine.name)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_nothing_is_kept_of_weights_that_may_change(engine, cell, packing):
    rnn = cell.rnn_type(D, H)
    gradients(rnn, engine.name)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(2.0)
    for one, other in zip(gradients(rnn, engine.name), gradients(rnn, "reference"), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_windows_share_what_is_prepared(engine, cell, packing, monkeypatch):
    made = []
    step_product = weights.step_product
    monkeypatch.setattr(
        weights, "step_product", lambda *args: made.append(1) or step_product(*args)
    )
    monkeypatch.setattr(
        "rsl_tbptt.core.scan.cpu.compiled.step_product",
        lambda *args: made.append(1) or step_product(*args),
    )
    rnn = cell.rnn_type(D, H, 2)
    alone = gradients(rnn, engine.name)
    assert len(made) == 4  # of two layers, forward and backward
    with unchanged_weights():
        gradients(rnn, engine.name)
        with unchanged_weights():
            assert all(map(torch.equal, gradients(rnn, engine.name), alone))
        assert len(made) == 12
        assert all(map(torch.equal, gradients(rnn, engine.name), alone))
        assert len(made) == 12
        gradients(rnn, engine.name, num_envs=2 * N)
        assert len(made) == 16
        assert all(map(torch.equal, gradients(rnn, engine.name), alone))
        assert len(made) == 16  # what was made for N is kept beside what was made for 2 N
    gradients(rnn, engine.name)
    assert len(made) == 20


def test_products_of_another_dtype_have_weights_of_their_own(engine, cell, packing):
    rnn = cell.rnn_type(D, H)

    def in_both():
        with torch.autocast("cpu", torch.bfloat16):
            short = gradients(rnn, engine.name)
        return [*short, *gradients(rnn, engine.name)]

    alone = in_both()
    with unchanged_weights():
        assert all(map(torch.equal, in_both(), alone))


def test_layers_without_biases_are_prepared_anew(engine, cell):
    rnn = cell.rnn_type(D, H, bias=False)
    with unchanged_weights():
        gradients(rnn, engine.name)
        assert weights._kept is not None
        kept = len(weights._kept)
        gradients(rnn, engine.name)
        assert len(weights._kept) == kept


@pytest.mark.parametrize("own", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
def test_layers_with_one_weight_of_their_own_do_not_share(engine, cell, packing, own):
    torch.manual_seed(2)
    rnns = [cell.rnn_type(D, H) for _ in range(2)]
    for name, weight in rnns[0].named_parameters():
        if name != own:
            setattr(rnns[1], name, weight)
    with unchanged_weights():
        found = [gradients(rnn, engine.name) for rnn in rnns]
    for rnn, own in zip(rnns, found, strict=True):
        assert all(map(torch.equal, own, gradients(rnn, engine.name)))
