import threading

import pytest
import torch

from dpsub.trainers import devices


def test_another_precision_waits_for_its_turn():
    seen, entered = [], threading.Event()

    def other():
        with devices.matmul_precision("medium"):
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
            entered.set()

    with devices.matmul_precision("highest"), devices.matmul_precision("highest"):
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.1)
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    thread.join()
    assert seen == ["bf16"]


def test_precision_is_put_back_after_an_error():
    def state():
        backends = torch.backends
        switches = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.cuda.matmul, backends.cudnn.conv)
        return (*(switch.fp32_precision for switch in switches), backends.cudnn.deterministic)

    before = state()
    seen = []

    def fails():
        with devices.matmul_precision("medium"):
            seen.append(state())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert seen == [("bf16", "bf16", "tf32", "tf32", True)]
    assert state() == before


def test_each_piece_has_one_thread_to_itself():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        seen = dict(devices.side_by_side(lambda piece, stop: torch.get_num_threads(), range(4), 2))
        assert seen == dict.fromkeys(range(4), 1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_pieces_are_told_to_stop_when_the_first_of_them_fails():
    threads, stopped = torch.get_num_threads(), []

    def work(piece, stop):
        if piece == 0:
            raise ZeroDivisionError
        stopped.append(stop.wait(10))

    with pytest.raises(ZeroDivisionError):
        list(devices.side_by_side(work, range(8), 2))
    assert len(stopped) <= 3, "pieces that had not begun never do"
    assert all(stopped)
    assert torch.get_num_threads() == threads
