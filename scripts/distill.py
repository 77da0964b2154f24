#!/usr/bin/env python
"""Distil a teacher into a student with the platform's own command, shown before it runs.

Arguments that are not listed go on to that command, for example
`agent.algorithm.gradient_length=8`.
"""

from _one_policy import train_one

if __name__ == "__main__":
    raise SystemExit(train_one(__doc__, policy="student", start="teacher"))
