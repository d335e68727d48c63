import pytest

from bana.eval.report.text import HIDDEN, clean_text, redact_settings, redact_url


def test_text_is_one_line_without_control_characters() -> None:
    hostile = "a\x1b[31mred\r\n\x00b\u202egnp\u2066c\ud800"
    cleaned = clean_text(hostile)
    assert cleaned == "a [31mred b gnp c"
    cleaned.encode("utf-8")


def test_text_is_bounded_and_says_so() -> None:
    assert clean_text("x" * 10, limit=10) == "x" * 10
    assert clean_text("x" * 11, limit=10) == "x" * 9 + "…"
    assert len(clean_text("y" * 10_000_000)) == 160


@pytest.mark.parametrize("secret", ["Bearer abcdefgh1234", "bearer  zzzzzzzz", "sk-abcdefghijkl"])
def test_credentials_in_errors_are_hidden(secret: str) -> None:
    cleaned = clean_text(f"refused: {secret}!")
    assert secret not in cleaned
    assert HIDDEN in cleaned


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:30000/v1", "http://127.0.0.1:30000/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("https://me:pass@host.example:8/v1?api_key=1#f", "https://host.example:8/v1"),
        ("https://me:p/ss@host/v1", "https://host/v1"),
        ("me:pass@host:80/v1", "host:80/v1"),
        ("host:80?key=1", "host:80"),
        ("https://host/?next=http://me:pass@other/", "https://host/"),
        ("the null server", "the null server"),
    ],
)
def test_urls_lose_their_credentials(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize("url", ["http://me:pa?ss@host", "http://me:pa#ss@host/", "http://a b/c"])
def test_what_cannot_be_told_apart_is_hidden(url: str) -> None:
    assert redact_url(url) == HIDDEN


def test_settings_hide_secrets_at_any_depth() -> None:
    settings = {
        "api_key": "k1",
        "headers": {"Authorization": "Basic k2", "x-admin-key": "k3"},
        "token": "k4",
        "endpoints": ["http://u:k5@h/v1"],
        "max_tokens": 128,
        "input_tokens_mean": 5.5,
        "note": "uses Bearer k6k6k6k6",
    }
    redacted = redact_settings(settings)
    text = repr(redacted)
    assert not any(f"k{i}" in text for i in range(1, 7))
    assert redacted["endpoints"] == ["http://h/v1"]
    assert redacted["max_tokens"] == 128
    assert redacted["input_tokens_mean"] == 5.5
