"""Time and memory of updates on this machine: ``python -m scripts.benchmark``.

``rows.yaml`` lists the measurements, ``suite.py`` runs them, ``report.md.j2`` shows the results.
"""
