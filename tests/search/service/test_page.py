"""The page in a real Chromium, as a person uses it; screenshots are kept in the folder named by CROSSCLR_ARTEFACTS."""

import os
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest

from crossclr.data.emoji_set import emoji_image
from crossclr.search import Searcher
from crossclr.search.confidence import Calibration
from crossclr.search.results import group_hits
from crossclr.search.service.server import make_server

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ARTEFACTS = Path(os.environ.get("CROSSCLR_ARTEFACTS") or Path(__file__).parents[3] / "artifacts" / "page")


def absent(reason):
    if os.environ.get("CI"):
        pytest.fail(f"the page must be tested here, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        absent("there is no Chromium (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("playwright is not installed")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield opened
        opened.close()


def cards(searcher, **query):
    """The names of the cards that the page shows for a query."""
    return [thing.best.item.name for thing in group_hits(searcher.search(**query, top=96), 24)]


class Service:
    """A service that can be stopped and started again at the same address."""

    def __init__(self, run):
        self.run, self.port = run, 0
        self.start()

    def start(self):
        ready = threading.Event()
        self.searcher = Searcher.open(self.run)
        self.server, self.listening = make_server(self.searcher, port=self.port, ready=lambda _: ready.set())
        self.port = self.listening.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]}, daemon=True)
        self.thread.start()
        assert ready.wait(60)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(15)
        self.listening.close()
        self.searcher.close()
        assert not self.thread.is_alive()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture(scope="module")
def service(indexed):
    found = Service(indexed)
    yield found
    if found.thread.is_alive():
        found.stop()


class Visit:
    """A page with everything that it complained about."""

    def __init__(self, browser, address, width=1360, height=850, **options):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints, self.outside = [], []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith((address, "data:")) else self.outside.append(r.url))
        self.page.goto(address)
        self.page.wait_for_selector("#empty:not([hidden])")

    def shot(self, name):
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(ARTEFACTS / f"{name}.png"))

    def type(self, text):
        self.page.click("#query")
        self.page.keyboard.type(text, delay=15)
        self.page.wait_for_function("text => new URLSearchParams(location.search).get('q') === text", arg=text)
        self.settled()

    def settled(self):
        self.page.wait_for_selector("body:not(.busy) .card")
        self.page.wait_for_timeout(60)

    def names(self):
        """The first 24 cards; more follow where there is room."""
        return self.page.eval_on_selector_all(".card", "cards => cards.slice(0, 24).map(card => card.dataset.id)")

    def pictures_loaded(self):
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.card img')].slice(0, 6).every(i => i.complete && i.naturalWidth > 0)"
        )

    def end(self):
        self.context.close()
        assert self.complaints == []
        assert self.outside == []


def test_type_see_pictures_open_a_neighbour_use_the_map_and_go_back(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    visit.shot("desktop-1-start")
    visit.type("red fruit")
    expected = cards(searcher, text="red fruit")
    assert visit.names() == expected
    visit.pictures_loaded()
    assert "24 images" in page.inner_text("#summary")
    best = searcher.search(text="red fruit", top=1)[0].score
    shown = float(re.search(r"\b0\.\d+", page.inner_text(".card >> nth=0")).group())
    assert shown == pytest.approx(best, abs=0.0051)
    visit.shot("desktop-2-results")

    page.click(".card .open >> nth=1")
    page.wait_for_selector("dialog[open]")
    detail = page.inner_text("#detail-body")
    assert expected[1] in detail
    visit.shot("desktop-3-detail")
    page.click("dialog .actions button >> nth=1")  # more like this: texts
    page.wait_for_selector(".grid.texts .card")
    visit.settled()
    neighbours = visit.names()
    assert neighbours == cards(searcher, like=expected[1], find="text")
    assert "Similar to" in page.inner_text("#seed")
    visit.shot("desktop-4-neighbours")
    link = page.url

    page.go_back()
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    page.wait_for_function("() => document.querySelectorAll('.card .stage img').length === 24")
    assert visit.names() == expected

    other = Visit(browser, service.address)  # the link gives the same results to someone else
    other.page.goto(link)
    other.settled()
    assert other.names() == neighbours
    other.end()

    box = page.locator("#map").bounding_box()
    before = page.evaluate("() => document.querySelector('#map').toDataURL()")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(150)
    zoomed = page.evaluate("() => document.querySelector('#map').toDataURL()")
    assert zoomed != before
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 80, box["y"] + box["height"] / 2 + 40, steps=5)
    page.mouse.up()
    page.wait_for_timeout(150)
    assert page.evaluate("() => document.querySelector('#map').toDataURL()") != zoomed
    assert visit.names() == expected  # dragging is no click
    page.click("#zoom-all")
    name = point_to(visit)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.inner_text("#tip").strip()
    visit.shot("desktop-5-map")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function("() => new URLSearchParams(location.search).get('like')")
    visit.settled()
    assert name in unquote(page.url)
    page.go_back()
    page.wait_for_function("() => !new URLSearchParams(location.search).get('like')")
    visit.settled()
    assert visit.names() == expected
    visit.end()


def point_to(visit):
    """Move the mouse to a point of the map; gives its name."""
    found = visit.page.evaluate(
        """async () => {
          const points = await (await fetch('/api/map')).json();
          const box = document.querySelector('#map').getBoundingClientRect();
          const index = points.x.findIndex((x, i) => x > 0.2 && x < 0.8 && points.y[i] > 0.2 && points.y[i] < 0.8);
          return [points.name[index], box.left + points.x[index] * box.width, box.top + points.y[index] * box.height];
        }"""
    )
    visit.page.mouse.move(found[1] - 3, found[2])
    visit.page.mouse.move(found[1], found[2])
    return found[0]


def test_filters_and_nothing_found(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    visit.type("animal")
    page.select_option("#filter-split", "val")
    page.wait_for_function("() => location.search.includes('split%3Dval')")
    visit.settled()
    assert visit.names() == cards(searcher, text="animal", splits=["val"])
    page.select_option("#filter-group", "food-drink")
    page.wait_for_function("() => location.search.includes('group%3Dfood-drink')")
    visit.settled()
    assert visit.names() == cards(searcher, text="animal", splits=["val"], groups=["food-drink"])
    empty = {"results": []}
    page.route("**/api/search*", lambda route: route.fulfill(json=empty))
    page.fill("#query", "something else")
    page.wait_for_selector("#empty:not([hidden])")
    assert "No results" in page.inner_text("#empty")
    visit.shot("desktop-6-nothing")
    page.unroute("**/api/search*")
    page.click("#empty button")  # search without filters
    page.wait_for_function("() => !location.search.includes('split')")
    visit.settled()
    assert len(visit.names()) == 24
    visit.end()


def test_by_keyboard_alone(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("house")
    page.wait_for_function("() => location.search.includes('q=house')")
    visit.settled()
    expected = cards(searcher, text="house")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("() => document.activeElement.closest('.card').dataset.id") == expected[1]
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog').open")
    page.focus("#map")
    for key in ("+", "ArrowLeft", "0", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("() => location.search.includes('like=')")
    visit.settled()
    visit.end()


def test_a_phone_and_the_dark(browser, service):
    visit = Visit(browser, service.address, width=390, height=844, has_touch=True, is_mobile=True)
    page = visit.page
    visit.shot("phone-1-start")
    visit.type("red fruit")
    visit.pictures_loaded()
    visit.shot("phone-2-results")
    assert page.locator("header").bounding_box()["height"] <= 0.15 * 844
    page.tap("#filters")
    page.select_option("#filter-split", "val")
    visit.settled()
    visit.shot("phone-2-filters")
    page.select_option("#filter-split", "")
    page.tap("#filters")
    visit.settled()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    small = page.eval_on_selector_all(
        ".card .more button, .tools button, .tools select",
        "all => all.filter(e => e.offsetHeight && e.offsetHeight < 32).length",
    )
    assert small == 0  # a thumb can meet them
    page.tap(".card .open >> nth=0")
    page.wait_for_selector("dialog[open]")
    visit.shot("phone-3-detail")
    page.tap("dialog .close")
    page.wait_for_function("() => !document.querySelector('dialog').open")
    page.tap(".to-map")
    page.wait_for_timeout(300)
    visit.shot("phone-4-map")
    box = page.locator("#map").bounding_box()
    assert box["y"] < 844
    visit.end()
    dark = Visit(browser, service.address, color_scheme="dark")
    dark.type("red fruit")
    dark.pictures_loaded()
    dark.shot("dark-results")
    background = dark.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
    dark.end()


def test_whole_samples_show_all_modalities(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    visit.type("red fruit")
    page.check("#find input[value=fused]", force=True)
    page.wait_for_selector(".grid.wide .card")
    visit.settled()
    best = searcher.search(text="red fruit", find="fused", top=1)[0]
    card = page.locator(".card").first
    assert card.get_attribute("data-id") == best.item.name
    assert card.locator("img").count() == 1
    assert card.locator(".text .dot[title=text]").count() == 1
    assert "text → whole samples" in page.inner_text("#summary")
    visit.shot("desktop-together")
    visit.end()


@pytest.mark.parametrize("find", ["image", "text"])
def test_the_layout_on_a_laptop(browser, service, find):
    visit = Visit(browser, f"{service.address}", width=1280, height=800)
    page = visit.page
    visit.type("red fruit")
    switch = page.locator("#find label").nth(1)
    before = switch.bounding_box()
    page.check(f"#find input[value={find}]", force=True)
    visit.settled()
    assert switch.bounding_box() == before  # the switch does not move when it is used
    tops = page.eval_on_selector_all(".card", "cards => cards.map(card => card.getBoundingClientRect().top)")
    assert 3 <= tops.count(tops[0]) <= 4
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    assert page.eval_on_selector_all(".more button, .tools button, .segments label", cut) == []
    page.click("#fold")
    assert not page.locator("#map-panel").is_visible()
    page.reload()
    visit.settled()
    assert not page.locator("#map-panel").is_visible()  # the choice is remembered
    visit.shot(f"laptop-{find}-without-map")
    visit.end()


def test_errors_and_cuts_are_reported(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    visit.type("dog")
    page.goto(f"{service.address}?q=dog&split=none")
    page.wait_for_selector("#empty:not([hidden])")
    assert "no split 'none'" in page.inner_text("#empty")
    assert visit.names() == []
    long = "a sad cat " * 150
    page.goto(service.address)
    page.fill("#query", long)
    page.wait_for_selector("#notice:not([hidden])")
    assert "1,499 characters. Only the first 1,000 are searched" in page.inner_text("#notice")
    visit.settled()
    assert visit.names() == cards(searcher, text=long[:1000])
    visit.complaints = [text for text in visit.complaints if "422" not in text]  # the browser's own note
    visit.end()


@pytest.mark.parametrize("wait", [0, 1000], ids=["within the pause after a key", "after it"])
def test_words_typed_while_the_page_loads_are_searched(browser, service, searcher, wait):
    visit = Visit(browser, service.address)
    page = visit.page
    page.add_init_script(
        "const plain = fetch, loaded = new Promise(done => { window.load = done; });"
        "window.fetch = async (...wanted) => { await loaded; return plain(...wanted); };"
    )
    page.goto(f"{service.address}?where=split%3Dval")
    page.fill("#query", "red fruit")
    page.evaluate("wait => new Promise(done => setTimeout(done, wait)).then(window.load)", wait)
    page.wait_for_function("() => new URLSearchParams(location.search).get('q') === 'red fruit'")
    visit.settled()
    assert page.input_value("#query") == "red fruit"
    assert "where=split%3Dval" in page.url
    assert visit.names() == cards(searcher, text="red fruit", splits=["val"])
    visit.end()


def test_a_file_words_and_thumbs_make_one_query(browser, service, searcher):
    visit = Visit(browser, service.address, width=1280, height=800)
    page = visit.page
    page.wait_for_selector("#list .card >> nth=11")
    assert len(visit.names()) == 24  # a sample of the collection
    visit.shot("laptop-start")
    wanted = searcher.search(text="red fruit", top=1)[0].item
    image = {"name": "mine.webp", "mimeType": "image/webp", "buffer": emoji_image(wanted.key, wanted.variant)}
    page.set_input_files("#file", image)
    page.wait_for_function("() => location.search.includes('file=')", timeout=120_000)
    visit.settled()
    assert visit.names()[0] == wanted.name
    assert "mine.webp" in page.inner_text("#parts")
    visit.type("night")
    assert page.locator("#parts input[type=range]").is_visible()
    visit.shot("laptop-file-and-words")
    page.click("#parts .chip.file button")
    page.wait_for_function("() => !location.search.includes('file=')")
    visit.settled()
    assert visit.names() == cards(searcher, text="night")
    first = visit.names()[0]
    page.click(".card .thumb >> nth=0")
    page.wait_for_function("() => location.search.includes('more=')")
    visit.settled()
    assert visit.names() == cards(searcher, text="night", more=[first])
    second = visit.names()[1]
    page.locator(f'.card[data-id="{second}"] .thumb').nth(1).click()
    page.wait_for_function("() => location.search.includes('less=')")
    visit.settled()
    assert visit.names() == cards(searcher, text="night", more=[first], less=[second])
    visit.shot("laptop-thumbs")
    page.set_input_files("#file", {"name": "words.png", "mimeType": "image/png", "buffer": b"only words"})
    page.wait_for_selector("#notice:has-text('cannot be used')", timeout=60_000)
    visit.complaints = [text for text in visit.complaints if "422" not in text]  # the browser's own note
    visit.end()


def test_results_that_are_all_unlikely_are_no_good_match(browser, service, monkeypatch):
    monkeypatch.setattr(service.searcher, "_confidence", {"image": Calibration(bias=-10.0, score=0.0, words=0.0)})
    visit = Visit(browser, service.address)
    visit.page.fill("#query", "x x qwertz")
    visit.page.wait_for_selector("#empty:has-text('No good match')")
    assert not visit.page.locator("#list").is_visible()
    visit.shot("desktop-no-good-match")
    visit.page.click("#empty button")
    assert visit.page.locator("#list").is_visible()
    visit.end()


def test_the_api_page(browser, service):
    visit = Visit(browser, service.address)
    visit.page.goto(service.address + "docs")
    visit.page.wait_for_selector("section >> nth=4")
    text = visit.page.inner_text("body")
    assert "POST /api/search" in text
    assert "at most 1000 characters" in text
    visit.page.fill("section:has(h2:text-is('GET /api/sample')) input[name=top]", "2")
    visit.page.click("section:has(h2:text-is('GET /api/sample')) button")
    visit.page.wait_for_selector("pre.answer:has-text('200 OK')")
    visit.end()


def test_nothing_for_axe_to_find(browser, service):
    """Contrast, names, labels and landmarks of all views, light and dark, wide and narrow, by axe-core."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    found = {}
    for width, height, scheme in ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")):
        visit = Visit(browser, service.address, width=width, height=height, color_scheme=scheme)
        for view in (
            "",
            "?q=red%20fruit",
            "?q=red%20fruit&find=text",
            "?q=x%20x%20qwertz",
            "?q=dog&split=none",
            "docs",
        ):
            visit.page.goto(service.address + view)
            visit.page.wait_for_selector("section >> nth=4" if view == "docs" else "#list .card, #empty:not([hidden])")
            visit.page.wait_for_load_state("networkidle")
            name = f"{width}-{scheme}-{view or 'start'}".replace("?", "").replace("%20", "-").replace("&", "-")
            problems = axe.run(visit.page).response["violations"]
            found |= {f"{name}: {one['id']}": [node["html"][:160] for node in one["nodes"][:2]] for one in problems}
        visit.page.goto(f"{service.address}?q=red%20fruit")
        visit.page.click(".card .open >> nth=0")
        visit.page.wait_for_selector("dialog[open]")
        problems = axe.run(visit.page).response["violations"]
        found |= {f"{width}-{scheme}-detail: {one['id']}": [one["nodes"][0]["html"][:160]] for one in problems}
        visit.complaints = [text for text in visit.complaints if "422" not in text]
        visit.end()
    assert found == {}


def test_the_server_goes_and_comes_back(browser, service, searcher):
    visit = Visit(browser, service.address)
    page = visit.page
    visit.type("dog")
    assert visit.complaints == []
    service.stop()
    page.fill("#query", "cat")
    page.wait_for_selector("#notice:not([hidden])")
    assert "does not answer" in page.inner_text("#notice")
    assert visit.names() == []  # old results would look like results of the new query
    visit.shot("desktop-7-server-gone")
    service.start()
    page.wait_for_selector("#notice", state="hidden")
    visit.settled()
    page.wait_for_function(
        "first => document.querySelector('.card').dataset.id === first",
        arg=searcher.search(text="cat", top=1)[0].item.name,
    )
    # The browser itself notes that it could not connect; the page has nothing to complain about.
    visit.complaints = [text for text in visit.complaints if "ERR_CONNECTION_REFUSED" not in text]
    visit.end()
