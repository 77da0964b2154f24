"""Options on Isaac Lab's command line reach the algorithm, or are refused."""

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

import isaaclab_tasks  # noqa: F401
from isaaclab.utils import to_dict
from isaaclab_tasks.utils import resolve_task_config
from rsl_rl.utils import resolve_class

import rsl_tbptt_tasks.isaaclab  # noqa: F401
from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.extensions.heads import parse_heads
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'RigidBodyMaterialCfg' is deprecated:DeprecationWarning"),
]

OURS, STOCK = "Tbptt-Cartpole-Occluded", "Isaac-Velocity-Flat-AnymalD"
PPO = "rsl_rl_recurrent_cfg_entry_point"
DISTILLATION = "rsl_rl_distillation_recurrent_cfg_entry_point"
TBPTT = {
    PPO: "agent.algorithm.class_name=rsl_tbptt.algorithms:TbpttPPO",
    DISTILLATION: "agent.algorithm.class_name=rsl_tbptt.algorithms:TbpttDistillation",
}
TAKEN_BY_RSL_RL = ("rnd_cfg", "symmetry_cfg", "share_cnn_encoders")


def handed_on(task, agent, *overrides):
    """Return the class and the keyword arguments that rsl_rl gets from a command line."""
    overrides = ["physics=newton_mjwarp", *(f"agent.algorithm.{option}" for option in overrides)]
    if task == STOCK:
        overrides.append(TBPTT[agent])
    _, cfg = resolve_task_config(task, agent, overrides=overrides)
    algorithm, arguments = resolve_class(to_dict(cfg.algorithm))
    return algorithm, {k: v for k, v in arguments.items() if k not in TAKEN_BY_RSL_RL}


@pytest.mark.parametrize("task", [OURS, STOCK])
def test_options_reach_the_algorithm_even_those_a_stock_config_lacks(task):
    algorithm, arguments = handed_on(
        task, DISTILLATION, "gradient_length=32", "update_length=8", "loss_type=huber", "tail=drop"
    )
    options = DistillationOptions.parse(arguments)
    assert algorithm is TbpttDistillation
    assert (options.gradient_length, options.update_length) == (32, 8)
    assert (options.loss_type, options.tail) == ("huber", "drop")


@pytest.mark.parametrize("task", [OURS, STOCK])
def test_options_of_ppo_reach_it_also_none_and_dictionaries(task):
    algorithm, arguments = handed_on(
        task,
        PPO,
        "gradient_length=6",
        "max_grad_norm=null",
        "teacher_cfg={'class_name': 'MLPModel'}",
        "teacher_coef=1",
        "teacher_schedule=exponential",
        "teacher_coef_end=0.1",
        "teacher_updates=60",
        "teacher_checkpoint=model.pt",
    )
    options = PpoOptions.parse(arguments)
    assert algorithm is TbpttPPO
    assert (options.gradient_length, options.max_grad_norm) == (6, None)
    assert options.teacher_cfg == {"class_name": "MLPModel"}
    assert (options.teacher_schedule, options.teacher_checkpoint) == ("exponential", "model.pt")


@pytest.mark.parametrize("task", [OURS, STOCK])
@pytest.mark.parametrize(
    ("agent", "options"), [(PPO, PpoOptions), (DISTILLATION, DistillationOptions)]
)
def test_auxiliary_heads_are_options_of_the_command_line(task, agent, options):
    heads = "{'velocity': {'target': 'policy', 'columns': [0, 1], 'coef': 0.5, 'loss': 'a:b'}}"
    _, arguments = handed_on(task, agent, f"auxiliary={heads}")
    (head,) = parse_heads(options.parse(arguments).auxiliary).values()
    assert (head.target, head.columns, head.coef, head.loss) == ("policy", (0, 1), 0.5, "a:b")


@pytest.mark.isaaclab
def test_the_command_ends_with_the_error(page):
    words = f"train --rl_library rsl_rl --task {OURS} --agent {PPO} physics=newton_mjwarp"
    words += " --device cpu agent.device=cpu agent.algorithm.gradient_lenght=8"
    run = page.run(words.split(), succeeds=False)
    assert "did you mean 'gradient_length'" in run.printed
