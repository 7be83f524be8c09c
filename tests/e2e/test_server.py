"""The demo model behind the server: the official client, several at once, and the page."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from aotlm_runtime.generate.stream import GenerationOptions
from aotlm_runtime.model import Model
from tests.chromium import browsing
from tests.e2e.conftest import Built
from tests.runtime.serving import Server, serving

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "Name three colours.",
    "What is water made of?",
)


@pytest.fixture(scope="module")
def server(built: Built) -> Iterator[Server]:
    with serving(built.bundle, "--sessions", "2", "--context", "1024") as server:
        yield server


def ask(server: Server, question: str) -> tuple[str, int]:
    """Stream an answer of up to 24 tokens; return it and how many tokens were cached."""
    stream = server.client().chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return text, last.usage.prompt_tokens_details.cached_tokens


def test_four_at_once_on_two_sessions_say_what_each_alone_says(
    server: Server, model: Model
) -> None:
    alone = ["".join(model.generate(text, GenerationOptions(max_tokens=24))) for text in QUESTIONS]
    assert "Paris" in alone[0]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: ask(server, text), QUESTIONS))
    assert [text for text, _ in found] == alone


def test_the_system_prompt_that_all_chats_share_is_computed_once(
    server: Server, model: Model
) -> None:
    first, second = (
        model.text.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS[:2]
    )
    shared = next(i for i, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1)
    for question in QUESTIONS:
        ask(server, question)
        _, cached = ask(server, question + " Answer in one word.")
        assert cached >= shared - 4 > 10


def test_the_page_answers_paris(server: Server) -> None:
    with browsing() as chrome:
        chrome.get(server.url)
        chrome.find_element(By.ID, "prompt").send_keys(QUESTIONS[0], Keys.ENTER)
        WebDriverWait(chrome, 30).until(
            lambda page: "tokens" in page.find_element(By.ID, "note").text
        )
        assert "Paris" in chrome.find_element(By.CSS_SELECTOR, "article.assistant").text
