#!/usr/bin/env python
"""Train a policy from scratch with the platform's own command, shown before it runs.

By default this is the experiment's teacher; `--policy scratch`, for example, names another one.
Arguments that are not listed are passed on to that command, for example
`agent.algorithm.learning_rate=5e-4`.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from scripts.pipeline.one_policy import train_one

    raise SystemExit(train_one(__doc__, policy="teacher"))
