"""`python -m flatout`, the same as `flatout`."""

import sys


def main() -> int:
    """Call `flatout.cli.main`, without a traceback for Ctrl-C while it is still being imported."""
    try:
        from flatout.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
