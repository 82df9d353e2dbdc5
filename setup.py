"""What pyproject.toml cannot say.

- README as the description on a package index, where relative links lead nowhere.
- The wheel contains two files of the repository's root, which `fedsim cluster init` writes.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
CLUSTER_FILES = ("ray_cluster.yaml", "constraints.txt")
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)\s]*)\)")


def render_description(readme: str, repository: str | None, version: str) -> str:
    """Make relative links absolute; without the address of a repository, leave their texts.

    Args:
        readme: Markdown.
        repository: `urls.Repository` of pyproject.toml, such as `https://github.com/OWNER/NAME`.
        version: the version whose tag (`v0.2.0`) has the files.
    """

    def replace(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if target.startswith("#"):
            return text  # an index has no anchors for headings
        if repository is None:
            return "" if image else text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return RELATIVE_LINK.sub(replace, readme)


class BuildWithClusterFiles(build_py):
    """Copy the two files into the package `api`."""

    def run(self) -> None:
        """Build in an empty folder, then copy: a file that an earlier version had must not be installed."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "api" / "cli" / "cluster"
            self.mkpath(str(folder))
            for name in CLUSTER_FILES:
                self.copy_file(str(HERE / name), str(folder / name))


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    setup(
        cmdclass={"build_py": BuildWithClusterFiles},
        long_description=render_description(
            (HERE / "README.md").read_text("utf-8"),
            project.get("urls", {}).get("Repository"),
            project["version"],
        ),
        long_description_content_type="text/markdown",
    )
