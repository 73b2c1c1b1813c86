from pathlib import Path

import pytest

from liftedstruct.atomic import replacing


def test_the_file_appears_when_it_is_whole(tmp_path: Path) -> None:
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


def test_an_error_leaves_what_there_was(tmp_path: Path) -> None:
    file = tmp_path / "file.bin"
    file.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(file) as stream:
        stream.writelines([b"half", 0])  # type: ignore[list-item]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
