import os

import pytest
import torch

from liftedstruct.training.machine import find_device, find_threads, seed_torch, warn_of_emulation


def test_threads_are_limited() -> None:
    assert 1 <= find_threads() <= min(torch.get_num_threads(), len(os.sched_getaffinity(0)))


def test_several_cuda_devices_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert find_device(None) == torch.device("cuda:0")
    assert "found 4 CUDA devices, using cuda:0" in capsys.readouterr().err
    assert find_device("cuda:3") == torch.device("cuda:3")  # chosen explicitly: no message
    assert find_device("cpu") == torch.device("cpu")
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match=r"device must be available, got 'cuda:4' with 4 CUDA devices\. Pass cpu"):
        find_device("cuda:4")
    with pytest.raises(ValueError, match=r"device must be cpu, cuda or cuda:N, got 'mps'"):
        find_device("mps")


def test_warning_for_emulated_bfloat16(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    for able, warned in ((True, False), (False, True)):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda able=able: able)
        warn_of_emulation(cpu, "bfloat16")
        assert ("warning: this processor does not support bfloat16 natively" in capsys.readouterr().err) == warned
        warn_of_emulation(cuda, "bfloat16")
        warn_of_emulation(cpu, "float32")
        assert not capsys.readouterr().err


def test_seeds_of_several_words() -> None:
    drawn = []
    for words in ((1, 2), (1, 2), (2, 1), (1, 2, 0, 1)):
        seed_torch(*words)
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3
