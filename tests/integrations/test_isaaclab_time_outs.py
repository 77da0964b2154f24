"""TbpttPPO with and without Isaac Lab's final observations."""

import pytest

pytestmark = pytest.mark.isaaclab

WARNING = "Time-outs are bootstrapped with the value before the last step"


def warned(run):
    return sum(message.startswith(WARNING) for message in run.seen["warnings"])


def test_final_observations_arrive_and_give_the_values_of_time_outs(page):
    run = page("final observations")
    timed_out = [step for step in run.seen["steps"] if step["time_outs"]]
    assert timed_out
    assert all(step["final_obs"] for step in timed_out)
    assert max(step["error"] for step in run.seen["steps"]) < 1e-6
    assert warned(run) == 0


def test_without_the_option_the_value_before_the_last_step_is_used_with_one_warning(page):
    run = page("recurrent PPO")
    assert any(step["time_outs"] for step in run.seen["steps"])
    assert not any(step["final_obs"] for step in run.seen["steps"])
    assert max(step["error"] for step in run.seen["steps"]) < 1e-6
    assert warned(run) == 1


def test_steps_before_the_first_reset_do_not_warn(page):
    words = "train --rl_library rsl_rl --task Tbptt-Cartpole-Occluded physics=newton_mjwarp"
    words += " --device cpu agent.device=cpu --agent rsl_rl_recurrent_cfg_entry_point"
    words += " env.compute_final_obs=true agent.init_at_random_ep_len=false"
    run = page.run(words.split())
    assert not run.seen["steps"][0]["final_obs"]
    assert warned(run) == 0
