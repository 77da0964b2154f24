"""Time and memory of updates on this machine: ``python -m scripts.benchmark``.

``rows.yaml`` is what is measured, ``suite.py`` runs it; ``figures.py`` and
``report.md.j2`` show it.
"""
