"""A script of this repository, run in the process of :mod:`isaaclab_process`."""

import runpy
import sys
from pathlib import Path


def run(script, arguments):
    """Run the script as if it were called from a shell, which finds its neighbours too."""
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
