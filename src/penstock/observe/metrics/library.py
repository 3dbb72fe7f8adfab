"""The metrics of a process that uses the library: its consumers, deadlines and producers."""

from __future__ import annotations

from typing import Final

from penstock.observe.metrics.definition import Definition, counter, gauge, histogram

_OF_CONSUMER: Final = ("group", "topic", "handler")

CONSUMER_RECORDS: Final = counter(
    "penstock_consumer_records",
    (*_OF_CONSUMER, "outcome"),
    "Records by outcome: succeeded, failed (attempts that ended in an error), exhausted (given up), ignored (finished "
    "without the handler: handled before, or sent again for another group).",
    "Failed rising with exhausted flat: retries help. Both rising: look at the dead letters. No succeeded while there "
    "is lag: look at `penstock_consumer_healthy`.",
)
CONSUMER_RETRIES: Final = counter(
    "penstock_consumer_retries",
    _OF_CONSUMER,
    "Failed attempts that were followed by another one.",
    "Above a few percent of the records: what handlers call has problems; each retry delays the records ordered "
    "after it.",
)
CONSUMER_HANDLER_SECONDS: Final = histogram(
    "penstock_consumer_handler_seconds",
    _OF_CONSUMER,
    "How long the handler took for a record. Quick records are timed together: up to 32 in a row, or a whole batch, "
    "count with their mean.",
    "Records a second times this is the number of workers needed. Rising: look at what the handler calls, then allow "
    "more workers, or less order.",
)
CONSUMER_IN_FLIGHT: Final = gauge(
    "penstock_consumer_in_flight_records",
    _OF_CONSUMER,
    "Records that are read and not finished.",
    "At in_flight for long: handlers are the limit; add workers or members. Near 0 with lag: reading is the limit.",
)
CONSUMER_FAILING: Final = gauge(
    "penstock_consumer_failing_records",
    _OF_CONSUMER,
    "Records that have failed and will be tried again.",
    "Above 0 for longer than the retries last: the dead letters cannot be put, or the circuit is open; see the log.",
)
CONSUMER_LAG: Final = gauge(
    "penstock_consumer_lag_records",
    _OF_CONSUMER,
    "Records behind the last finished one, in the partitions that this process has; of a queue, what waits in all of "
    "it, and what this process holds. Missing while the stream is away, and for queues that do not count.",
    "Rising over minutes: add workers, members or partitions. `penstock metrics` shows the lag in seconds.",
)
CONSUMER_PARTITIONS: Final = gauge(
    "penstock_consumer_partitions",
    _OF_CONSUMER,
    "Partitions that this process has.",
    "0 for long: there are more members than partitions, or it cannot join its group.",
)
CONSUMER_STALLED: Final = gauge(
    "penstock_consumer_stalled_partitions",
    _OF_CONSUMER,
    "Partitions with records waiting in which nothing was finished for a minute.",
    "Above 0: a handler hangs, or one record holds up its partition; look at the consumer's page in the console.",
)
CONSUMER_HEALTHY: Final = gauge(
    "penstock_consumer_healthy",
    _OF_CONSUMER,
    "1 when nothing keeps the consumer from making progress.",
    "0: `app.health()` names the cause: the stream, the store, the dead letters or the circuit.",
)
CONSUMER_DEAD_LETTERS: Final = counter(
    "penstock_consumer_dead_letters",
    _OF_CONSUMER,
    "Dead letters that were stored.",
    "Above 0: `penstock dlq list` shows them with their errors; redrive them once the cause is fixed.",
)
CONSUMER_EXPIRED: Final = counter(
    "penstock_consumer_expired_records",
    _OF_CONSUMER,
    "Offsets that were skipped because retention had deleted them unread.",
    "Above 0: data was lost to this group. Raise the topic's retention, or read faster; alert on time to loss.",
)
CONSUMER_SAVE_SECONDS: Final = histogram(
    "penstock_consumer_save_seconds",
    _OF_CONSUMER,
    "How long saving a checkpoint took, a store that was away included. Its count is the number of saves. With "
    "exactly-once in SQL, saves of effects are part of the handler's time.",
    "Above 0.1 often: the store holds up the consumer; use a closer one, or raise commit_interval_s.",
)
CONSUMER_REBALANCES: Final = counter(
    "penstock_consumer_rebalances",
    (*_OF_CONSUMER, "change"),
    "Partitions that came and went: assigned, revoked (handed back, with everything saved), lost (taken away before).",
    "Lost above 0, or a steady rate of any: members die, or are too slow for session_timeout_s or revoke_s.",
)
DEADLINE_CALLS: Final = counter(
    "penstock_deadline_calls",
    ("analysers", "result"),
    "Calls of `within`: complete, or partial because time was up or an analyser failed.",
    "Partial rising: see by analyser below who is late, busy or failing.",
)
DEADLINE_OVERDUE: Final = counter(
    "penstock_deadline_overdue",
    ("analysers",),
    "Calls that returned more than 5 ms after their deadline.",
    "Above 0: analysers compute in threads (name them in processes=), or the machine has too much to do.",
)
DEADLINE_ANSWERS: Final = counter(
    "penstock_deadline_answers",
    ("analysers", "analyser", "outcome"),
    "The outcome of each call of an analyser: answered, failed, late, busy (not called, as too many were waiting), "
    "skipped (the deadline passed before it could begin).",
    "Late: it is too slow for the deadline. Busy or skipped: give it more workers.",
)
DEADLINE_RUNNING: Final = gauge(
    "penstock_deadline_running",
    ("analysers", "analyser"),
    "Workers of an analyser that are at work now.",
    "At the number of its workers for long: it hangs, and answers nothing any more.",
)
PRODUCER_SENT: Final = counter(
    "penstock_producer_sent_records",
    ("buffer",),
    "Records accepted for sending, by where they are kept until they are acknowledged: memory, spool, or the "
    "connection of `connect`.",
    "Compare with acknowledged: the difference waits, or has failed.",
)
PRODUCER_ACKNOWLEDGED: Final = counter(
    "penstock_producer_acknowledged_records",
    ("buffer",),
    "Records that the stream has acknowledged.",
    "Falling behind sent: the stream is slow or away.",
)
PRODUCER_FAILED: Final = counter(
    "penstock_producer_failed_records",
    ("buffer", "reason"),
    "Records that were not delivered: refused by the stream, dropped because the buffer was full, or expired (timed "
    "out, or the producer was closed).",
    "Above 0: records were lost, unless the program checks its receipts. Records refused from a spool are kept in its "
    "folder. Use a spool where none may be lost.",
)
PRODUCER_RETRIES: Final = counter(
    "penstock_producer_retries",
    ("buffer",),
    "Attempts beyond the first, as far as the producer makes them itself.",
    "Rising: the stream refuses or is away; the log names the reason.",
)
PRODUCER_BUFFERED: Final = gauge(
    "penstock_producer_buffered_records",
    ("buffer",),
    "Records that wait for their acknowledgement.",
    "Rising: the stream does not keep up. At buffer_records, sending waits, fails or drops, according to when_full.",
)
PRODUCER_BUFFERED_BYTES: Final = gauge(
    "penstock_producer_buffered_bytes",
    ("buffer",),
    "Bytes of those; for a spool, what it holds on the disk.",
    "Make sure that the disk of a spool has room for as long as the stream may be away.",
)
PRODUCER_OLDEST: Final = gauge(
    "penstock_producer_oldest_seconds",
    ("buffer",),
    "How long the oldest of those has waited.",
    "Near delivery_timeout_s: records in memory are about to fail.",
)
INBOX_RECORDS: Final = counter(
    "penstock_inbox_records",
    ("channel", "outcome"),
    "Records of a channel by outcome: stored in the inbox of a gateway, refused (could not be stored, and the sender "
    "was told), lost (in transit, as far as the channel can know, or because they could not be stored).",
    "Refused above 0: the disk of the inbox is full or failing; senders send again. Lost above 0: data was lost; look "
    "at the page of the channel.",
)
CAPTURE_CHANGES: Final = counter(
    "penstock_capture_changes",
    ("capture",),
    "Changes of a database that a capture has stored in the stream.",
    "Flat while the database is written to: look at the capture's log, then at `penstock cdc status`.",
)
CAPTURE_ROWS: Final = counter(
    "penstock_capture_snapshot_rows",
    ("capture",),
    "Rows of snapshots that a capture has stored in the stream.",
    "Compare with the rows of its tables to see how far a snapshot is.",
)
CAPTURE_LAG_BYTES: Final = gauge(
    "penstock_capture_lag_bytes",
    ("capture",),
    "The database's log after the last change that is stored in the stream.",
    "Rising over minutes: the stream is slow or away, or one capture is not enough for all tables.",
)
CAPTURE_ROOM_BYTES: Final = gauge(
    "penstock_capture_room_bytes",
    ("capture",),
    "How much the database may write until it drops changes that are not captured, or its disk is full. Missing if it "
    "is unknown.",
    "Falling: the capture does not keep up. Raise max_slot_wal_keep_size, or add disk, before it is 0.",
)
CAPTURE_TIME_TO_LOSS: Final = gauge(
    "penstock_capture_time_to_loss_seconds",
    ("capture",),
    "When that room is used up at the present rate of writes, if the capture does not move on. Missing if it is "
    "unknown.",
    "Alert on less than it takes you to react. 0: changes were lost; take a new snapshot.",
)
OUTBOX_DELIVERED: Final = counter(
    "penstock_outbox_delivered",
    ("outbox",),
    "Events of an outbox that its relay has delivered.",
    "Flat while events wait: look at `penstock_outbox_problem` and the relay's log.",
)
OUTBOX_WAITING: Final = gauge(
    "penstock_outbox_waiting_events",
    ("outbox",),
    "Committed events that the relay has not delivered, at its last look.",
    "Rising: applications commit more than the relay delivers, or the stream is away.",
)
OUTBOX_OLDEST: Final = gauge(
    "penstock_outbox_oldest_seconds",
    ("outbox",),
    "How long ago the oldest of those was sent. 0 if there is none.",
    "Alert on more than readers of the events may be late.",
)
OUTBOX_PROBLEM: Final = gauge(
    "penstock_outbox_problem",
    ("outbox",),
    "1 while the relay retries because the database or the stream is unavailable, else 0.",
    "1 for minutes: the relay's log has the reason.",
)
TABLE_ROWS: Final = gauge(
    "penstock_table_rows",
    ("topic",),
    "Rows of the tables of a topic in this process: of the largest, if there are several.",
    "Compare with the keys that the topic should have; in memory, each row costs some.",
)
TABLE_PROBLEM: Final = gauge(
    "penstock_table_problem",
    ("topic",),
    "1 while a table is not being brought up to date, else 0.",
    "1: lookups find old rows, or fail; `Table.progress.problem` has the reason.",
)
TABLE_CAUGHT_UP: Final = gauge(
    "penstock_table_caught_up",
    ("topic",),
    "1 if rows can be looked up: everything that the topic had when the table was opened was read. Else 0.",
    "0 for long after the start: the topic is large; keep the rows in a file (`storage=`).",
)
PROJECTION_BUILT: Final = gauge(
    "penstock_projection_built",
    ("projection", "version"),
    "1 if the views of a running projection show this version, 0 while its tables are being filled.",
    "0 for long: look at the lag of the group penstock-projection-NAME-vVERSION.",
)

LIBRARY: Final = tuple(each for each in list(globals().values()) if isinstance(each, Definition))
