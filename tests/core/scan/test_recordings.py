"""CUDA graphs: whose memory is whose, and what is kept. On a CPU a replay runs the work again."""

import gc
import warnings
import weakref

import pytest
import torch
from support.scan_cases import assert_all_close, make_case
from support.tolerances import BFLOAT16, EXACT_FLOAT64, SAME_FLOAT32

from rsl_tbptt.core.scan import CELLS, recordings_aside, recurrent_scan, selection
from rsl_tbptt.core.scan.cuda import graphs

pytestmark = pytest.mark.engines(name="cuda_graphs")


@pytest.fixture
def pool(monkeypatch):
    """Return a pool without recordings."""
    pool = graphs.Pool()
    monkeypatch.setattr(graphs, "_pool", pool)
    return pool


@pytest.fixture
def scan(engine):
    """Return the scan with recordings."""
    return lambda *case: recurrent_scan(*case, engine=engine.name)


@pytest.fixture
def leaves_of(device):
    """Return a function that makes cases whose inputs need a gradient."""

    def leaves_of(seed, cell=CELLS["lstm"], num_layers=1):
        rnn, inputs, state, starts = make_case(cell, num_layers, 4, 3, 0.3, seed, device=device)
        return rnn, inputs.requires_grad_(), state, starts

    return leaves_of


def num_recordings(pool):
    """Return how many recordings are free, and how many were made."""
    free = sum(len(each) for sizes in pool._free.values() for each in sizes.values())
    return free, pool._num_made


def gradients_of(outputs, rnn, inputs):
    return torch.autograd.grad(outputs.square().sum(), [inputs, *rnn.parameters()])


def assert_equals_reference(outputs, case):
    """Compare outputs and their gradients."""
    expected, _ = recurrent_scan(*case, engine="reference")
    torch.testing.assert_close(outputs, expected, **EXACT_FLOAT64)
    got = gradients_of(outputs, case[0], case[1])
    assert_all_close(got, gradients_of(expected, case[0], case[1]), **EXACT_FLOAT64)


def no_memory_left(*arguments):
    raise torch.OutOfMemoryError("no memory left")


def test_scans_alive_at_once_have_one_each(scan, cell, leaves_of, pool):
    cases = [leaves_of(seed, cell, num_layers=2) for seed in range(3)]
    results = [scan(*case) for case in cases]
    assert num_recordings(pool) == (0, 6)
    for case, (outputs, _) in zip(cases, results, strict=True):
        gradients_of(outputs, case[0], case[1])
    assert num_recordings(pool) == (6, 6)


def test_a_recording_serves_other_weights_and_values(scan, cell, leaves_of, pool):
    for seed in range(3):
        case = leaves_of(seed, cell)
        assert_equals_reference(scan(*case)[0], case)
    assert num_recordings(pool) == (1, 1)


def test_weights_may_change_between_forward_and_backward(scan, leaves_of):
    case = leaves_of(0)
    rnn, inputs, *_ = case
    expected = gradients_of(recurrent_scan(*case, engine="reference")[0], rnn, inputs)
    outputs, _ = scan(*case)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(2.0)
    assert_all_close(gradients_of(outputs, rnn, inputs), expected, **EXACT_FLOAT64)


def test_a_forgotten_scan_gives_its_recording_back(scan, leaves_of, pool):
    outputs, last = scan(*leaves_of(0))
    assert num_recordings(pool) == (0, 1)
    del outputs, last
    gc.collect()
    assert num_recordings(pool) == (1, 1)


def test_a_failed_backward_pass_gives_its_recording_back(scan, leaves_of, pool):
    case = leaves_of(0)
    outputs, last = scan(*case)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(outputs.sum(), case[1], create_graph=True)
    del outputs, last
    gc.collect()
    assert num_recordings(pool) == (1, 1)


def test_a_recording_is_free_after_each_pass_that_needs_it_no_more(scan, leaves_of, pool):
    case = leaves_of(0)
    for _ in range(3):
        gradients_of(scan(*case)[0], case[0], case[1])
        with torch.no_grad():
            scan(*case)
    assert num_recordings(pool) == (2, 2)


def test_each_shape_and_setting_is_recorded_once(scan, leaves_of, pool, monkeypatch):
    rnn, inputs, state, starts = leaves_of(0)

    def run():
        for num_steps in (4, 3):
            outputs, _ = scan(rnn, inputs[:num_steps], state, starts[:num_steps])
            gradients_of(outputs, rnn, inputs)

    run()
    run()
    assert num_recordings(pool) == (2, 2)
    scan(rnn, inputs.detach(), state, starts)[0].sum().backward()
    assert num_recordings(pool) == (3, 3)
    monkeypatch.setattr(graphs, "_situation", lambda device: "other precision")
    run()
    assert num_recordings(pool) == (5, 5)


def test_dtypes_have_recordings_of_their_own(scan, leaves_of, device, pool):
    rnn, inputs, _, starts = leaves_of(0)
    expected, _ = recurrent_scan(rnn, inputs, None, starts, "reference")
    exact = scan(rnn, inputs, None, starts)[0].detach()
    with torch.autocast(device.type, torch.bfloat16):
        assert scan(rnn, inputs, None, starts)[0].dtype == torch.float64
    torch.testing.assert_close(exact, expected.detach(), **EXACT_FLOAT64)
    rnn, inputs = rnn.float(), inputs.detach().float().requires_grad_()
    single = scan(rnn, inputs, None, starts)[0].detach()
    with torch.autocast(device.type, torch.bfloat16):
        rounded = scan(rnn, inputs, None, starts)[0].detach()
    for got, tolerance in ((single, SAME_FLOAT32), (rounded, BFLOAT16)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), exact, **tolerance)
    assert not torch.equal(single, rounded)
    assert num_recordings(pool) == (4, 4)


def test_a_recording_made_in_inference_mode_serves_later(scan, leaves_of, pool):
    case = leaves_of(0)
    expected, _ = recurrent_scan(*case, engine="reference")
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            outputs, _ = scan(*case)
        torch.testing.assert_close(outputs, expected.detach(), **EXACT_FLOAT64)
    assert num_recordings(pool) == (1, 1)


def test_no_more_recordings_than_are_kept(scan, leaves_of, monkeypatch):
    pool = graphs.Pool(max_recordings=1)
    monkeypatch.setattr(graphs, "_pool", pool)
    case = leaves_of(0, num_layers=2)
    with pytest.warns(UserWarning, match="further window shapes are not recorded: 1 are kept"):
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    assert num_recordings(pool) == (1, 1)


def test_sizes_that_change_all_the_time_leave_room_for_other_windows(scan, device, pool):
    most = graphs._MAX_SIZES

    def run(num_envs, num_steps=3):
        case = make_case(CELLS["lstm"], 1, num_steps, num_envs, 0.3, device=device)
        case[1].requires_grad_()
        assert_equals_reference(scan(*case)[0], case)

    for num_envs in range(1, most + 1):
        run(num_envs)
    with pytest.warns(UserWarning, match=f"alike are kept for {most} numbers of environments"):
        run(most + 1)
    for num_envs in (most + 2, 1, most):  # said once
        run(num_envs)
    assert num_recordings(pool) == (most, most)
    run(most + 1, num_steps=2)
    assert num_recordings(pool) == (most + 1, most + 1)


@pytest.mark.usefixtures("pool")
def test_a_recording_that_fails_later_does_not_end_training(scan, leaves_of, monkeypatch):
    scan(*leaves_of(0))
    monkeypatch.setattr(graphs, "record", no_memory_left)
    case = leaves_of(0, num_layers=2)
    with pytest.warns(UserWarning, match=r"not recorded: one could not .*no memory left"):
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, and not tried again
        scan(*case)


@pytest.mark.usefixtures("pool")
def test_what_broke_a_capture_is_said(scan, leaves_of, monkeypatch):
    def cannot_be_ended(*arguments):
        try:
            no_memory_left()
        finally:
            raise RuntimeError("the capture was invalidated")

    scan(*leaves_of(0))
    monkeypatch.setattr(graphs, "record", cannot_be_ended)
    with pytest.warns(UserWarning, match=r"\(the capture was invalidated after no memory left\)"):
        scan(*leaves_of(0, num_layers=2))


@pytest.mark.usefixtures("pool")
def test_a_first_recording_that_fails_is_an_error(scan, leaves_of, monkeypatch):
    monkeypatch.setattr(graphs, "record", no_memory_left)
    with pytest.raises(RuntimeError, match="no memory left"):
        scan(*leaves_of(0))


def test_nothing_is_recorded_inside_the_callers_capture(scan, leaves_of, pool, monkeypatch):
    monkeypatch.setattr(graphs, "_situation", lambda device: None)
    case = leaves_of(0)
    assert_equals_reference(scan(*case)[0], case)
    assert num_recordings(pool) == (0, 0)


def test_recordings_made_aside_are_dropped(scan, leaves_of, pool):
    case = leaves_of(0)
    scan(*case)
    with recordings_aside():
        assert num_recordings(graphs._pool) == (0, 0)
        scan(*case)
        ((recordings,),) = (sizes.values() for sizes in graphs._pool._free.values())
        recording = weakref.ref(recordings[0])
        del recordings
    assert recording() is None
    assert graphs._pool is pool
    assert num_recordings(pool) == (1, 1)


@pytest.mark.usefixtures("pool")
def test_what_was_recorded_aside_shows_that_recording_works(scan, leaves_of, monkeypatch):
    with recordings_aside():
        scan(*leaves_of(0))
    monkeypatch.setattr(graphs, "record", no_memory_left)
    with pytest.warns(UserWarning, match=r"not recorded: one could not .*no memory left"):
        scan(*leaves_of(0))


def test_the_check_of_auto_leaves_no_recordings(engine, cell, device, pool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = selection.first_that_works(cell, device, torch.float64, [engine])
    assert chosen is engine
    assert pool.works
    assert num_recordings(pool) == (0, 0)
