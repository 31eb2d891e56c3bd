"""What is installed: momentgen/, and rules/ and generated/ inside it.

They live at the top of the repository, where a reader looks for them, and
install as ``momentgen.rules`` and ``momentgen.generated``.  All else is in
pyproject.toml.
"""

from setuptools import find_namespace_packages, setup

ours = find_namespace_packages(include=["momentgen", "momentgen.*"])
built = [f"momentgen.generated.{rule}" for rule in find_namespace_packages("generated", exclude=["__pycache__"])]

setup(
    packages=[*ours, "momentgen.rules", "momentgen.generated", *built],
    package_dir={"momentgen": "momentgen", "momentgen.rules": "rules", "momentgen.generated": "generated"},
)
