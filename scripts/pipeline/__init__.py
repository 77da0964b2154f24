"""Runs of a preset: train its policies, evaluate, export, report.

::

    presets.py      what a preset may contain; study.py: the same over several seeds
    training.py     a platform's own training command, from a preset
    stages.py       the commands of a preset and what each depends on
    conductor.py    runs what is unfinished: run_folder.py, process.py, progress.py
    results.py      the closing table; report.py, figures.py: the page; learning.py: over seeds
    one_policy.py   one training on its own, for scripts/train.py, distill.py and finetune.py
"""
