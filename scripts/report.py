#!/usr/bin/env python
"""Write results.json and one self-contained report.html into a finished run folder."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from scripts.pipeline.report import main

    main()
