"""What a line of the log says, and that writing it holds nobody up."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from time import monotonic

from onebit.logs import Sink, SinkFile, as_json, for_people, logging_to, lost_record, plain, to_pipe
from onebit.router.journal import Entry


def request(seconds: float = 1.5, **fields: object) -> logging.LogRecord:
    entry = Entry("req-01234567-1f", "/v1/chat/completions", "shop", "paid", "chat", began=100.0, engine="vulkan")
    entry.admitted, entry.first, entry.tokens, entry.prompt_tokens, entry.status = 100.001, 100.3, 128, 40, 200
    for name, value in fields.items():
        setattr(entry, name, value)
    return logging.makeLogRecord(
        {
            "name": "onebit.access",
            "msg": "request",
            "levelno": logging.INFO,
            "levelname": "INFO",
            "entry": entry,
            "seconds": seconds,
        }
    )


def test_json_has_every_field_of_a_request() -> None:
    line = as_json(request())
    assert "\n" not in line
    fields = json.loads(line)
    del fields["time"]
    assert fields == {
        "level": "info",
        "logger": "onebit.access",
        "message": "request",
        "id": "req-01234567-1f",
        "key": "shop",
        "tier": "paid",
        "model": "chat",
        "engine": "vulkan",
        "path": "/v1/chat/completions",
        "wait": 0.001,
        "first_token": 0.3,
        "prompt_tokens": 40,
        "tokens": 128,
        "preemptions": 0,
        "outcome": "ok",
        "status": 200,
        "seconds": 1.5,
    }


def test_a_person_reads_a_request_in_80_columns() -> None:
    text = plain(for_people(request()))
    assert len(text) <= 80
    assert text[9:] == "200   1.50 s   128 tok chat/vulkan paid shop first 0.30 req-01234567-1f"


def test_what_went_wrong_is_said_and_what_did_not_happen_is_not() -> None:
    refused = request(0.01, engine="", admitted=None, first=100.01, tokens=None, status=429, outcome="queue_full")
    text = plain(for_people(refused))
    assert text[9:] == "429   0.01 s           chat paid shop queue_full req-01234567-1f"
    fields = json.loads(as_json(refused))
    assert fields["engine"] is None and fields["wait"] is None and fields["first_token"] is None
    left = plain(for_people(request(2, status=0, outcome="left", admitted=101.5, first=None, preemptions=2)))
    assert left[9:] == "---   2.00 s   128 tok chat/vulkan paid shop left wait 1.50 gave way 2× req-01234567-1f"


def test_an_exception_is_one_line_of_json_and_control_characters_are_for_nobody() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("onebit.router", logging.ERROR, "", 0, "it \x1b[31mfailed", None, sys.exc_info())
    fields = json.loads(as_json(record))
    assert "\n" not in as_json(record) and "ValueError: broken" in fields["exception"]
    text = plain(for_people(record))
    assert "\x1b" not in text and "error: it [31mfailed\nTraceback" in text


def test_of_others_only_warnings_are_heard_and_everything_once() -> None:
    heard: list[str] = []
    theirs = logging.getLogger("elsewhere")
    before = logging.getLogger().handlers[:]
    theirs.setLevel(logging.DEBUG)
    try:
        with logging_to(lambda record: heard.append(record.getMessage())):
            logging.getLogger("onebit.models").info("ours")
            logging.getLogger("onebit.models").debug("too fine")
            logging.getLogger("onebit.models").error("ours, bad")
            theirs.info("theirs")
            theirs.warning("theirs, bad")
        theirs.warning("afterwards")
        logging.getLogger("onebit.models").info("afterwards")
    finally:
        theirs.setLevel(logging.NOTSET)
    assert heard == ["ours", "ours, bad", "theirs, bad"]
    assert logging.getLogger().handlers == before


def test_what_uvicorn_says_of_a_broken_app_is_one_line() -> None:
    records: list[logging.LogRecord] = []
    with logging_to(records.append):
        try:
            raise ValueError("broken")
        except ValueError as error:
            logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)  # its words
    (record,) = records
    line = as_json(record)
    fields = json.loads(line)
    assert "\n" not in line and fields["exception"].endswith("ValueError: broken")
    assert (fields["level"], fields["logger"]) == ("error", "uvicorn.error")
    assert "error: Exception in ASGI application\nTraceback" in plain(for_people(record))


def test_a_pipe_that_is_not_read_costs_lines_and_no_time() -> None:
    reading, writing = os.pipe()
    sink = Sink(to_pipe(writing), lambda count: lost_record(count).getMessage() + "\n", limit=100)
    try:
        for number in range(2000):  # 2 MB into a pipe of 64 KiB
            sink.put(f"{number:04} {'x' * 1000}\n")
        assert sink.dropped >= 2000 - 100 - 66
        began = monotonic()
        sink.end()  # returns although nobody reads
        assert monotonic() - began < 30
    finally:
        text = _drain(reading, writing)
    lines = text.splitlines()
    assert lines[0].startswith("0000 ") and any("lines of the log were dropped" in line for line in lines)
    assert all(len(line) == 1005 or "were dropped" in line for line in lines)  # none is cut or mixed


def _drain(reading: int, writing: int) -> str:
    """All that comes through the pipe. Its writing end is closed when nothing has come for a while."""
    parts: list[bytes] = []
    heard = threading.Event()

    def read() -> None:
        while part := os.read(reading, 1 << 16):
            parts.append(part)
            heard.set()

    reader = threading.Thread(target=read)
    reader.start()
    while heard.wait(2.0):
        heard.clear()
    os.close(writing)
    reader.join()
    os.close(reading)
    return b"".join(parts).decode()


def test_a_reader_that_has_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = Sink(to_pipe(writing), str)
    print("into the void", file=SinkFile(sink))
    sink.end()
    os.close(writing)
    assert sink.dropped >= 1
