"""One word, one thing: no two public classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.syntax import nodes
from tests.test_imports import modules

# The same thing in several forms: of three frameworks, and on both sides of the protocol with the job.
ALLOWED = {
    "FlatoutCallback": ["callbacks.frameworks", "callbacks.frameworks", "callbacks.frameworks"],
    "StopRule": ["inside.settings", "records.stop_rule"],
}


def test_public_classes_have_names_of_their_own() -> None:
    classes = defaultdict(list)
    for module, path in sorted(modules().items()):
        for node in nodes(path.read_text()):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(module)
    assert {name: where for name, where in classes.items() if len(where) > 1} == ALLOWED
