"""The HTML report and the SVG picture in headless Chromium: no errors, and the curves are there."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="chromium is not installed: the HTML report was NOT tested in a browser",
)

RECIPES = 6  # of report_tool's fake comparison

# Run after the page's own scripts: for each canvas, the colours it shows and how often each.
PROBE = """
<pre id="probe"></pre><script>
(() => {
  const canvases = [...document.querySelectorAll("canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = {};
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] < 255) continue;
      const colour = "#" + [0, 1, 2].map((j) => data[i + j].toString(16).padStart(2, "0")).join("");
      colours[colour] = (colours[colour] || 0) + 1;
    }
    return { id: canvas.id, lines: Number(canvas.dataset.lines), colours };
  });
  const root = document.documentElement;
  document.getElementById("probe").textContent = JSON.stringify({
    charts: Number(root.dataset.charts),
    overflow: root.scrollWidth - root.clientWidth,
    canvases,
  });
})();
</script>
"""


def chromium(tmp_path, page, *options):
    """The DOM after scripts have run, and the lines Chromium logged for the page's console."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
               f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probe(tmp_path, report, *options):
    page = tmp_path / "probed.html"
    page.write_text(report.read_text().replace("</body>", PROBE + "</body>"))
    dom, console = chromium(tmp_path, page, *options)
    assert console == []
    return json.loads(html.unescape(re.search(r'id="probe">(.*?)</pre>', dom).group(1)))


def pixels_of(canvas, colour):
    """Pixels within 2 of `colour` in each channel: blending over the band rounds."""
    channels = bytes.fromhex(colour[1:])
    return sum(
        count
        for other, count in canvas["colours"].items()
        if all(abs(a - b) <= 2 for a, b in zip(channels, bytes.fromhex(other[1:])))
    )


@pytest.fixture
def tool(build_dir):
    def run(*args):
        subprocess.run([build_dir / "tests/report/report_tool", *map(str, args)], check=True)

    return run


@pytest.fixture
def report(tool, tmp_path):
    tool("fake", tmp_path / "runs", 3, 60)
    tool("report", tmp_path / "report.html", tmp_path / "runs")
    return tmp_path / "report.html"


def embedded(report):
    text = re.search(r'id="data">(.*?)</script>', report.read_text(), re.DOTALL).group(1)
    return json.loads(text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_shows_the_line_of_every_recipe(tmp_path, report, scheme):
    blink_scheme = {"dark": 0, "light": 1}[scheme]
    seen = probe(tmp_path, report, "--window-size=1300,1600",
                 f"--blink-settings=preferredColorScheme={blink_scheme}")  # fmt: skip
    assert seen["charts"] == 5
    assert seen["overflow"] <= 0
    assert [canvas["id"] for canvas in seen["canvases"]] == [
        "chart-reward", "chart-gap", "chart-pass", "chart-length", "chart-entropy"]  # fmt: skip
    colours = [group[scheme] for group in embedded(report)["groups"]]
    for canvas in seen["canvases"]:
        assert canvas["lines"] == RECIPES
        assert len(canvas["colours"]) > 10
    # Where curves lie apart each recipe's own colour is there; elsewhere one may hide another.
    for canvas in (seen["canvases"][0], seen["canvases"][2]):
        for colour in colours:
            assert pixels_of(canvas, colour) > 10, (canvas["id"], colour)


def test_fits_a_phone(tmp_path, report):
    # Headless windows have a least width of about 500 pixels; a frame has none.
    page = tmp_path / "phone.html"
    page.write_text(
        '<iframe id="frame" style="width:390px;height:900px;border:0" src="report.html"></iframe>'
        "<script>frame.onload = () => { const root = frame.contentDocument.documentElement;"
        "document.title = [root.dataset.charts, root.scrollWidth, root.clientWidth] }</script>"
    )
    dom, console = chromium(tmp_path, page, "--allow-file-access-from-files")
    assert console == []
    charts, content, window = map(int, re.search(r"<title>(.*?)</title>", dom).group(1).split(","))
    assert (charts, window) == (5, 390)
    assert content <= window


def test_hostile_names_and_configurations_run_no_script(tmp_path, tool):
    attack = "<img src=x onerror=document.title='owned'>"
    run = tmp_path / "runs" / attack / "seed1"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("# </pre></script><script>document.title='owned'</script>")
    rows = [{"step": step, "reward/mean": 0.5, "gap/max": 0} for step in range(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tool("report", tmp_path / "report.html", tmp_path / "runs")
    dom, console = chromium(tmp_path, tmp_path / "report.html")
    assert console == []
    assert "<title>Quads report</title>" in dom
    assert 'data-charts="2"' in dom


def test_a_run_without_steps_gives_a_page_without_charts(tmp_path, tool):
    (tmp_path / "runs/quads/seed1").mkdir(parents=True)
    tool("report", tmp_path / "report.html", tmp_path / "runs")
    dom, console = chromium(tmp_path, tmp_path / "report.html")
    assert console == []
    assert 'data-charts="0"' in dom


def test_the_svg_picture_is_drawn(tmp_path, tool):
    tool("fake", tmp_path / "runs", 2, 40)
    tool("svg", tmp_path / "curves.svg", tmp_path / "runs")
    page = tmp_path / "svg.html"
    page.write_text(
        (tmp_path / "curves.svg").read_text()
        + "<script>document.title = [...document.querySelectorAll('polyline')]"
        ".filter((line) => line.getBBox().width > 300).length</script>"
    )
    dom, console = chromium(tmp_path, page)
    assert console == []
    assert f"<title>{2 * RECIPES}</title>" in dom
