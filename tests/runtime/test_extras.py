import sys
from pathlib import Path

import pytest

from liftedstruct.runtime.extras import require


def test_an_installed_package() -> None:
    import json.decoder

    assert require("json.decoder", "nothing") is json.decoder


def test_a_missing_package() -> None:
    with pytest.raises(ValueError, match=r"^no_such must .* no_such is missing\. Run: pip install 'liftedstruct\[timm\]'$"):
        require("no_such", "timm")


def test_a_package_with_a_missing_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"lacking must be installed with its dependencies, but no_such_package is missing"):
        require("lacking", "timm")
    assert "lacking" not in sys.modules
