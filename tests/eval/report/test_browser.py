"""The page in a real browser that has no network."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from bana.eval.report.files import write_report, write_run
from bana.eval.report.records import ReportInput, StoredRun

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 120.0
# Measures every plot once laid out, and says so in the page's title; only the test's copy of the
# page has it, without the policy that would refuse it.
PROBE = """<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const boxes = [...document.querySelectorAll("svg[role=img]")].map(s => s.getBoundingClientRect());
  const small = boxes.filter(b => b.width < 200 || b.height < 60).length;
  const texts = [...document.querySelectorAll("svg[role=img] text")].map(t => t.getBBox());
  const empty = texts.filter(b => b.width <= 0).length;
  const fetched = performance.getEntriesByType("resource").length;
  const wide = document.documentElement.scrollWidth - innerWidth;
  document.body.dataset.probe = [boxes.length, small, empty, fetched, wide].join(",");
});
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


@pytest.fixture(scope="module")
def single(run_at_8: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("single"), run_at_8).page


@pytest.fixture(scope="module")
def several(grid: ReportInput, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("grid") / "report.html"
    write_report(page, grid)
    return page


def browse(browser: str, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Opens the page headless, where every name and address but the file itself is unknown."""
    profile = page.parent / "profile"
    argv = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-dev-shm-usage", "--disable-background-networking",
        "--disable-component-update", "--disable-extensions",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9",
        f"--user-data-dir={profile}", "--virtual-time-budget=4000", *flags, page.as_uri(),
    ]  # fmt: skip
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    finally:
        shutil.rmtree(profile, ignore_errors=True)


def measure(browser: str, page: Path, width: int) -> list[int]:
    """Plots, those too small to see, texts without a width, what was fetched, and the overflow."""
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    probed = page.with_name(f"probed-{width}.html")
    probed.write_text(policy.sub("", page.read_text()).replace("</body>", PROBE + "</body>"))
    dom = browse(browser, probed, "--dump-dom", f"--window-size={width},1000").stdout
    found = re.search(r'data-probe="([-\d,]+)"', dom)
    assert found is not None
    return [int(n) for n in found[1].split(",")]


def test_the_browser_shows_the_sentence(browser: str, single: Path, run_at_8: StoredRun) -> None:
    dom = browse(browser, single, "--dump-dom").stdout
    assert f"<h1>{run_at_8.summary.sentence}</h1>" in dom
    assert dom.count('role="img"') == 12
    assert "<script" not in dom
    assert not re.search(r'(?:src|href)="https?:', dom)


@pytest.mark.parametrize("width", [1280, 500])
def test_every_plot_of_a_run_has_a_size(browser: str, single: Path, width: int) -> None:
    plots, small, empty, fetched, overflow = measure(browser, single, width)
    assert (plots, small, empty, fetched) == (12, 0, 0, 0)
    assert overflow <= 0


def test_every_plot_of_a_grid_has_a_size(browser: str, several: Path) -> None:
    plots, small, empty, fetched, overflow = measure(browser, several, 1280)
    assert (plots, small, empty, fetched) == (5 + 5 * 12, 0, 0, 0)
    assert overflow <= 0


def test_the_page_is_painted_without_a_complaint(browser: str, single: Path) -> None:
    shot = single.parent / "shot.png"
    flags = ("--enable-logging=stderr", f"--screenshot={shot}", "--window-size=1280,1600")
    said = browse(browser, single, *flags).stderr
    # What the page does wrong (a refused style, a missing file) is said on its console.
    assert "CONSOLE" not in said
    width, height = struct.unpack(">II", shot.read_bytes()[16:24])
    assert (width, height) == (1280, 1600)
    assert shot.stat().st_size > 50_000
