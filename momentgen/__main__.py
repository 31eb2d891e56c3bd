"""``python -m momentgen``: the command line."""

from momentgen.cli import main

if __name__ == "__main__":
    main()
