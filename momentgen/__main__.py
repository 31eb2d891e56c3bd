"""``momentgen`` and ``python -m momentgen``: the command line, where what it needs is installed."""

import sys

from momentgen.extras import MissingExtraError, require

__all__ = ["main"]


def main() -> None:
    """Run the command line; without the extra ``compiler`` say the line to type, with exit code 1."""
    try:
        require("compiler", "The command line")
    except MissingExtraError as error:
        sys.exit(f"momentgen: {error}")
    from momentgen.commands.cli import main as run

    run()


if __name__ == "__main__":
    main()
