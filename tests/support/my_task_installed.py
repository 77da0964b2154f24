"""Build and install a package such as examples/task_isaaclab for :mod:`isaaclab_process`."""

import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path


def install(source, name="my_task"):
    """Build a wheel of the package, unpack it into the working directory, and import from there."""
    if importlib.util.find_spec(name):
        return
    from setuptools import build_meta

    folder = Path.cwd()
    os.chdir(shutil.copytree(source, folder / "source"))  # building leaves files behind
    wheel = build_meta.build_wheel(str(folder))
    os.chdir(folder)
    zipfile.ZipFile(wheel).extractall("site-packages")
    sys.path.append(str(folder / "site-packages"))
    importlib.invalidate_caches()
