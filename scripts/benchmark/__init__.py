"""Time and memory of updates on this machine: ``python -m scripts.benchmark``.

``rows.py`` is what is measured, ``suite.py`` runs it, ``report.py`` and ``figures.py`` show it.
"""
