"""Runs of a preset: train its policies, evaluate, export, report.

::

    presets.py      what a preset may contain
    stages.py       the commands of a preset and what each depends on
    run.py          runs what is unfinished
    report.py       the closing table and the page
    curves.py       the same policies over several seeds; learning.py: how they learned
    one_policy.py   one training on its own, for scripts/train.py, distill.py and finetune.py
"""
