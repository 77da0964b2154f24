"""The manual's example for rsl_rl 3.1.2 runs with that release and prints the output shown."""

import re
from pathlib import Path

import torch

PAGE = (Path(__file__).parents[3] / "docs/howto/isaaclab2.md").read_text()


def test_block_for_this_release_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (block,) = re.findall(r"```python\n(# rsl_rl 3\.1\.2\n.*?)```", PAGE, flags=re.DOTALL)
    names = {}
    exec(compile(block, "isaaclab2.md", "exec"), names)
    names["runner"].writer.close()  # its thread would go on writing, relative to another folder
    assert len(re.findall(r"Mean behavior loss: \S+", capsys.readouterr().out)) == 10
