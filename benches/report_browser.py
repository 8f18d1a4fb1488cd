#!/usr/bin/env python3
"""Checks the page of `plimsoll plan --report` in a real headless Chromium.

    benches/report_browser.py PLIMSOLL [--quick] [--pictures DIR] [--pages A.html B.html]

For resnet50, an infeasible line, a run, two devices, and a step of 20,000 tensors (with --quick a small model, a run, two devices and that
step): the page renders without a message on the console and without a
request to any network; the maximum of its timeline, which the page adds up itself, is planned_peak_bytes; hovering names tensors;
selecting a layer lists what it holds; keys move through the steps; it loads within 2 s (5 s with 20,000 tensors) and is below 10 MB.
--pictures saves what it looks like, light and dark, wide and narrow. --pages only takes the pictures of given pages.

It needs Debian's Chromium, which it installs where it may (root), and playwright from PyPI, for which it makes a virtual environment.
Where one of them cannot be had it says so and exits with status 77.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
VENV = pathlib.Path(tempfile.gettempdir()) / "plimsoll-browser-venv"
MOST_BYTES = 10 * 1000 * 1000


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def chromium():
    """The path of Chromium, which is installed if it is missing."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    install("chromium", "fonts-dejavu-core")
    return shutil.which("chromium") or skip("there is no Chromium, and it could not be installed")


def install(*packages):
    """Installs packages of Debian, where that is allowed."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        quiet = ["apt-get", "-q", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20", *command]
        subprocess.run(quiet, env=environment, stdout=subprocess.DEVNULL, check=False)


def playwright():
    """The library, from this Python or a virtual environment of its own."""
    try:
        from playwright import sync_api
        return sync_api
    except ImportError:
        pass
    python = VENV / "bin" / "python"
    if sys.executable == str(python):
        skip("playwright cannot be imported")
    if not python.exists():
        make = [sys.executable, "-m", "venv", VENV]
        if subprocess.run(make, check=False, capture_output=True).returncode != 0:
            install("python3-venv")
            subprocess.run(make, check=False, stdout=subprocess.DEVNULL)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "playwright"]
        if not python.exists() or subprocess.run(pip, check=False).returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            skip("playwright could not be installed from PyPI")
    os.execv(python, [str(python), *sys.argv])


class Checker:
    def __init__(self, browser, pictures):
        self.browser, self.pictures, self.failed = browser, pictures, []

    def expect(self, holds, what):
        if not holds:
            self.failed.append(what)
            print(f"  FAILED: {what}")

    def open(self, url, name, scheme="light", width=1280, height=800):
        """A page with all that it said and asked for."""
        context = self.browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        start = time.monotonic()
        page.goto(url, wait_until="load")
        page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        seconds = time.monotonic() - start
        self.expect(said == [], f"{name}: nothing on the console, but {said}")
        others = [other for other in asked if not other.startswith((url, "data:"))]
        self.expect(others == [], f"{name}: no requests, but {others}")
        return page, seconds

    def picture(self, page, name):
        if self.pictures:
            page.screenshot(path=str(self.pictures / f"{name}.png"), full_page=True)

    def looks(self, url, name):
        for scheme in ("light", "dark"):
            for shape, width in (("wide", 1280), ("narrow", 420)):
                page, _ = self.open(url, name, scheme, width)
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                self.expect(wide <= 0, f"{name}, {shape}: the page is {wide} pixels too wide")
                self.picture(page, f"{name}-{scheme}-{shape}")
                page.context.close()

    def check(self, path, name, planned, limit):
        url = path.resolve().as_uri()
        page, seconds = self.open(url, name)
        size = path.stat().st_size
        tensors = page.evaluate("JSON.parse(document.getElementById('data').textContent).plans.map((p) => p.tensors.kind.length)")
        print(f"  {name}: {max(tensors):,} tensors, {size / 1e6:.2f} MB, ready after {seconds:.2f} s")
        self.expect(seconds < limit, f"{name}: ready after {seconds:.2f} s, the limit is {limit} s")
        self.expect(size < MOST_BYTES, f"{name}: {size} bytes")
        most = int(float(page.get_attribute("#timeline", "data-max-bytes")))
        self.expect(most == planned, f"{name}: the timeline's maximum is {most}, planned are {planned}")
        self.expect(page.locator("#held tbody tr").count() > 3, f"{name}: the largest tensors at the peak are listed")
        # Hovering names a step, a band and its tensors.
        box = page.locator("#timeline").bounding_box()
        named = 0
        for part in (0.2, 0.4, 0.6, 0.8):
            page.locator("#timeline").scroll_into_view_if_needed()
            # The arena is on top, and may be a small part of all.
            for height in (0.11, 0.13, 0.15, 0.2, 0.35, 0.5, 0.62):
                page.locator("#timeline").hover(position={"x": box["width"] * part, "y": box["height"] * height})
                tip = page.locator("#tip")
                if tip.is_visible() and "Step " in tip.inner_text() and "steps " in tip.inner_text():
                    named += 1
                    break
        self.expect(named >= 2, f"{name}: hovering names tensors with their lifetimes ({named} of 4)")
        moved = time.monotonic()
        page.locator("#timeline").hover(position={"x": box["width"] * 0.5, "y": box["height"] * 0.5})
        self.expect(time.monotonic() - moved < 1.5, f"{name}: hovering is quick")
        page.locator("#map").scroll_into_view_if_needed()
        page.locator("#map").hover(position={"x": box["width"] * 0.5, "y": box["height"] * 0.85})
        self.expect(page.locator("#map-tip").is_visible(), f"{name}: hovering over the arena map names a tensor")
        # A layer, by name.
        layer = page.evaluate("document.querySelector('#layers option:nth-child(2)').value")
        page.fill("#layer", layer)
        self.expect(layer in page.inner_text("#held-heading"), f"{name}: a layer can be selected")
        layers = page.locator("#held tbody td:nth-child(4)").all_inner_texts()
        self.expect(layers and set(layers) == {layer}, f"{name}: the table lists that layer alone")
        page.fill("#layer", "")
        # By layer, and a click on a band selects it.
        page.select_option("#by", "layer")
        page.locator("#legend button:not([disabled])").last.click()
        self.expect("holds in the step" in page.inner_text("#held-heading"), f"{name}: a click selects a layer")
        page.select_option("#by", "kind")
        page.select_option("#axis", "time")
        page.click("#zoom-in")
        page.click("#reset")
        page.select_option("#axis", "steps")
        # Keys alone.
        page.focus("#timeline")
        page.keyboard.press("Home")
        page.wait_for_timeout(100)
        first = page.inner_text("#said")
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(100)
        second = page.inner_text("#said")
        self.expect(first.startswith("Step ") and second.startswith("Step ") and first != second, f"{name}: keys move")
        labels = page.evaluate("[...document.querySelectorAll('canvas')].filter((c) => c.offsetParent).every((c) => c.getAttribute('aria-label'))")
        self.expect(labels, f"{name}: every figure has a label")
        controls = page.evaluate("[...document.querySelectorAll('select, input')].every((c) => c.labels.length > 0)")
        self.expect(controls, f"{name}: every control has a label")
        page.context.close()

    def check_devices(self, path, name, devices):
        """Every device's plan can be chosen, and its timeline reaches that device's peak."""
        page, _ = self.open(path.resolve().as_uri(), name)
        options = page.locator("#plan option").all_inner_texts()
        for device in devices:
            title = next((option for option in options if option.startswith(device["name"] + ": training")), None)
            self.expect(title is not None, f"{name}: {device['name']} is among {options}")
            if title is not None:
                page.select_option("#plan", label=title)
                most = int(float(page.get_attribute("#timeline", "data-max-bytes")))
                self.expect(most == device["total_bytes"], f"{name}, {device['name']}: {most} at most, planned {device['total_bytes']}")
        listed = page.locator("#spaces tbody td:first-child").all_inner_texts()
        self.expect(listed == ["whole process"] + [device["name"] for device in devices], f"{name}: every device is listed: {listed}")
        page.context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll", nargs="?", help="the program")
    parser.add_argument("--quick", action="store_true", help="fewer pages, as in CI")
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--pages", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    api, path = playwright(), chromium()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with api.sync_playwright() as started, tempfile.TemporaryDirectory() as scratch:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        checker = Checker(browser, options.pictures)
        for page in options.pages or []:
            checker.looks(page.resolve().as_uri(), page.stem)
        if options.plimsoll:
            check_program(checker, options.plimsoll, pathlib.Path(scratch), options.quick)
        browser.close()
    if checker.failed:
        sys.exit(f"{len(checker.failed)} checks failed")
    print("all checks hold")


def check_program(checker, plimsoll, scratch, quick):
    def plan(name, *flags):
        page = scratch / f"{name}.html"
        run = subprocess.run([plimsoll, "plan", "--json", *flags, "--report", page], capture_output=True, text=True, check=False)
        answer = json.loads(run.stdout.splitlines()[-1])
        return page, answer, run.returncode

    if quick:
        page, answer, _ = plan("small", "--model", "lenet", "--batch", "64", "--memory", "64MiB")
        checker.check(page, "small", answer["planned_peak_bytes"], 2.0)
        checker.looks(page.as_uri(), "small")
    else:
        check_more(checker, plan)
    page, answer, _ = plan("devices", "--model", "mlp", "--width", "256", "--batch", "192", "--replicas", "2", "--device-memory", "cpu:1=24MiB")
    checker.check_devices(page, "devices", answer["load_sheet"]["devices"])
    checker.looks(page.as_uri(), "devices")
    # Without JSON, for which the smallest line would be searched.
    page = scratch / "deep.html"
    flags = ["--model", "gpt", "--layers", "330", "--width", "64", "--heads", "2", "--context", "32", "--batch", "2", "--report", page]
    text = subprocess.run([plimsoll, "plan", *flags], capture_output=True, text=True, check=True).stdout
    checker.check(page, "deep", int(re.search(r"planned peak, (\d+) bytes", text)[1]), 5.0)
    run = scratch / "run"
    command = [plimsoll, "train", "--json", "--steps", "40", "--validate-every", "10", "--out", run, "--report"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    checker.check(run / "report.html", "run", report["planned_peak_bytes"], 2.0)
    checker.looks((run / "report.html").as_uri(), "run")


def check_more(checker, plan):
    """Pages that take longer to make."""
    page, answer, _ = plan("resnet50", "--model", "resnet50", "--batch", "16", "--memory", "8GiB")
    checker.check(page, "resnet50", answer["planned_peak_bytes"], 2.0)
    checker.looks(page.as_uri(), "resnet50")
    page, answer, _ = plan("lower", "--model", "resnet20", "--batch", "128", "--memory", "90MiB", "--curve")
    checker.check(page, "lower", answer["planned_peak_bytes"], 2.0)
    checker.looks(page.as_uri(), "lower")
    page, answer, status = plan("infeasible", "--model", "resnet20", "--batch", "128", "--memory", "20MiB", "--spill", "none")
    checker.expect(status == 3 and not answer["feasible"], "a line that is too low is refused")
    checker.check(page, "infeasible", answer["floor_bytes"], 2.0)
    checker.looks(page.as_uri(), "infeasible")


if __name__ == "__main__":
    main()
