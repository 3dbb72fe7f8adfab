"""Alerts: from rules and snapshots to one notification when a problem starts and one when it is resolved.

`Evaluator` is the pure part: it turns snapshots into alerts. `Alerting` adds the file of rules, the notifiers (log,
webhook, email) and state that survives restarts; the console and `penstock alerts` use it.
"""

from penstock.observe.alerts.alerting import Alerting
from penstock.observe.alerts.config_file import AlertConfig, Mute
from penstock.observe.alerts.evaluator import Evaluator
from penstock.observe.alerts.notifying import signature
from penstock.observe.alerts.rules import (
    DEFAULT_RULES,
    AlertState,
    NotificationOutcome,
    NotifierState,
    Phase,
    Rule,
    RuleKind,
    Severity,
)
from penstock.observe.alerts.settings import EmailSettings, LogSettings, NotifierSettings, WebhookSettings

__all__ = [
    "DEFAULT_RULES",
    "AlertState",
    "Alerting",
    "AlertConfig",
    "EmailSettings",
    "Evaluator",
    "RuleKind",
    "LogSettings",
    "Mute",
    "NotifierSettings",
    "NotifierState",
    "Phase",
    "Rule",
    "Severity",
    "NotificationOutcome",
    "WebhookSettings",
    "signature",
]
