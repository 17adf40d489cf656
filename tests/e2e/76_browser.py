#!/usr/bin/python3
"""The browser template: a page of the sandbox's own, rendered by Chromium, copied out and looked at."""

# timeout: 2700
from lib.harness import *
from lib.png import pixels

TEMPLATE = "browser"
PAGE = """<!doctype html><style>body{margin:0;background:#fff}div{width:200px;height:150px}</style>
<div style="background:#f00"></div><div style="background:#00f"></div><p style="font:40px sans-serif">Husk</p>"""


def look_at(path):
    """Checks that a screenshot shows PAGE."""
    width, height, size, rows = pixels(path.read_bytes())
    assert_equal((width, height), (640, 480))
    at = lambda x, y: bytes(rows[y][x * size : x * size + 3])
    assert_equal((at(50, 50), at(50, 200), at(400, 50)), (b"\xff\x00\x00", b"\x00\x00\xff", b"\xff\xff\xff"))
    text = {bytes(rows[y][x * size : x * size + 3]) for y in range(320, 420) for x in range(0, 200)}
    assert len(text) > 5, f"no text was drawn: {text}"


def page(box):
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/page.html", stdin=PAGE.encode())


@test
def test_screenshot():
    box = create("-t", TEMPLATE, "--memory", "2G")
    page(box)
    husk(
        "exec",
        box,
        "--timeout",
        "120",
        "--",
        "chromium",
        "--headless",
        "--hide-scrollbars",
        "--window-size=640,480",
        "--screenshot=/tmp/shot.png",
        "file:///tmp/page.html",
        timeout=180,
    )
    with scratch() as place:
        husk("cp", f"{box}:/tmp/shot.png", place / "shot.png")
        look_at(place / "shot.png")


@test
def test_selenium_drives_it():
    box = create("-t", TEMPLATE, "--memory", "2G")
    page(box)
    script = """
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
options = webdriver.ChromeOptions()
for word in ('--headless', '--no-sandbox', '--disable-dev-shm-usage', '--window-size=640,480'):
    options.add_argument(word)
driver = webdriver.Chrome(service=Service('/usr/bin/chromedriver'), options=options)
driver.get('file:///tmp/page.html')
print(driver.execute_script('return document.querySelector("p").textContent + 6 * 7'))
driver.quit()
"""
    assert_equal(husk("exec", "--timeout", "150", box, "--", "python3", "-c", script, timeout=200).text, "Husk42\n")


@test
def test_playwright_drives_it():
    box = create("-t", TEMPLATE, "--memory", "2G")
    page(box)
    script = """
const { chromium } = require('playwright-core');
(async () => {
  const args = ['--no-sandbox', '--disable-dev-shm-usage'];
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  const page = await browser.newPage({ viewport: { width: 640, height: 480 } });
  await page.goto('file:///tmp/page.html');
  console.log(await page.textContent('p'));
  await page.screenshot({ path: '/tmp/shot.png' });
  await browser.close();
})();
"""
    assert_equal(husk("exec", "--timeout", "150", box, "--", "node", "-e", script, timeout=200).text, "Husk\n")
    with scratch() as place:
        husk("cp", f"{box}:/tmp/shot.png", place / "shot.png")
        look_at(place / "shot.png")


@test
def test_playwright_for_python_needs_no_options():
    """As programs spell it that were written for Playwright's own Chromium."""
    box = create("-t", TEMPLATE, "--memory", "2G")
    page(box)
    script = """
import asyncio
from playwright.async_api import async_playwright
from playwright.sync_api import sync_playwright

with sync_playwright() as p:
    browser = p.chromium.launch()
    page = browser.new_page(viewport={"width": 640, "height": 480})
    page.goto("file:///tmp/page.html")
    print(page.text_content("p"))
    page.screenshot(path="/tmp/shot.png")
    browser.close()

async def main():
    async with async_playwright() as p:
        browser = await p.chromium.launch()
        page = await browser.new_page()
        await page.goto("file:///tmp/page.html")
        print(await page.evaluate("6 * 7"))
        await browser.close()

asyncio.run(main())
"""
    assert_equal(husk("exec", "--timeout", "200", box, "--", "python3", "-c", script, timeout=250).text, "Husk\n42\n")
    with scratch() as place:
        husk("cp", f"{box}:/tmp/shot.png", place / "shot.png")
        look_at(place / "shot.png")
    launch = "require('playwright-core').chromium.launch().then((b) => b.close()).then(() => console.log('closed'))"
    assert_equal(husk("exec", "--timeout", "150", box, "--", "node", "-e", launch, timeout=200).text, "closed\n")


@test
def test_virtual_display():
    box = create("-t", TEMPLATE)
    assert_equal(sh(box, "xvfb-run -a sh -c 'echo display $DISPLAY' | grep -c display", timeout=120), "1")


if __name__ == "__main__":
    main(TEMPLATE)
