"""Isaac Lab's ``--logger wandb``, offline."""

import pytest

pytest.importorskip("wandb", reason="the wandb extra is not installed")

pytestmark = pytest.mark.isaaclab


def test_every_metric_of_the_algorithm_is_in_the_offline_run(page):
    folder = page("wandb").folder.parents[3]
    (written,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for tag in ("Loss/value", "Loss/kl", "Loss/actor_grad_norm", "Loss/done_rate"):
        assert tag.encode() in content, tag
    assert b"Loss/behavior" not in content  # distillation's
