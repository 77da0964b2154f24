#!/usr/bin/env python
"""Fine-tune a distilled student by PPO with the platform's own command, shown before it runs.

Arguments that are not listed are passed on to that command, for example
`agent.algorithm.student_action_std=0.2`.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from scripts.pipeline.one_policy import train_one

    raise SystemExit(train_one(__doc__, policy="finetuned", start="student"))
