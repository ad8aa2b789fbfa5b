"""Check every page of the built docs with axe-core in headless Chromium: 360 and 1280 px wide, light and dark.

    npm install axe-core && make docs
    python benchmarks/axe_site.py node_modules/axe-core/axe.min.js --out benchmarks/results/axe_site.json

A server on this host alone gives the pages to the browser, each in a frame of that width, with the checker's script at
its end. Reports of Flatout are checked by `integrations/axe_pages.py`, in the same sizes and schemes. It prints every
serious or critical violation; the exit code is 1 if there is one, or if a page could not be checked.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WIDTHS = (360, 1280)
SCHEMES = {"light": 1, "dark": 0}  # Blink's numbers of the preferred colour scheme
SERIOUS = {"serious", "critical"}
PAGE_S = 90.0  # the longest time of one check
_DRIVER = """<!doctype html><html lang="en"><title>axe</title><body><script>
const post = (path, body) => fetch(path, {method: 'POST', body: JSON.stringify(body)});
const answer = () => new Promise(resolve => {
  const timer = setTimeout(() => resolve({problem: 'no answer'}), LIMIT);
  window.onmessage = ({data}) => {
    if (data.found || data.problem) { clearTimeout(timer); resolve(data); }
  };
});
(async () => {
  for (const [page, width] of JOBS) {
    const frame = document.createElement('iframe');
    frame.width = width;
    frame.height = 900;
    frame.src = '/' + page;
    const answered = answer();
    document.body.replaceChildren(frame);
    await post('/result', {page, width, ...await answered});
  }
  await post('/done', {});
})();
</script>"""
_CHECK = """<script src="/axe.js"></script><script>
addEventListener('load', () => setTimeout(() => axe.run(document, {iframes: false}).then(result => {
  const places = one => one.nodes.map(node => node.target.join(' ')).slice(0, 3);
  const found = result.violations.map(one => [one.impact, one.id, one.nodes.length, places(one)]);
  parent.postMessage({found, passes: result.passes.length, inner: innerWidth, version: axe.version,
    isDark: matchMedia('(prefers-color-scheme: dark)').matches,
    scheme: document.body.dataset.mdColorScheme || ''}, '*');
}, error => parent.postMessage({problem: String(error)}, '*')), 200));
</script>"""


class Results:
    """What the browser sent, and whether it sent all."""

    def __init__(self, axe: str, site: Path) -> None:
        self.axe = axe
        self.site = site
        self.rows: list[dict[str, Any]] = []
        self.is_done = threading.Event()
        self.driver = ""


class Handler(SimpleHTTPRequestHandler):
    """Serve the site, its pages with the checker's script, and take the results."""

    def __init__(self, *arguments: Any, results: Results) -> None:
        self.results = results
        super().__init__(*arguments, directory=str(results.site))

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/axe.js":
            self._send(self.results.axe, "text/javascript")
        elif path == "/driver":
            self._send(self.results.driver, "text/html")
        elif path.endswith(".html") and (page := self.results.site / path.lstrip("/")).is_file():
            self._send(with_check(page.read_text(encoding="utf-8")), "text/html")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/result":
            self.results.rows.append(json.loads(body))
        else:
            self.results.is_done.set()
        self._send("", "text/plain")

    def _send(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""


def with_check(page: str) -> str:
    """Return the page with the checker's script before the end of its body."""
    head, end, tail = page.rpartition("</body>")
    return f"{head}{_CHECK}{end}{tail}" if end else page + _CHECK


@contextmanager
def served(results: Results) -> Iterator[str]:
    """Serve the site on a free port of this host while the block runs, and give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, results=results))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def checked(results: Results, pages: list[str], scheme: str) -> list[dict[str, Any]]:
    """Let one browser check all pages in this scheme, and return one row for each page and width."""
    jobs = [(page, width) for page in pages for width in WIDTHS]
    results.rows = []
    results.is_done.clear()
    results.driver = _DRIVER.replace("JOBS", json.dumps(jobs)).replace("LIMIT", str(int(PAGE_S * 1000)))
    with served(results) as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
        options += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", f"--user-data-dir={profile}"]
        browser = subprocess.Popen(["chromium", *options, f"{address}/driver"], stderr=subprocess.DEVNULL)
        try:
            _wait(results, browser, len(jobs), scheme)
        finally:
            browser.terminate()
            browser.wait(30)
    rows = {(row["page"], row["width"]): row for row in results.rows}
    return [
        {"page": page, "width": width, "scheme_name": scheme, **rows.get((page, width), {"problem": "not checked"})}
        for page, width in jobs
    ]


def _wait(results: Results, browser: subprocess.Popen[bytes], num_jobs: int, scheme: str) -> None:
    """Wait until all results are there; stop when the browser ends or sends none for longer than a check may take."""
    num_rows, since_s = 0, time.monotonic()
    while not results.is_done.wait(2.0) and browser.poll() is None:
        if len(results.rows) > num_rows:
            num_rows, since_s = len(results.rows), time.monotonic()
            print(f"{scheme}: {num_rows} of {num_jobs} checks", file=sys.stderr, flush=True)
        elif time.monotonic() - since_s > PAGE_S + 30:
            return


def problem_of(row: dict[str, Any]) -> str | None:
    """Return why a row does not count: the page was not checked, or not in this size and scheme."""
    if "problem" in row:
        return str(row["problem"])
    is_dark = row["scheme_name"] == "dark"
    if row["inner"] != row["width"] or row["isDark"] != is_dark:
        return f"it was {row['inner']} px wide, and {'dark' if row['isDark'] else 'light'}"
    if row["scheme"] != ("slate" if is_dark else "default"):
        return f"the theme's scheme was {row['scheme']}"
    return None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept: counts, each serious violation with its places, and the rules that passed, by page."""
    serious, problems, other = [], [], {}
    passes: dict[str, dict[str, int]] = {}
    for row in rows:
        where = f"{row['width']} px, {row['scheme_name']}"
        if (problem := problem_of(row)) is not None:
            problems.append({"page": row["page"], "at": where, "problem": problem})
            continue
        passes.setdefault(row["page"], {})[where] = row["passes"]
        for impact, rule, count, places in row["found"]:
            if impact in SERIOUS:
                serious.append({"page": row["page"], "at": where, "rule": rule, "places": count, "first": places})
            else:
                other[f"{rule} ({impact})"] = other.get(f"{rule} ({impact})", 0) + 1
    return {
        "axe": next((row["version"] for row in rows if "version" in row), None),
        "pages": len({row["page"] for row in rows}),
        "checks": len(rows),
        "serious": serious,
        "not_checked": problems,
        "minor_or_moderate": other,
        "rules_passed": passes,
    }


def browser_version() -> str:
    done = subprocess.run(["chromium", "--version"], capture_output=True, text=True)
    return re.sub(r"\.\d.*", "", done.stdout.strip()) or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--page", default="*", help="only pages whose path matches, e.g. 'how-to/*'")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    options = parser.parse_args()
    site = options.site.resolve()
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    pages = [page for page in found if fnmatch.fnmatch(page, options.page)]
    if not pages:
        raise SystemExit(f"error: no page matches {options.page} in {site}: build the docs first, with make docs")
    results = Results(options.axe.read_text(encoding="utf-8"), site)
    rows = []
    for scheme in SCHEMES:
        rows += checked(results, pages, scheme)
    kept = {"browser": browser_version(), **summary(rows)}
    for one in [*kept["serious"], *kept["not_checked"]]:
        print(one, flush=True)
    print(f"{kept['pages']} pages, {kept['checks']} checks: {len(kept['serious'])} serious or critical violations")
    if options.out is not None:
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if kept["serious"] or kept["not_checked"] else 0


if __name__ == "__main__":
    sys.exit(main())
