"""1 and 3 ranks give the same training, for any split of environments, and resume each other's."""

import pytest
import torch
from support.rank_processes import join_ranks, start_ranks
from support.ranked_run import CASES, SAVED, UPDATES, run_rank
from support.safe_runs import train_cfg

from rsl_tbptt.runners import TbpttOnPolicyRunner
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results of each rank, by number of ranks, and the folder of the runs."""
    root = tmp_path_factory.mktemp("ranks")
    for num_ranks, others in [(1, ()), (3, (1,)), (1, (3,))]:
        processes = start_ranks(num_ranks, run_rank, str(root), others, folder=root)
        codes = join_ranks(processes)
        said = [(root / f"output_{rank}").read_text()[-3000:] for rank in range(num_ranks)]
        assert codes == [0] * num_ranks, "\n".join(said)
    reached = {
        num: [torch.load(root / f"ranks_{num}_{i}.pt") for i in range(num)] for num in (1, 3)
    }
    return reached | {"root": root}


def assert_close(numbers, expected, **tolerance):
    assert numbers.keys() == expected.keys()
    assert len(numbers) > 30
    for name, value in expected.items():
        torch.testing.assert_close(numbers[name], value, **tolerance, msg=lambda m, n=name: n + m)


POLICY = {
    "distillation": ".student_state_dict.rnn.rnn.weight_hh_l0",
    "ppo": ".actor_state_dict.rnn.rnn.weight_hh_l0",
    "fine-tuning": ".actor_state_dict.rnn.rnn.weight_hh_l0",
}
METRICS = {
    "distillation": ["behavior", "grad_norm", "optimizer_steps"],
    "ppo": ["value", "surrogate", "entropy", "kl", "rnd", "actor_grad_norm"],
    "fine-tuning": ["value", "surrogate", "kl", "teacher", "teacher_coef", "critic_grad_norm"],
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_ranks_gives_the_same_numbers_and_metrics(results, case):
    (alone,), ranks = results[1], results[3]
    assert len(alone[case]["metrics"]) == UPDATES
    assert not any(update["skipped_updates"] for update in alone[case]["metrics"])
    assert alone[case]["numbers"][POLICY[case]].dtype == torch.float64
    assert_close(ranks[0][case]["numbers"], alone[case]["numbers"], **CLOSE)
    for other in ranks[1:]:
        assert_close(other[case]["numbers"], ranks[0][case]["numbers"], rtol=0.0, atol=0.0)
    for update, expected in enumerate(alone[case]["metrics"]):
        past = ["buffer"] if case == "distillation" and update > 0 else []
        for name in [*METRICS[case], *past, "auxiliary/cue", "done_rate", "skipped_updates"]:
            seen = [of_rank[case]["metrics"][update][name] for of_rank in ranks]
            assert seen == pytest.approx([expected[name]] * 3, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_continues_with_other_numbers_of_ranks(results, case):
    (alone,), ranks = results[1], results[3]
    # The ranks begin new episodes, the same ones in all cases, so results are equal again.
    expected = alone[f"{case}_from_3"]
    for of_rank in ranks:
        assert of_rank[f"{case}_from_1"]["done"] == expected["done"] == SAVED + 1
        assert_close(of_rank[f"{case}_from_1"]["numbers"], expected["numbers"], **CLOSE)
    whole = alone[case]["numbers"][POLICY[case]]
    assert not torch.equal(expected["numbers"][POLICY[case]], whole)


def test_only_one_rank_warns_of_what_is_left_out(results):
    first, *others = results[3]
    (line,) = first["ppo_from_1"]["said"]
    assert line.startswith("The checkpoint was written by 1 rank(s) and goes on with 3: random")
    assert [other["ppo_from_1"]["said"] for other in others] == [[], []]
    assert "written by 3 rank(s) and goes on with 1" in results[1][0]["ppo_from_3"]["said"][0]


@pytest.mark.parametrize("algorithm", [0, 1], ids=["distillation", "ppo"])
def test_ranks_resume_to_the_bit(results, algorithm):
    for of_rank in results[3]:
        whole, resumed = of_rank["resumed"][algorithm]
        assert_close(resumed, whole, rtol=0.0, atol=0.0)


def test_only_the_first_rank_writes_complete_checkpoints_for_all(results):
    folder = results["root"] / "distillation_parts"
    own = torch.load(folder / "model_1.pt", weights_only=True)["rsl_tbptt_runner"]
    assert own["num_iterations"] == 2
    states = own["resume_of_ranks"]
    assert [len(state["environment"]["cue"]) for state in states] == [2, 3, 4]
    assert not torch.equal(*(state["generators"]["torch"] for state in states[:2]))
    assert states[1]["buffer"]["sequences"][0].shape[1] > 0
    assert len(list(folder.glob("events.*"))) == 2  # one for each part
    assert {path.name for path in folder.glob("*.pt")} == {f"model_{i}.pt" for i in range(4)}


def test_ranks_on_gpus_are_left_to_rsl_rl(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Device 'cuda:1' does not match expected device"):
        TbpttOnPolicyRunner(RecallEnv(2, 3), train_cfg("ppo"), None, "cuda:1")
