"""What is installed: momentgen/, and rules/ and generated/ inside it.

They live at the top of the repository, where a reader looks for them, and
install as ``momentgen.rules`` and ``momentgen.generated``.  The description of a
distribution is README.md with absolute links.  All else is in pyproject.toml.

A wheel holds no compiled code and runs anywhere, unless ``MOMENTGEN_KERNELS=1``:
then it holds the kernels, compiled for the kinds of processors of this platform.
"""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, find_namespace_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KERNELS = os.environ.get("MOMENTGEN_KERNELS", "0") not in ("", "0")


class Platform(Distribution):
    """Whether the wheel is of one platform."""

    def has_ext_modules(self) -> bool:
        return KERNELS


class BuildWithKernels(build_py):
    """Compiles the kernels beside the modules."""

    def run(self) -> None:
        super().run()
        if KERNELS and not self.editable_mode:
            sys.path.insert(0, str(ROOT))
            from momentgen.native.c_sources import every_source
            from momentgen.native.shipped import compile_all

            kernels = Path(self.build_lib) / "momentgen" / "kernels"
            shutil.rmtree(kernels, ignore_errors=True)  # of sources as they were at an earlier build
            compile_all(every_source(ROOT / "generated"), kernels)


class AnyPython(bdist_wheel):
    """Kernels are called by ctypes: one wheel is for every version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def description() -> str:
    """README.md as a registry shows it: links lead to the files of this version in the repository."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    code = (ROOT / "momentgen" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', code, flags=re.M)

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}{link['text']}({source}/{kind}/v{version}/{link['target']})"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(?P<picture>!?)(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<target>[^)\s]+)\)", absolute, text)


ours = find_namespace_packages(include=["momentgen", "momentgen.*"])
built = [f"momentgen.generated.{rule}" for rule in find_namespace_packages("generated", exclude=["__pycache__"])]

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    packages=[*ours, "momentgen.rules", "momentgen.rules.evidence", "momentgen.generated", *built],
    package_dir={"momentgen": "momentgen", "momentgen.rules": "rules", "momentgen.generated": "generated"},
    distclass=Platform,
    cmdclass={"bdist_wheel": AnyPython, "build_py": BuildWithKernels},
)
