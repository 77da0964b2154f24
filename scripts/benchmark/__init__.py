"""Time and memory of updates on this machine: ``python -m scripts.benchmark``.

``rows.yaml`` lists the measurements, ``suite.py`` runs them, ``figures.py`` and ``report.md.j2``
show the results.
"""
