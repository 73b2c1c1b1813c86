import pytest

from liftedstruct.recipes.steps import Steps


def test_steps_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(2)
    with steps.step("one thing"):
        pass
    with pytest.raises(KeyboardInterrupt), steps.step("another"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == (
        "[1/2] one thing\n[2/2] another\nstopped in step 2 of 2. Finished work is kept: run the same command again to resume.\n"
    )
    assert steps.took == "1 s"
