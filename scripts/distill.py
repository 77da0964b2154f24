#!/usr/bin/env python
"""Distil a teacher into a student with the platform's own command, shown before it runs.

Arguments that are not listed are passed on to that command, for example
`agent.algorithm.gradient_length=8`.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from scripts.pipeline.one_policy import train_one

    raise SystemExit(train_one(__doc__, policy="student", start="teacher"))
