"""The web page in a real browser: a chat as it streams, its stop button, keys, and what is text."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from aotlm_runtime.server.sse import SILENCE_SECONDS
from tests.chromium import browsing
from tests.runtime import fake
from tests.runtime.serving import eventually, serving
from tests.runtime.test_model import chat_ids, text_after

MARKUP = "<img src=x onerror=\"document.title='bad'\"><b>bold</b> & <script>alert(1)</script>"
THINKS = "{# <think> </think> #}" + fake.TEMPLATE


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with browsing() as chrome:
        yield chrome


@pytest.fixture
def page(chrome: Chrome) -> Iterator[Chrome]:
    """The browser; the page of the test must not have printed errors."""
    yield chrome
    severe = [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in severe if "401" not in message] == []


def scripted(folder: Path, text: str, template: str = fake.TEMPLATE) -> Path:
    """A bundle that answers `abc` with a text."""
    folder.mkdir()
    fake.compile_stub(folder / "stub.so", fake.abi(), SCRIPT=text, PROMPT=len(chat_ids("abc")))
    library = (folder / "stub.so").read_bytes()
    return fake.write_bundle(folder / "bundle", library, template=template)


def texts(page: Chrome, kind: str) -> list[str]:
    """What the messages of a kind say, hidden parts included."""
    found = page.find_elements(By.CSS_SELECTOR, f"article.{kind}")
    return [str(element.get_property("textContent")) for element in found]


def send(page: Chrome, text: str) -> None:
    page.find_element(By.ID, "prompt").send_keys(text, Keys.ENTER)


def wait(page: Chrome, is_true: Callable[[], object]) -> None:
    WebDriverWait(page, 10, poll_frequency=0.02).until(lambda _: is_true())


def is_ready(page: Chrome) -> bool:
    return page.find_element(By.ID, "send").is_displayed()


def note(page: Chrome) -> str:
    return page.find_element(By.ID, "note").text


def test_a_chat_of_two_turns_streams_and_starts_anew(page: Chrome, bundle: Path) -> None:
    with serving(bundle) as server:
        page.get(server.url)
        wait(page, lambda: page.title == "local")
        first = text_after(chat_ids("abc"))
        send(page, "abc")
        wait(page, lambda: is_ready(page) and "tokens" in note(page))
        assert texts(page, "assistant") == [first]
        send(page, "efg")
        wait(page, lambda: len(texts(page, "assistant")) == 2 and is_ready(page))
        second = text_after(chat_ids("abc", first, "efg"))
        assert texts(page, "assistant") == [first, second]
        assert texts(page, "user") == ["abc", "efg"]
        page.find_element(By.ID, "new").click()
        assert texts(page, "user") == []
        send(page, "abc")
        wait(page, lambda: texts(page, "assistant") == [first])


def test_text_of_the_model_and_of_the_user_stays_text(page: Chrome, tmp_path: Path) -> None:
    with serving(scripted(tmp_path / "html", MARKUP)) as server:
        page.get(server.url)
        send(page, "abc")
        wait(page, lambda: texts(page, "assistant") == [MARKUP])
        send(page, MARKUP)
        wait(page, lambda: texts(page, "user") == ["abc", MARKUP])
        assert page.find_elements(By.CSS_SELECTOR, "main img, main b, main script") == []
        wait(page, lambda: page.title == "local")


def test_the_stop_button_ends_the_answer_and_keeps_the_chat(page: Chrome, tmp_path: Path) -> None:
    library = tmp_path / "stub.so"
    fake.compile_stub(library, fake.abi(), END_EVERY=1 << 30, DELAY_MICROSECONDS=20000)
    with serving(fake.write_bundle(tmp_path / "bundle", library.read_bytes())) as server:
        page.get(server.url)
        send(page, "abc")
        wait(page, lambda: len((texts(page, "assistant") or [""])[0]) > 5)
        assert not is_ready(page)
        page.find_element(By.ID, "stop").click()
        wait(page, lambda: is_ready(page))
        assert note(page) == "Stopped."
        assert eventually(lambda: server.health()["running"] == 0, seconds=1)
        stopped = texts(page, "assistant")[0]
        page.find_element(By.CSS_SELECTOR, "summary").click()
        page.find_element(By.ID, "limit").send_keys("4")
        send(page, "efg")
        wait(page, lambda: is_ready(page) and "cut short" in note(page))
        assert texts(page, "assistant")[0] == stopped
        assert len(texts(page, "assistant")[1]) == 4


def test_an_empty_temperature_is_the_servers(page: Chrome, bundle: Path) -> None:
    with serving(bundle, "--temperature", "3", "--seed", "3") as server:
        asked = {"model": "local", "messages": [{"role": "user", "content": "abc"}]}
        told, greedy = (
            server.client().chat.completions.create(**asked, **given).choices[0].message.content
            for given in ({}, {"temperature": 0})
        )
        assert told != greedy
        page.get(server.url)
        send(page, "abc")
        wait(page, lambda: is_ready(page) and texts(page, "assistant") == [told])
        page.find_element(By.ID, "new").click()
        page.find_element(By.CSS_SELECTOR, "summary").click()
        page.find_element(By.ID, "temperature").send_keys("0")
        send(page, "abc")
        wait(page, lambda: is_ready(page) and texts(page, "assistant") == [greedy])


def test_a_silence_before_the_answer_is_no_error(page: Chrome, tmp_path: Path) -> None:
    library = tmp_path / "stub.so"
    fake.compile_stub(library, fake.abi(), DELAY_MICROSECONDS=round(1.2e6 * SILENCE_SECONDS))
    with serving(fake.write_bundle(tmp_path / "bundle", library.read_bytes())) as server:
        page.get(server.url)
        page.find_element(By.CSS_SELECTOR, "summary").click()
        page.find_element(By.ID, "limit").send_keys("1")
        send(page, "abc")
        wait(page, lambda: is_ready(page) and "cut short" in note(page))
        assert texts(page, "assistant") == [text_after(chat_ids("abc"), 1)]


def test_thinking_is_folded_away(page: Chrome, tmp_path: Path) -> None:
    bundle = scripted(tmp_path / "thinks", "<think>hm, well</think>\n\nyes", THINKS)
    with serving(bundle) as server:
        page.get(server.url)
        send(page, "abc")
        wait(page, lambda: is_ready(page) and "tokens" in note(page))
        answer = page.find_element(By.CSS_SELECTOR, "article.assistant")
        thought = answer.find_element(By.TAG_NAME, "details")
        assert thought.get_property("textContent") == "Thinkinghm, well"
        assert not thought.get_property("open")
        assert texts(page, "assistant")[0].endswith("yes")
        said = server.client().chat.completions.create(
            model="local", messages=[{"role": "user", "content": "abc"}]
        )
        assert said.choices[0].message.content == "yes"
        assert said.choices[0].message.reasoning_content == "hm, well"
        continued = server.client().completions.create(model="local", prompt=chat_ids("abc"))
        assert continued.choices[0].text == "<think>hm, well</think>\n\nyes"
        assert said.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_server_with_a_key_asks_for_it(page: Chrome, bundle: Path) -> None:
    with serving(bundle, "--api-key", "right") as server:
        page.get(server.url)
        wait(page, lambda: "the API key is missing" in note(page))
        key = page.find_element(By.ID, "key")
        assert key.is_displayed()
        key.send_keys("right", Keys.TAB)
        wait(page, lambda: page.title == "local")
        send(page, "abc")
        wait(page, lambda: texts(page, "assistant") == [text_after(chat_ids("abc"))])


def test_it_is_light_or_dark_as_the_system_is(page: Chrome, bundle: Path) -> None:
    with serving(bundle) as server:
        brightness = {}
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            page.get(server.url)
            colours = page.execute_script(
                "const s = getComputedStyle(document.body);"
                "return [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).map(Number))"
            )
            brightness[scheme] = [sum(colour[:3]) for colour in colours]
        assert brightness["light"][0] > 600 > 200 > brightness["light"][1]
        assert brightness["dark"][0] < 200 < 600 < brightness["dark"][1]
