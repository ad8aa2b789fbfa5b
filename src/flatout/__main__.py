"""`python -m flatout`, the same as `flatout`."""

import sys

from flatout.cli import main

sys.exit(main())
