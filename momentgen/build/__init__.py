"""Builds: a directory of rules in, a package of ops out, in worker processes.

The top of the compiler: nothing below imports from here.  It imports no compiler unless there is something to compile.
"""

from momentgen.build.package import BuildResult, Reporter, RuleResult, build, check, default_output

__all__ = ["BuildResult", "Reporter", "RuleResult", "build", "check", "default_output"]
