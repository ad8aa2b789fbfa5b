"""`python -m flatout.compare.clean_up FOLDER [REPOSITORY]`: tidy up after a comparison that was killed.

The guard of the comparison starts this once its jobs have ended. It removes what the interrupted trial wrote, and the
worktrees of the comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.compare.worktrees import FOLDER, Repository, remove_worktree
from flatout.tune.trial_files import settle_interrupted


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    for arm in ("a", "b"):
        settle_interrupted(folder / arm)
    for top in arguments[1:]:
        repository = Repository(top=top, prefix="", num_changed=0)
        for tree in (folder / FOLDER).glob("*"):
            remove_worktree(repository, tree)


if __name__ == "__main__":
    main(sys.argv[1:])
