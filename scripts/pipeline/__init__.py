"""Runs of an experiment: train its policies, evaluate, export, report.

::

    experiments.py  what an experiment may contain
    stages.py       the commands of an experiment and what each depends on
    run.py          runs what is unfinished
    report.py       the closing table, and what the page of rsl-tbptt report shows of it
    sweep.py        what a sweep may contain: the same policies over several seeds
    curves.py       runs a sweep; learning.py: how its policies learned
    one_policy.py   one training on its own, for scripts/train.py, distill.py and finetune.py
"""
