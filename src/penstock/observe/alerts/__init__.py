"""Alerts: rules in, snapshots in, and people told, once, when something begins to be wrong and once when it is over.

`Judge` is the pure part: it turns snapshots into alerts. `Alerting` puts it together with the file of rules, with the
notifiers (log, webhook, email) and with a memory that survives restarts; the console and `penstock alerts` use it.
"""

from penstock.observe.alerts.alerting import Alerting
from penstock.observe.alerts.book import Book, Mute
from penstock.observe.alerts.judge import Judge
from penstock.observe.alerts.rules import DEFAULT_RULES, Kind, Rule, Severity
from penstock.observe.alerts.settings import EmailSettings, LogSettings, NotifierSettings, WebhookSettings
from penstock.observe.alerts.states import AlertState, NotifierState, Phase, Told

__all__ = [
    "DEFAULT_RULES",
    "AlertState",
    "Alerting",
    "Book",
    "EmailSettings",
    "Judge",
    "Kind",
    "LogSettings",
    "Mute",
    "NotifierSettings",
    "NotifierState",
    "Phase",
    "Rule",
    "Severity",
    "Told",
    "WebhookSettings",
]
