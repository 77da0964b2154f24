"""1, 2 and 4 ranks are one training, whatever the environments of each, and resume each other's."""

import pytest
import torch
from support.rank_processes import join_ranks, start_ranks
from support.ranked_run import CASES, SAVED, UPDATES, run_rank
from support.safe_runs import train_cfg

from rsl_tbptt.runners import TbpttOnPolicyRunner
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.slow

OTHERS = {1: (), 2: (1,), 4: (1, 2)}
"""Whose checkpoints are gone on from at first; one rank comes again at last."""
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each rank reached, by number of ranks, and where the runs lie."""
    root = tmp_path_factory.mktemp("ranks")
    for num_ranks, others in [*OTHERS.items(), (1, (2, 4))]:
        processes = start_ranks(num_ranks, run_rank, str(root), others, folder=root)
        codes = join_ranks(processes)
        said = [(root / f"output_{rank}").read_text()[-3000:] for rank in range(num_ranks)]
        assert codes == [0] * num_ranks, "\n".join(said)
    return {
        num: [torch.load(root / f"ranks_{num}_{rank}.pt") for rank in range(num)] for num in OTHERS
    } | {"root": root}


def assert_close(numbers, expected, **tolerance):
    assert numbers.keys() == expected.keys()
    assert len(numbers) > 30
    for name, value in expected.items():
        torch.testing.assert_close(numbers[name], value, **tolerance, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_ranks_leaves_the_same_numbers(results, case, num_ranks):
    (alone,) = results[1]
    assert len(alone[case]["metrics"]) == UPDATES
    assert not any(update["skipped_updates"] for update in alone[case]["metrics"])
    for of_rank in results[num_ranks]:
        assert of_rank[case]["numbers"]["." + POLICY[case]].dtype == torch.float64
        assert_close(of_rank[case]["numbers"], alone[case]["numbers"], **CLOSE)


POLICY = {
    "distillation": "student_state_dict.rnn.rnn.weight_hh_l0",
    "ppo": "actor_state_dict.rnn.rnn.weight_hh_l0",
    "fine-tuning": "actor_state_dict.rnn.rnn.weight_hh_l0",
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_all_ranks_have_the_same_bits(results, case, num_ranks):
    first, *others = results[num_ranks]
    for other in others:
        assert_close(other[case]["numbers"], first[case]["numbers"], rtol=0.0, atol=0.0)


METRICS = {
    "distillation": ["behavior", "grad_norm", "optimizer_steps"],
    "ppo": ["value", "surrogate", "entropy", "kl", "rnd", "actor_grad_norm"],
    "fine-tuning": ["value", "surrogate", "kl", "teacher", "teacher_coef", "critic_grad_norm"],
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_metrics_are_of_all_ranks(results, case, num_ranks):
    (alone,) = results[1]
    for update, expected in enumerate(alone[case]["metrics"]):
        past = ["buffer"] if case == "distillation" and update > 0 else []
        for name in [*METRICS[case], *past, "auxiliary/cue", "done_rate", "skipped_updates"]:
            seen = [of_rank[case]["metrics"][update][name] for of_rank in results[num_ranks]]
            assert seen == pytest.approx([expected[name]] * num_ranks, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_goes_on_with_other_numbers_of_ranks(results, case):
    (alone,) = results[1]
    # Other ranks begin new episodes, all the same ones, so that what comes is one training too.
    for num_ranks, other, same in ((4, 1, results[2][0]), (4, 2, alone), (1, 4, alone)):
        expected = same[f"{case}_from_{2 if other == 4 else other}"]
        for of_rank in results[num_ranks]:
            went_on = of_rank[f"{case}_from_{other}"]
            assert went_on["done"] == SAVED + 1
            assert_close(went_on["numbers"], expected["numbers"], **CLOSE)
    assert not torch.equal(
        alone[f"{case}_from_2"]["numbers"]["." + POLICY[case]],
        alone[case]["numbers"]["." + POLICY[case]],
    )


def test_one_rank_says_what_is_left_out(results):
    first, second = results[2]
    (line,) = first["ppo_from_1"]["said"]
    assert line.startswith("The checkpoint was written by 1 rank(s) and goes on with 2: random")
    assert second["ppo_from_1"]["said"] == []
    assert "written by 4 rank(s) and goes on with 1" in results[1][0]["ppo_from_4"]["said"][0]


@pytest.mark.parametrize("algorithm", [0, 1], ids=["distillation", "ppo"])
def test_two_ranks_resume_to_the_bit(results, algorithm):
    for of_rank in results[2]:
        whole, resumed = of_rank["resumed"][algorithm]
        assert_close(resumed, whole, rtol=0.0, atol=0.0)


def test_the_first_rank_alone_writes_whole_checkpoints_for_all(results):
    folder = results["root"] / "distillation_parts"
    file = torch.load(folder / "model_1.pt", weights_only=True)
    own = file["rsl_tbptt_runner"]
    assert own["num_iterations"] == 2
    first, second = own["resume_of_ranks"]
    assert (len(first["environment"]["cue"]), len(second["environment"]["cue"])) == (2, 3)
    assert not torch.equal(first["generators"]["torch"], second["generators"]["torch"])
    assert second["buffer"]["sequences"][0].shape[1] > 0
    assert len(list(folder.glob("events.*"))) == 2  # one for each part
    assert {path.name for path in folder.glob("*.pt")} == {f"model_{i}.pt" for i in range(4)}


def test_ranks_on_gpus_are_left_to_rsl_rl(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Device 'cuda:1' does not match expected device"):
        TbpttOnPolicyRunner(RecallEnv(2, 3), train_cfg("ppo"), None, "cuda:1")
