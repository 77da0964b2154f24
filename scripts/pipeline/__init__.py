"""Run experiments: train policies, evaluate, export, report.

::

    experiments.py  the fields of an experiment's file
    stages.py       the commands of an experiment and their dependencies
    run.py          runs the unfinished stages
    report.py       the final table, and the page of the run
    events.py       the curves of a training's log folder
    sweep.py        the fields of a sweep's file: the same policies over several seeds
    curves.py       runs a sweep; learning.py, figure.py: how its policies learned
"""
