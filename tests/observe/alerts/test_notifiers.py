"""Notifiers, each against a real server: a log, a webhook, and mail."""

from __future__ import annotations

import hashlib
import hmac
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, NotifyError
from penstock.observe.alerts import EmailSettings, Evaluator, LogSettings, Phase, Rule, RuleKind, WebhookSettings
from penstock.observe.alerts.messages import Message, trial_message
from penstock.observe.alerts.notification_log import NotificationLog
from penstock.observe.alerts.notifying import EmailNotifier, WebhookNotifier, make_notifier
from tests.observe.alerts.certificates import Certificate, make_certificate
from tests.observe.alerts.seeing import at, group
from tests.observe.alerts.sinks import Hook, hook, mail_server


def message(name: str = "billing") -> Message:
    """That a group is far behind."""
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG, threshold=1)])
    evaluator.evaluate(at(0, group(name, end=10, lag_s=90)))
    items = NotificationLog().due(evaluator.alerts, LogSettings(name="log"), at(0).at_ms, lambda *_: False)
    return Message("log:./data", at(0).at_ms, items)


@pytest.fixture
def webhook() -> Iterator[Hook]:
    with hook() as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_a_log_gets_a_line_for_each_alert_whatever_the_name_of_the_group() -> None:
    written = io.StringIO()
    make_notifier(LogSettings(name="log"), written).send(message("evil\n2027-01-01 all is well\x1b[2J"))
    (line,) = written.getvalue().splitlines()
    assert line.startswith("2027-01-15T08:00:00Z firing behind (warning): group evil\\n2027-01-01 all is well\\x1b[2J ")


def test_a_log_file_is_appended_to_also_after_it_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "alerts.log"
    notifier = make_notifier(LogSettings(name="log", file=str(path)))
    notifier.send(message())
    path.rename(tmp_path / "alerts.log.1")
    notifier.send(message())
    assert path.read_text() == (tmp_path / "alerts.log.1").read_text()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotifyError, match=str(tmp_path)):
        make_notifier(LogSettings(name="log", file=str(tmp_path))).send(message())
    closed = io.StringIO()
    closed.close()
    with pytest.raises(NotifyError):
        make_notifier(LogSettings(name="log"), closed).send(message())


def test_a_webhook_gets_json_that_chat_services_and_programs_understand(webhook: Hook) -> None:
    WebhookNotifier(WebhookSettings(name="hook", url=webhook.url)).send(message("<script>"))
    posted = webhook.next()
    assert posted.headers["Content-Type"] == "application/json"
    document = posted.json
    assert document["status"] == "firing"
    assert document["stream"] == "log:./data"
    assert "group <script> is 10 records" in document["text"]
    (alert,) = document["alerts"]
    assert alert["subject"] == "<script>"
    assert (alert["rule"], alert["value"], alert["unit"], alert["status"]) == ("behind", 10, "records", "firing")
    assert "Penstock-Signature" not in posted.headers


@pytest.mark.parametrize("kept", ["env", "file"])
def test_a_webhook_with_a_secret_is_signed(
    webhook: Hook, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.setenv("HOOK_SECRET", "hush")
    where: dict[str, Any] = (
        {"secret_env": "HOOK_SECRET"} if kept == "env" else {"secret_file": str(tmp_path / "secret")}
    )
    WebhookNotifier(WebhookSettings(name="hook", url=webhook.url, **where), wall_s=lambda: 1_800_000_000.7).send(
        message()
    )
    posted = webhook.next()
    expected = hmac.new(b"hush", b"1800000000." + posted.body, hashlib.sha256).hexdigest()
    assert posted.headers["Penstock-Signature"] == f"t=1800000000,v1={expected}"


def test_the_same_news_has_the_same_id() -> None:
    assert message().id == message().id
    assert message().id != message("shop").id


@pytest.mark.parametrize("status", [301, 400, 404, 500])
def test_an_answer_that_is_no_yes_is_an_error_that_says_what_was_answered(webhook: Hook, status: int) -> None:
    webhook.status, webhook.answer = status, b"because\x1b[2J"
    webhook.answer_headers = {"Location": webhook.url} if status == 301 else {}
    with pytest.raises(NotifyError, match=str(status)) as caught:
        WebhookNotifier(WebhookSettings(name="hook", url=webhook.url)).send(message())
    assert str(caught.value).isprintable()
    webhook.next()
    assert webhook.taken.empty()  # a redirect is not followed


def test_a_webhook_may_say_when_to_come_again(webhook: Hook) -> None:
    webhook.status, webhook.answer_headers = 429, {"Retry-After": "17"}
    with pytest.raises(NotifyError) as caught:
        WebhookNotifier(WebhookSettings(name="hook", url=webhook.url)).send(message())
    assert caught.value.retry_after_s == 17


def test_a_webhook_that_does_not_answer_is_given_up(webhook: Hook) -> None:
    webhook.gate.clear()
    with pytest.raises(NotifyError, match=r"did not answer within 0.05 s|timed out"):
        WebhookNotifier(WebhookSettings(name="hook", url=webhook.url, timeout_s=0.05)).send(message())


def test_a_webhook_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NotifyError, match="cannot be reached"):
        WebhookNotifier(WebhookSettings(name="hook", url=f"http://127.0.0.1:{closed_port()}/secret-path")).send(
            message()
        )


def test_what_is_shown_of_a_webhook_holds_no_secret_path() -> None:
    settings = WebhookSettings(name="hook", url="https://chat.example.com/services/T0/B0/secret")
    assert settings.target == "https://chat.example.com/…"


def test_the_url_of_a_webhook_may_be_kept_in_the_environment(webhook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = WebhookNotifier(WebhookSettings(name="hook", url_env="HOOK_URL"))
    with pytest.raises(NotifyError, match="HOOK_URL is not set"):
        notifier.send(message())
    monkeypatch.setenv("HOOK_URL", webhook.url)
    notifier.send(message())
    assert webhook.next().json["status"] == "firing"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://example.com/hook"}, "use https"),
        ({"url": "ftp://example.com"}, "not a URL such as"),
        ({"url": "https://user:pass@example.com/"}, "secret_env"),
        ({"url": "https://example.com:99999/"}, "not a URL"),
        ({}, "one of url and url_env"),
        ({"url": "https://a.example", "url_env": "X"}, "one of url and url_env"),
        ({"url": "https://a.example", "secret_env": "X", "secret_file": "y"}, "not both"),
        ({"url": "https://a.example", "timeout_s": 0}, "timeout_s"),
        ({"url": "https://a.example", "repeat_s": 1}, "repeat_s"),
    ],
)
def test_settings_of_a_webhook_that_cannot_be_meant_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WebhookSettings(name="hook", **settings)


def email(port: int, **more: Any) -> EmailSettings:
    given: dict[str, Any] = {
        "name": "mail",
        "host": "127.0.0.1",
        "port": port,
        "sender": "penstock@example.com",
        "to": ("ada@example.com", "bob@example.com"),
        "security": "none",
        **more,
    }
    return EmailSettings(**given)


def test_a_letter_arrives() -> None:
    with mail_server() as server:
        EmailNotifier(email(server.port)).send(message("evil\r\nBcc: all@example.com"))
        taken = server.next()
    assert taken.sender == "penstock@example.com"
    assert taken.to == ("ada@example.com", "bob@example.com")
    assert taken.letter["Subject"] == "[penstock] 1 firing: behind evil\\r\\nBcc: all@example.com"
    assert taken.letter["Bcc"] is None
    assert "is 10 records, 1 min 30 s behind" in taken.letter.get_content()


@pytest.mark.parametrize("security", ["starttls", "ssl"])
def test_a_letter_goes_encrypted_with_a_password(
    security: str, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "hush")
    with mail_server(certificate.serving(), from_the_start=security == "ssl") as server:
        settings = email(server.port, security=security, user="ada", password_env="MAIL_PASSWORD")
        EmailNotifier(settings, certificate.trusting()).send(message())
        taken = server.next()
    assert taken.is_encrypted
    assert taken.login == "\0ada\0hush"


def test_a_certificate_that_nobody_vouches_for_is_refused_before_the_password(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "hush")
    with mail_server(certificate.serving()) as server:
        settings = email(server.port, security="starttls", user="ada", password_env="MAIL_PASSWORD")
        with pytest.raises(NotifyError, match=r"(?i)certificate"):
            EmailNotifier(settings).send(message())
        assert server.taken.empty()


def test_a_mail_server_without_starttls_gets_nothing() -> None:
    with mail_server() as server:
        with pytest.raises(NotifyError, match="STARTTLS"):
            EmailNotifier(email(server.port, security="starttls")).send(message())
        assert server.taken.empty()


def test_a_refused_login_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "wrong")
    with mail_server() as server:
        server.refuses_login = True
        with pytest.raises(NotifyError, match="rejected the user ada"):
            EmailNotifier(email(server.port, user="ada", password_env="MAIL_PASSWORD")).send(message())


def test_one_refused_address_is_told_of_but_the_letter_is_not_sent_again_to_the_others() -> None:
    with mail_server() as server:
        server.refuses = frozenset({"bob@example.com"})
        remark = EmailNotifier(email(server.port)).send(message())
        assert server.next().to == ("ada@example.com",)
        server.refuses = frozenset({"ada@example.com", "bob@example.com"})
        with pytest.raises(NotifyError, match=r"refuses ada@example\.com"):
            EmailNotifier(email(server.port)).send(message())
    assert remark is not None
    assert "bob@example.com (550" in remark


def test_a_mail_server_that_is_not_there_or_says_nothing_is_an_error() -> None:
    with pytest.raises(NotifyError, match="cannot be reached"):
        EmailNotifier(email(closed_port())).send(message())
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotifyError, match=r"timed out|not answer"):
        EmailNotifier(email(silent.getsockname()[1], timeout_s=0.05)).send(message())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "mail.example.com", "user": "ada", "password_env": "X"}, "in clear text"),
        ({"user": "ada"}, "go together"),
        ({"password_file": "x"}, "go together"),
        ({"to": ()}, "must not be empty"),
        ({"to": ("ada",)}, "not an address"),
        ({"sender": "a@b\nBcc: c@d"}, "not an address"),
        ({"port": 0}, "port 0"),
    ],
)
def test_settings_of_mail_that_cannot_be_meant_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        email(**{"port": 25, **settings})


def test_a_test_message_says_that_nothing_is_wrong() -> None:
    sent = trial_message("hook", "log:./data", at(0).at_ms)
    assert sent.document()["status"] == "test"
    assert "nothing is wrong" in sent.text()


def test_a_message_of_many_alerts_says_how_many_more_there_are() -> None:
    evaluator = Evaluator([Rule(name="behind", kind=RuleKind.LAG, threshold=1, quiet_s=0)])
    evaluator.evaluate(at(0, *(group(f"group-{number:03}", end=10) for number in range(150))))
    items = NotificationLog().due(evaluator.alerts, LogSettings(name="log"), at(0).at_ms, lambda *_: False)
    many = Message("", at(0).at_ms, items)
    assert len(items) == 100
    assert many.text().splitlines()[-1] == "and 80 alerts more"
    evaluator.evaluate(at(60))
    ledger = NotificationLog()
    ledger.arrived("log", items, at(0).at_ms)
    resolved = ledger.due(evaluator.alerts, LogSettings(name="log"), at(60).at_ms, lambda *_: False)
    assert {item.phase for item in resolved} == {Phase.RESOLVED}
    assert "after 1 min. It was: group group-000 is 10 records, 0 s behind" in resolved[0].line
