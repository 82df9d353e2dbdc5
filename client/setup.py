"""Build fedsim-client from the packages of this repository (`pip wheel --no-deps ./client` in its root)."""

import runpy
import shutil
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("httpx", "pydantic", "PyYAML", "rich", "typer")
"""What the SDK and the commands about jobs, sweeps and presets import."""

if __name__ == "__main__":
    shutil.copy(ROOT / "LICENSE", Path(__file__).parent)
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, packages = whole["project"], whole["tool"]["setuptools"]
    setup(
        version=project["version"],
        install_requires=[text for text in project["dependencies"] if text.partition(">=")[0] in LIBRARIES],
        package_dir={"": ".."},
        packages=find_packages(str(ROOT), **packages["packages"]["find"]),
        package_data=packages["package-data"],
        entry_points={"console_scripts": [" = ".join(pair) for pair in project["scripts"].items()]},
        cmdclass={"build_py": runpy.run_path(str(ROOT / "setup.py"))["BuildWithClusterFiles"]},
    )
