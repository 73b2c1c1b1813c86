import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from liftedstruct.runtime.progress import Bar, say, stderr_console


class Gone:
    """Stream whose reader is gone."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, terminal: bool, error: Exception) -> None:
        self.terminal, self.error, self.asked = terminal, error, 0

    def write(self, _: str) -> int:
        self.asked += 1
        raise self.error

    def flush(self) -> None:
        raise self.error

    def isatty(self) -> bool:
        return self.terminal

    def fileno(self) -> int:
        return 2


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error"), ValueError("closed file")])
def test_progress_never_raises(terminal: bool, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Gone(terminal, error)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    say("a line")
    with Bar("work", 10, done=2) as bar:
        bar.last -= 60  # due for another line
        bar.advance(3)
    stderr_console().print("a line")
    assert stream.asked > 1


def test_progress_without_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say("a line")
    with Bar("work", 10) as bar:
        bar.advance(10)
    assert capsys.readouterr().out == ""


def test_a_closed_terminal(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import os, signal, sys, time
from liftedstruct.runtime.progress import Bar
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Bar("work", 4) as bar:
    os.write(1, b"begun\\n")  # rich intercepts prints while a bar is shown
    sys.stdin.read()
    for _ in range(4):
        bar.advance()
        time.sleep(0.15)
print("done", flush=True)
""")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "PYTHONUNBUFFERED": ""}  # with a buffer, which Python flushes when it exits
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    os.close(theirs)
    os.close(ours)
    process.stdin.close()
    assert process.stdout.read() == "done\n"
    assert process.wait(timeout=60) == 0
    process.stdout.close()
