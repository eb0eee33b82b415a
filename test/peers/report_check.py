"""The report page in a browser. Usage: report_check.py TRAINCTL SOURCE

Trains three steps, puts the records of 10,000 steps of 64 ranks and of 60 layers with 256 experts in their place, with a
failure, losses that are not numbers, an expert without tokens and texts that would run a script, and opens the report in Chromium: it is drawn within two seconds, the
console stays empty, nothing of the texts runs, charts, keyboard and colours work, and nothing is wider than a phone.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

from chromium import Browser

STEPS, RANKS = 10_000, 64
LAYERS, EXPERTS = 60, 256
EVIL = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def step_line(step):
    wave = math.sin(step / 50)
    return {"v": 1, "t": 1.79e9 + step * 0.5, "attempt": 1 if step <= 4000 else 2, "step": step,
            "loss": None if step == 5000 else 2 + 8 / math.sqrt(step) + 0.05 * wave,
            **({"loss_kind": "nan", "skipped": True} if step == 5000 else {}), "grad_norm": 1 + 0.2 * wave,
            "lr": 1e-3 * (1 - step / STEPS), "tokens": step * 4096, **({"val_loss": 2.1} if step % 250 == 0 else {}),
            "step_s": 0.5, "tokens_per_s": 8192 + 100 * wave, "flops_per_s": 1e12, "flops_per_s_full_attention": 1.1e12,
            "mfu": 0.4 + 0.01 * wave, "mfu_full_attention": 0.42,
            "phases": {"forward_s": 0.15, "backward_s": 0.25, "communication_s": 0.05, "optimizer_s": 0.02, "data_s": 0.01,
                       "reporting_s": 0.01, "evaluation_s": 0, "checkpoint_s": 0.01},
            "ranks": {"count": RANKS, "compute_s": {"min": 0.4, "min_rank": 1, "median": 0.42, "max": 0.6, "max_rank": 7}}}


def rank_line(step):
    compute = [0.42 * (1.5 if rank == 37 else 1 + 0.02 * math.sin(rank * step)) for rank in range(RANKS)]
    return {"v": 1, "epoch": 1, "step": step, "count": RANKS, "compute_s": compute, "wait_s": [0.05] * RANKS,
            "peak_memory_bytes": [4e7 + 1e5 * rank for rank in range(RANKS)]}


def expert_line(step):
    """Layer 31 has an expert with nine times the mean, layer 12 one without tokens."""
    def load(layer, expert):
        return 9 if (layer, expert) == (31, 17) else 0 if (layer, expert) == (12, 200) else round(1 + 0.05 * math.sin(layer * expert), 3)
    line = {"v": 1, "epoch": 1, "step": step, "steps": 50, "experts": EXPERTS, "top_k": 8, "layers": list(range(LAYERS)),
            "most": [9 if layer == 31 else 1.05 for layer in range(LAYERS)], "least": [0.95] * LAYERS, "entropy": [0.99] * LAYERS,
            "idle": [int(layer == 12) for layer in range(LAYERS)]}
    return line | ({"load": [[load(l, e) for e in range(EXPERTS)] for l in range(LAYERS)]} if step % 1000 == 0 else {})


def make_run(trainctl, source, folder):
    job = {"version": 1, "name": "large", "description": EVIL, "device": "cpu", "model": {"preset": "llama-tiny"},
           "data": {"train": [{"path": f"{source}/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}],
                    "seq_len": 32}, "batch": {"global_sequences": 8, "micro_sequences": 1},
           "parallelism": {"pipeline": 2, "threads_per_rank": 1}, "schedule": {"total_steps": STEPS},
           "observability": {"run_id": "large"}}
    with open(f"{folder}/job.json", "w") as out:
        json.dump(job, out)
    subprocess.run([trainctl, "launch", "job.json", "--max-steps", "3"], cwd=folder, check=True, capture_output=True)
    run = f"{folder}/runs/large"

    def write(name, lines, more=""):
        with open(f"{run}/{name}", "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
            out.write(more)

    write("metrics.jsonl", map(step_line, range(1, STEPS + 1)), '{"v":1,"t":179')  # a crash
    write("metrics.ranks.jsonl", map(rank_line, range(50, STEPS + 1, 50)))
    write("metrics.experts.jsonl", map(expert_line, range(50, STEPS + 1, 50)))
    events = [{"v": 1, "t": 1.79e9, "kind": "supervisor"}, {"v": 1, "t": 1.79e9, "kind": "start", "epoch": 1, "ranks": RANKS, "from_step": 0},
              {"v": 1, "t": 1.79e9 + 2100, "kind": "failure", "step": 4100, "cause": EVIL},
              {"v": 1, "t": 1.79e9 + 2101, "kind": "restart", "restart": 1, "from_step": 4000, "lost_steps": 100, "reason": EVIL}]
    events += [{"v": 1, "t": 1.79e9 + s / 2, "kind": "checkpoint", "step": s, "seconds": 0.1, "bytes": 1000} for s in range(4, STEPS, 4)]
    write("events.jsonl", sorted(events, key=lambda e: e["t"]))
    return run


def check_page(browser, page):
    browser.screen(1280, 800)
    ready = browser.open(page)
    print(f"{os.path.getsize(page) / 1e3:.0f} kB; drawn {ready} ms after the start of the page")
    assert ready < 2000, ready
    assert browser.ask("document.title") == "large · trainctl", browser.ask("document.title")
    assert browser.ask("document.querySelectorAll('img, main script').length") == 0
    assert "onerror" in browser.ask("document.body.innerText"), "the texts are shown as they are"
    assert browser.ask("document.querySelectorAll('.plot').length") >= 8
    # Every picture has something in it.
    blank = browser.ask("""[...document.querySelectorAll('.plot')].filter((plot) => {
      const canvas = plot.querySelector('canvas'), c = canvas.getContext('2d');
      return new Set(new Uint32Array(c.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size < 5;
    }).map((plot) => plot.getAttribute('aria-label'))""")
    assert blank == [], blank
    assert "slowest: rank 37" in browser.ask("document.body.innerText")
    assert "most: 9 × the mean, layer 31, expert 17 · 1 without tokens" in browser.ask("document.body.innerText")
    assert "last line of metrics.jsonl is incomplete" in browser.ask("document.body.innerText")
    # The keyboard moves a cursor that shows a step's own numbers.
    browser.ask("document.querySelector('.plot').focus()")
    browser.press("End")
    tip = browser.ask("document.querySelector('.tip').innerText")
    exact = f"{step_line(STEPS)['loss']:.6f}"
    assert "Step 10,000" in tip and exact in tip, (tip, exact)
    browser.press("Home")
    assert "Step 1\n" in browser.ask("document.querySelector('.tip').innerText")
    for axis in ("Tokens", "Time", "Steps"):
        browser.ask(f"[...document.querySelectorAll('.group button')].find((b) => b.innerText === '{axis}').click()")
    for box in range(3):
        browser.ask(f"document.querySelectorAll('input[type=checkbox]')[{box}].click()")
    # Colours: of the system, and by the button.
    light = browser.ask("getComputedStyle(document.body).backgroundColor")
    browser.screen(1280, 800, dark=True)
    browser.open(page)
    dark = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    for _ in range(2):
        browser.ask("document.querySelector('header button').click()")
    browser.screen(390, 844)
    browser.open(page)
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    assert browser.problems() == [], browser.problems()


def check_live(browser, trainctl, folder):
    server = subprocess.Popen([trainctl, "status", "large", "--serve", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().split()[0]
    browser.screen(1280, 800)
    browser.open(url)
    assert browser.ask("new Promise((r) => setTimeout(() => r(document.getElementById('live').innerText), 1500))") == "● live"
    assert browser.problems() == [], browser.problems()
    server.terminate()
    assert server.wait(20) == 0


def main():
    trainctl, source = (os.path.abspath(path) for path in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        make_run(trainctl, source, folder)
        page, two = f"{folder}/large.html", f"{folder}/two.html"
        subprocess.run([trainctl, "report", "large", "--out", page], cwd=folder, check=True, capture_output=True)
        subprocess.run([trainctl, "report", "large", "large", "--out", two], cwd=folder, check=True, capture_output=True)
        browser = Browser()
        check_page(browser, page)
        browser.open(two)
        assert "Side by side" in browser.ask("document.body.innerText")
        assert browser.problems() == [], browser.problems()
        check_live(browser, trainctl, folder)
        browser.close()
    print("the page holds what was asked of it")


main()
