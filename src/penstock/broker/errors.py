"""Errors that are sent to clients, and the protocol's codes for the storage engine's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode

from penstock import errors


class ProtocolError(errors.PenstockError):
    """A request is refused with one of the protocol's error codes."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


@contextmanager
def reported() -> Iterator[dict[str, Any]]:
    """Yield the fields `error_code` and `error_message` of a response, which a PenstockError in the block fills."""
    fields: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
    try:
        yield fields
    except errors.PenstockError as error:
        fields |= {"error_code": code_of(error), "error_message": str(error)}


CODES: Final[dict[type[errors.PenstockError], ErrorCode]] = {
    errors.CorruptBatchError: ErrorCode.corrupt_message,
    errors.RecordTooLargeError: ErrorCode.message_too_large,
    errors.InvalidTimestampError: ErrorCode.invalid_timestamp,
    errors.InvalidRecordError: ErrorCode.invalid_record,
    errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
    errors.StorageError: ErrorCode.kafka_storage_error,
    errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
    errors.InvalidProducerEpochError: ErrorCode.invalid_producer_epoch,
    errors.InvalidTransactionStateError: ErrorCode.invalid_txn_state,
    errors.TransactionCoordinatorFencedError: ErrorCode.transaction_coordinator_fenced,
    errors.UnknownTopicError: ErrorCode.unknown_topic_or_partition,
    errors.TopicExistsError: ErrorCode.topic_already_exists,
    errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
    errors.ConfigError: ErrorCode.invalid_config,
}


def code_of(error: BaseException) -> ErrorCode:
    """The protocol's code for an error; `unknown_server_error` for any error that is not ours."""
    if isinstance(error, ProtocolError):
        return error.code
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error
