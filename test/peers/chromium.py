"""Headless Chromium over its own pipe (DevTools protocol, no other package): opens pages, asks them, takes pictures.

As a program: chromium.py PAGE OUT.png WIDTHxHEIGHT[@SCALE] [dark] [SELECTOR]
SELECTOR: the element to scroll to the top first.
"""
import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


class Browser:
    def __init__(self, program="chromium"):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self.out = os.pipe()
        self.answers, to_us = os.pipe()

        def wire():  # the browser reads at 3 and writes at 4
            for number, end in ((103, from_us), (104, to_us)):
                os.dup2(end, number)
            for number, end in ((3, 103), (4, 104)):
                os.dup2(end, number)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            close_fds=False, preexec_fn=wire, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_us)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 20)
            assert more, "Chromium has ended"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def ask(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    def screen(self, width, height, scale=1, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, page):
        """Milliseconds from the start of the page to its last chart."""
        self.call("Page.navigate", url=page if "://" in page else pathlib.Path(page).resolve().as_uri())
        for _ in range(400):
            ready = self.ask("(document.documentElement && document.documentElement.dataset.ready) || ''")
            if ready and self.ask("location.href") != "about:blank":
                time.sleep(0.2)
                return int(ready)
            time.sleep(0.05)
        raise AssertionError(f"{page} is not ready after 20 s: {self.problems()}")

    def picture(self, path):
        shot = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(shot))

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def problems(self):
        """What the console says: errors, warnings, refused loads, exceptions."""
        found = []
        for event in self.events:
            what = event.get("params", {})
            loud = event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
            if loud or (event.get("method") == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert")):
                found.append(json.dumps(what)[:500])
        return found

    def close(self):
        self.call("Browser.close")
        self.process.wait(30)


def main():
    page, out, size, *more = sys.argv[1:]
    numbers, _, scale = size.partition("@")
    width, height = map(int, numbers.split("x"))
    browser = Browser()
    browser.screen(width, height, float(scale or 1), "dark" in more)
    browser.open(page)
    for selector in more:
        if selector != "dark":
            browser.ask(f"window.scrollTo(0, document.querySelector({json.dumps(selector)}).getBoundingClientRect().top"
                        " + window.scrollY - 16)")
            time.sleep(0.2)
    browser.picture(out)
    browser.close()


if __name__ == "__main__":
    main()
