"""The README's example for rsl_rl 3.1.2 runs with that release and prints what it says."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_block_for_this_release_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (block,) = re.findall(r"```python\n(# rsl_rl 3\.1\.2\n.*?)```", README, flags=re.DOTALL)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    names["runner"].writer.close()  # its thread would go on writing, relative to elsewhere
    assert len(re.findall(r"Mean behavior loss: \S+", capsys.readouterr().out)) == 10
