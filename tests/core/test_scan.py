"""Every scan engine equals the reference, and the reference is right."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tolerances import BFLOAT16, EXACT_FLOAT64
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import CUDA_ENGINES, ENGINES, recurrent_scan
from rsl_tbptt.core.scan.compiler import compiler

RNNS = {"lstm": nn.LSTM, "gru": nn.GRU}
D, H = 3, 4

CPU_ENGINES = [name for name in ENGINES if name not in CUDA_ENGINES]
if compiler() is None:
    CPU_ENGINES.remove("compiled")
HAND_WRITTEN = [name for name in CPU_ENGINES if name in ("compiled", "fused")]


def make_case(rnn_type, num_layers, num_steps, num_envs, done_rate, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    rnn = RNNS[rnn_type](D, H, num_layers, bias=bias).double()
    inputs = torch.randn(num_steps, num_envs, D, dtype=torch.float64, generator=generator)
    tensors = tuple(
        torch.randn(num_layers, num_envs, H, dtype=torch.float64, generator=generator)
        for _ in range(2 if rnn_type == "lstm" else 1)
    )
    starts = torch.rand(num_steps, num_envs, generator=generator) < done_rate
    return rnn, inputs, tensors if rnn_type == "lstm" else tensors[0], starts


def values_and_gradients(rnn, inputs, state, starts, engine):
    """Return outputs, final state and the gradients of all arguments for a random cotangent."""
    leaves = [inputs, *as_tensors(state)]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    given_state = tuple(leaves[1:]) if isinstance(state, tuple) else leaves[1]
    outputs, final = recurrent_scan(rnn, leaves[0], given_state, starts, engine)
    results = [outputs, *as_tensors(final)]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(r.shape, dtype=torch.float64, generator=generator) for r in results]
    weights = [weight.to(inputs) for weight in weights]
    total = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    return [*results, *torch.autograd.grad(total, [*leaves, *rnn.parameters()])]


LAYOUTS = {
    "rows": torch.Tensor.contiguous,
    "columns": lambda tensor: tensor.mT.contiguous().mT,
    "every second": lambda tensor: torch.stack((tensor, tensor), dim=-1)[..., 0],
    "one number": lambda tensor: tensor.flatten()[0].expand(tensor.shape),  # as sum() hands back
}

IN_MEMORY = {
    "rnn_type": st.sampled_from(["lstm", "gru"]),
    "num_layers": st.integers(1, 2),
    "layouts": st.fixed_dictionaries(
        {name: st.sampled_from(list(LAYOUTS)) for name in ("inputs", "state", "starts")}
    ),
    "layouts_of_grads": st.lists(st.sampled_from([*LAYOUTS, None]), min_size=3, max_size=3).filter(
        lambda layouts: layouts[0] or layouts[1]
    ),
}
"""How the arguments of a scan and the gradients of outputs, h and c lie; None for no gradient."""


def check_strides(engine, rnn_type, num_layers, layouts, layouts_of_grads):
    """Compare with the reference, which is given the same numbers row by row."""
    rnn, inputs, state, starts = make_case(rnn_type, num_layers, 4, 3, 0.3)
    inputs, *state = (
        LAYOUTS[layouts[name]](tensor)
        for name, tensor in (("inputs", inputs), *(("state", s) for s in as_tensors(state)))
    )
    starts = LAYOUTS[layouts["starts"]](starts)

    def run(engine, lie):
        leaves = [lie(tensor).detach().requires_grad_() for tensor in (inputs, *state)]
        given = tuple(leaves[1:]) if rnn_type == "lstm" else leaves[1]
        outputs, final = recurrent_scan(rnn, leaves[0], given, lie(starts), engine)
        results = [outputs, *as_tensors(final)]
        generator = torch.Generator().manual_seed(1)
        pairs = [
            (result, lie(LAYOUTS[layout](torch.randn(result.shape, generator=generator).double())))
            for result, layout in zip(results, layouts_of_grads, strict=False)
            if layout
        ]
        leaves += rnn.parameters()
        roots, grads = zip(*pairs, strict=True)
        return [*results, *torch.autograd.grad(roots, leaves, grads, materialize_grads=True)]

    got, want = run(engine, lambda tensor: tensor), run("reference", torch.Tensor.contiguous)
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left, right, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", [name for name in CPU_ENGINES if name != "reference"])
@given(
    rnn_type=st.sampled_from(["lstm", "gru"]),
    num_layers=st.integers(1, 3),
    num_steps=st.integers(1, 9),
    num_envs=st.integers(1, 5),
    done_rate=st.sampled_from([0.0, 0.3, 1.0]),
    bias=st.booleans(),
    seed=st.integers(0, 100),
)
def test_engine_equals_reference(
    engine, rnn_type, num_layers, num_steps, num_envs, done_rate, bias, seed
):
    case = make_case(rnn_type, num_layers, num_steps, num_envs, done_rate, seed, bias)
    expected = values_and_gradients(*case, engine="reference")
    for got, want in zip(values_and_gradients(*case, engine=engine), expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_the_reference_gradient_is_the_derivative(rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 3, 2, 0.3)

    def outputs_of(inputs, *rest):  # gradcheck perturbs the parameters in place
        given_state = rest[:2] if rnn_type == "lstm" else rest[0]
        outputs, final = recurrent_scan(rnn, inputs, given_state, starts, "reference")
        return outputs, *as_tensors(final)

    leaves = [t.clone().requires_grad_() for t in (inputs, *as_tensors(state))]
    assert torch.autograd.gradcheck(outputs_of, [*leaves, *rnn.parameters()])


@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_one_step_by_hand(engine):
    rnn = nn.LSTM(1, 1).double()
    for parameter in rnn.parameters():
        nn.init.constant_(parameter, 0.5)
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    for starts, hidden, cell in ((False, 1.0, 1.0), (True, 0.0, 0.0)):
        outputs, (_, c) = recurrent_scan(rnn, one, (one, one), torch.tensor([[starts]]), engine)
        z = torch.tensor(0.5 * 1.0 + 0.5 * hidden + 0.5 + 0.5, dtype=torch.float64)
        expected_c = z.sigmoid() * cell + z.sigmoid() * z.tanh()
        torch.testing.assert_close(c.squeeze(), expected_c, **EXACT_FLOAT64)
        expected_h = z.sigmoid() * expected_c.tanh()
        torch.testing.assert_close(outputs.squeeze(), expected_h, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", CPU_ENGINES)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_episodes_equal_separate_calls_of_torch(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 8, 1, 0.0)
    starts[5] = True
    outputs, final = recurrent_scan(rnn, inputs, state, starts, engine)
    before, _ = rnn(inputs[:5], state)
    after, expected_final = rnn(inputs[5:])
    torch.testing.assert_close(outputs, torch.cat((before, after)), **EXACT_FLOAT64)
    for got, want in zip(as_tensors(final), as_tensors(expected_final), strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", CPU_ENGINES)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
def test_poison_stays_in_its_episode(engine, rnn_type, poison):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 8, 3, 0.0)
    starts[4, 1] = True
    weights = torch.ones(8, 3, H, dtype=torch.float64)
    weights[:4, 1] = 0.0

    def run(inputs, state):
        inputs = inputs.clone().requires_grad_()
        outputs, final = recurrent_scan(rnn, inputs, state, starts, engine)
        healthy = outputs.where(weights > 0, torch.zeros(()).double())
        (gradient,) = torch.autograd.grad(healthy.sum(), inputs)
        return healthy, gradient, *as_tensors(final)

    expected = run(inputs, state)
    inputs[:4, 1] = poison
    for tensor in as_tensors(state):
        tensor[:, 1] = poison
    results = run(inputs, state)
    untouched = weights[:, :, 0] > 0
    torch.testing.assert_close(results[0], expected[0], rtol=0, atol=0)
    torch.testing.assert_close(results[1][untouched], expected[1][untouched], rtol=0, atol=0)
    for got, want in zip(results[2:], expected[2:], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_poison_without_a_reset_does_spread():
    rnn, inputs, state, starts = make_case("lstm", 1, 8, 3, 0.0)
    inputs[3, 1] = float("nan")
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, "fused")
    assert outputs[3:, 1].isnan().all()


@pytest.mark.parametrize("engine", CPU_ENGINES)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_permuting_environments_permutes_results(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 6, 5, 0.3)
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled = tuple(tensor[:, order] for tensor in as_tensors(state))
    plain, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    permuted, _ = recurrent_scan(
        rnn,
        inputs[:, order],
        shuffled if rnn_type == "lstm" else shuffled[0],
        starts[:, order],
        engine,
    )
    torch.testing.assert_close(permuted, plain[:, order], **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", [name for name in CPU_ENGINES if name != "reference"])
@given(**IN_MEMORY)
def test_tensors_are_read_by_their_strides(engine, **drawn):
    check_strides(engine, **drawn)


@pytest.mark.parametrize("engine", HAND_WRITTEN)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_bfloat16_operands_keep_a_float32_state(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 6, 4, 0.3)
    rnn, inputs = rnn.float(), inputs.float()
    tensors = tuple(tensor.float() for tensor in as_tensors(state))
    state = tensors if rnn_type == "lstm" else tensors[0]
    expected = values_and_gradients(rnn, inputs, state, starts, engine)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = values_and_gradients(rnn, inputs, state, starts, engine)
    assert not torch.equal(results[0], expected[0])
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, **BFLOAT16)


@pytest.mark.parametrize("engine", HAND_WRITTEN)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_a_second_backward_pass_is_refused(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 3, 2, 0.0)
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        outputs.sum().backward()


@pytest.mark.parametrize("engine", HAND_WRITTEN)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_double_backward_is_refused(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 3, 2, 0.0)
    inputs.requires_grad_()
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_no_state_means_zeros(rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 4, 3, 0.3)
    zeros = tuple(torch.zeros_like(tensor) for tensor in as_tensors(state))
    expected, _ = recurrent_scan(rnn, inputs, zeros if rnn_type == "lstm" else zeros[0], starts)
    outputs, _ = recurrent_scan(rnn, inputs, None, starts)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)


def test_refuses_what_it_cannot_run():
    rnn, inputs, state, starts = make_case("lstm", 1, 4, 3, 0.0)
    with pytest.raises(ValueError, match=r"episode_starts has shape \(3, 3\), expected \(4, 3\)"):
        recurrent_scan(rnn, inputs, state, starts[:3])
    with pytest.raises(ValueError, match="scan_engine is 'warp', expected one of"):
        recurrent_scan(rnn, inputs, state, starts, "warp")
    for engine in CUDA_ENGINES:
        with pytest.raises(
            ValueError, match=f"scan_engine is '{engine}', expected one of .* on cpu"
        ):
            recurrent_scan(rnn, inputs, state, starts, engine)
    with pytest.raises(ValueError, match=r"scan_engine is 'compiled', expected .* on meta"):
        recurrent_scan(rnn, inputs.to("meta"), None, starts.to("meta"), "compiled")
    with pytest.raises(NotImplementedError, match="unidirectional"):
        recurrent_scan(nn.LSTM(D, H, bidirectional=True), inputs, None, starts)
    with pytest.raises(NotImplementedError, match=r"nn\.RNN|nn\.LSTM"):
        recurrent_scan(nn.RNN(D, H), inputs, None, starts)
