"""The embedded nats-server: found, guarded, restarted, and never left behind."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from threading import Timer

import psutil
import pytest
from patience import until

from rover_bus.events.broker import BrokerFailed, BrokerMissing, EmbeddedBroker, find_server, read_secret
from rover_bus.events.errors import InputError

pytestmark = pytest.mark.broker


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_it_keeps_its_port_and_its_store_over_a_crash(broker: EmbeddedBroker) -> None:
    before, url = broker.pid, broker.url
    broker.restart()
    assert broker.url == url
    assert broker.pid != before
    assert broker.running


def test_its_secret_is_readable_by_its_owner_only_and_not_on_its_command_line(broker: EmbeddedBroker) -> None:
    for name in ("secret", "nats-server.conf"):
        assert stat.S_IMODE((broker.directory / name).stat().st_mode) == 0o600
    assert broker.pid is not None
    assert broker.secret not in " ".join(psutil.Process(broker.pid).cmdline())
    assert len(broker.secret) >= 32


def test_the_secret_stays_the_same_and_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert read_secret(path) == read_secret(path)
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_secret(path)


def test_two_brokers_never_share_a_store(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerFailed, match="another broker"):
        EmbeddedBroker(broker.directory).start()


def test_a_stopped_broker_leaves_no_process_and_may_be_stopped_again(broker: EmbeddedBroker) -> None:
    pid = broker.pid
    broker.stop()
    broker.stop()
    assert pid is not None
    until(lambda: gone(pid), "its end")
    assert broker.pid is None


def test_a_port_in_use_is_told_before_anything_starts(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="in use"):
        EmbeddedBroker(tmp_path / "second", port=broker.port).start()


def test_a_missing_binary_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ROVER_NATS_SERVER", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BrokerMissing, match="pip install"):
        find_server()
    monkeypatch.setenv("ROVER_NATS_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(BrokerMissing, match="not a program"):
        find_server()


@pytest.mark.chaos
@pytest.mark.parametrize("from_thread", [False, True])
def test_it_dies_with_a_parent_that_is_killed_but_not_with_a_thread(
    tmp_path: Path, from_thread: bool
) -> None:
    program = (
        "import sys, threading, time\n"
        "from rover_bus.events.broker import EmbeddedBroker\n"
        f"broker = EmbeddedBroker({str(tmp_path / 'orphan')!r})\n"
        f"starter = threading.Thread(target=broker.start)\n"
        f"starter.start() if {from_thread} else broker.start()\n"
        f"starter.join() if {from_thread} else None\n"
        "time.sleep(0.2)\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=dict(os.environ))
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert psutil.Process(pid).is_running()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: gone(pid), "its end")


def test_a_broker_whose_lock_is_about_to_be_free_is_waited_for(tmp_path: Path) -> None:
    """As after SIGKILL of `rover up`: its broker dies with it, but not in the same instant."""
    first = EmbeddedBroker(tmp_path / "broker").start()
    killer = Timer(0.5, first.kill)
    killer.start()
    try:
        with EmbeddedBroker(tmp_path / "broker") as second:
            assert second.port == first.port
    finally:
        killer.join()
