import errno
import fcntl
import json
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftedstruct.runtime import atomic
from liftedstruct.runtime.atomic import is_temporary, locked, replacing, write_json


def test_the_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "file.bin"
    with replacing(file) as stream:
        stream.write(b"first")
        assert not file.exists()
    assert file.read_bytes() == b"first"
    with replacing(str(file)) as stream:
        stream.write(b"second")
        stream.flush()
        assert file.read_bytes() == b"first"
    assert file.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.bin"
    file.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(file) as stream:
        stream.writelines([b"half", 0])  # type: ignore[list-item]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "target.json", tmp_path / "link.json"
    target.parent.mkdir()
    link.symlink_to("there/target.json")
    for content in ({"a": 1}, {"a": 2}):  # the first write creates the target
        write_json(link, content)
        assert link.is_symlink()
        assert json.loads(target.read_text()) == content
    assert list(target.parent.iterdir()) == [target]


def test_a_path_that_is_not_a_regular_file_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe.npz", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as stream:
        np.savez(stream, x=np.arange(3))
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "copy.npz").write_bytes(read[0])
    assert np.load(tmp_path / "copy.npz")["x"].tolist() == [0, 1, 2]
    with replacing(os.devnull) as stream:
        np.savez(stream, x=np.arange(3))
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_long_name_and_the_mode_of_a_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)
    file.write_bytes(b"old")
    file.chmod(0o600)
    with replacing(file) as stream:
        stream.write(b"new")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)


def write_often(file: Path, content: list[int], times: int) -> None:
    for _ in range(times):
        write_json(file, content)


@pytest.mark.slow
def test_two_writers_of_one_file_do_not_tear_it(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    contents = [[number] * 20_000 for number in (1, 2)]
    write_json(file, contents[0])
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_often, args=(file, content, 60)) for content in contents]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        assert json.loads(file.read_text()) in contents
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert reads > 10
    assert list(tmp_path.iterdir()) == [file]


def test_a_lock_removes_leftovers_of_killed_writers(tmp_path: Path) -> None:
    script = "import os, sys; from liftedstruct.runtime.atomic import replacing\nwith replacing(sys.argv[1]): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "file")], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert is_temporary(left.name)
    others = [left.name.replace(atomic.HOST, "0" * 8), "mine.tmp"]  # of another host, and not a temporary name
    for name in others:
        (tmp_path / name).touch()
    with replacing(tmp_path / "file") as stream, locked(tmp_path / "lock", "work"):
        stream.write(b"of a running process")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["file", *others])


def test_one_at_a_time(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from liftedstruct.runtime.atomic import locked\n"
    script += "with locked(Path(sys.argv[1]), 'training'): pass"
    with locked(tmp_path / "lock", "training"):
        other = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "lock")], capture_output=True, text=True, check=False
        )
    assert f"must be used by one training at a time, but is in use by process {os.getpid()}." in other.stderr


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_or_fsync_gets_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    atomic._warn.cache_clear()
    for number in range(2):
        with locked(tmp_path / "lock", "training"):
            write_json(tmp_path / "file.json", number)
    assert json.loads((tmp_path / "file.json").read_text()) == 1
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split()[-1] for line in warnings] == ["locks", "fsync"]


def test_a_failing_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_json(tmp_path / "file.json", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_open_descriptor_is_appended_to(tmp_path: Path) -> None:
    """`--out /dev/stdout >> file` keeps the content of the file and what is printed afterwards."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("precious\n")
    link.symlink_to("/dev/stdout")
    script = "import sys; from liftedstruct.runtime.atomic import write_json; write_json(sys.argv[1], 1); print(' and more')"
    for name in ("/dev/stdout", "/dev/fd/1", str(link)):
        with file.open("ab") as stream:
            subprocess.run([sys.executable, "-c", script, name], stdout=stream, check=True)
    assert file.read_text() == "precious\n" + 3 * "1 and more\n"
    assert link.is_symlink()


def test_a_file_system_without_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    for number in range(2):
        write_json(tmp_path / "file.json", number)
    assert json.loads((tmp_path / "file.json").read_text()) == 1


def test_the_next_writer_removes_leftovers_of_killed_writers(tmp_path: Path) -> None:
    script = "import os, sys; from liftedstruct.runtime.atomic import replacing\nwith replacing(sys.argv[1]): os._exit(9)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "file")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_json(tmp_path / "file", 1)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
