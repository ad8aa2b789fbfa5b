"""Check HTML pages with axe-core in headless Chromium: 360 and 1280 px wide, light and dark.

    npm install axe-core && python integrations/axe_pages.py node_modules/axe-core/axe.min.js PAGE.html ...

Each page is checked in a frame of that width, in a copy without its content policy, which forbids the checker's script.
It prints every serious or critical violation; the exit code is 1 if there is one, or if a page could not be checked.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = (360, 1280)
SCHEMES = {"light": 1, "dark": 0}  # Blink's numbers of the preferred colour scheme
SERIOUS = {"serious", "critical"}
_POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", re.IGNORECASE)
_RUN = """
axe.run().then(result => {
  const places = one => one.nodes.map(node => node.target.join(' ')).slice(0, 3);
  const found = result.violations.map(one => [one.impact, one.id, places(one)]);
  parent.document.body.textContent = 'AXE' + JSON.stringify({found, passes: result.passes.length, width: innerWidth,
    isDark: matchMedia('(prefers-color-scheme: dark)').matches}) + 'END';
});
"""


def checked(page: Path, axe: str, width: int, scheme: str) -> dict[str, object] | None:
    """Return what axe found, and in which circumstances; None if the browser gave no result."""
    content = _POLICY.sub("", page.read_text(encoding="utf-8"))
    content += f"<script>{axe}</script><script>{_RUN}</script>"
    start = f'<!doctype html><title>check</title><body><iframe width="{width}" height="2000" srcdoc="'
    frame = f'{start}{html.escape(content)}">'
    with tempfile.TemporaryDirectory() as folder:
        outer = Path(folder) / "outer.html"
        outer.write_text(frame, encoding="utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1400,2100",
            "--virtual-time-budget=20000",
        ]
        settings = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
        command = ["chromium", *options, settings, f"--user-data-dir={folder}/profile", "--dump-dom", outer.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    match = re.search(r"AXE(\{.*\})END", html.unescape(done.stdout), re.DOTALL)
    return None if match is None else dict(json.loads(match[1]))


def main() -> int:
    axe = Path(sys.argv[1]).read_text(encoding="utf-8")
    is_clean = True
    for page in map(Path, sys.argv[2:]):
        for width in WIDTHS:
            for scheme in SCHEMES:
                result = checked(page, axe, width, scheme)
                is_right = result is not None and result["width"] == width and result["isDark"] == (scheme == "dark")
                serious = [one for one in result["found"] if one[0] in SERIOUS] if result is not None else []  # type: ignore[attr-defined]
                is_clean = is_clean and is_right and not serious
                said = serious or (
                    f"{result['passes']} rules pass" if result is not None and is_right else "not checked"
                )
                print(f"{page.name}, {width} px, {scheme}: {said}", flush=True)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
