"""A report in headless Chromium: nothing is asked of the network, nothing is said on the console."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from made import protocol

from gpt2exp.report.page import render_html

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
OWN = re.compile(r"https?://[^/]*(google|gstatic|googleapis|gvt1)\.com")
"""What the browser asks for by itself."""

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")]


def opened(page: str, folder) -> tuple[set[str], list[str]]:
    """URLs that were requested and console lines, after opening a page."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    log, picture = folder / "net.json", folder / "page.png"
    call = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr",
            "--disable-background-networking", "--window-size=390,2000", f"--log-net-log={log}",
            f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}",
            (folder / "page.html").as_uri()]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert picture.stat().st_size > 5000, done.stderr
    urls = set(re.findall(r'"url":"(https?://[^"]+)', log.read_text(encoding="utf-8")))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {url for url in urls if not OWN.match(url)}, console


def test_a_report_asks_for_nothing_and_complains_of_nothing(tmp_path):
    picture = b'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="300"><circle r="90"/></svg>'
    page = render_html(protocol(), {"loss_by_tokens": picture, "paired_differences": picture})
    assert opened(page, tmp_path) == (set(), [])


def test_a_page_that_does_would_be_noticed(tmp_path):
    page = '<!doctype html><img src="http://203.0.113.9/x.png"><script>console.error("no")</script><p>' + "text " * 2000
    urls, console = opened(page, tmp_path)
    assert "http://203.0.113.9/x.png" in urls and len(console) >= 1
