"""Each report imports only what it needs: a text or JSON run never pays for a template engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from tests.report import builder, tuning_builder
{code}
print(" ".join(sorted({{name.split(".")[0] for name in sys.modules}} & {{"jinja2", "rich", "markupsafe", "scipy"}})))
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("from flatout.report.text import diagnosis_text\ndiagnosis_text(builder.straggler())", ""),
        ("from flatout.report.json import diagnosis_json\ndiagnosis_json(builder.straggler(), [])", ""),
        (
            "from flatout.report.diff import diff\nfrom flatout.report.diff_text import diff_text\n"
            "a = builder.straggler()\ndiff_text(diff(a, a), a, a)",
            "",
        ),
        ("import flatout.report.html", ""),
        (
            "from flatout.report.html import diagnosis_html\ndiagnosis_html(builder.straggler(), [])",
            "jinja2 markupsafe",
        ),
        ("import flatout.report.perfetto", ""),
        (
            "from tests.report import plan_builder\nfrom flatout.report.plan_text import plan_text\n"
            "from flatout.report.terminal import TextStyle\n"
            "plan_text(plan_builder.interleaved()[0], style=TextStyle(), next_command='')",
            "",
        ),
        (
            "from tests.report import plan_builder\nfrom flatout.report.plan_html import plan_html\n"
            "plan_html(*plan_builder.interleaved(), [], next_command=[])",
            "jinja2 markupsafe",
        ),
        ("from flatout.report.tuning_text import tuning_text\ntuning_text(tuning_builder.better(), 'out')", ""),
        ("from flatout.report.tuning_json import tuning_json\ntuning_json(tuning_builder.better(), [])", ""),
        (
            'from flatout.report.tuning_html import tuning_html\ntuning_html(tuning_builder.better(), [], "out")',
            "jinja2 markupsafe",
        ),
    ],
)
def test_a_report_loads_no_more_than_it_needs(code: str, loaded: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded
