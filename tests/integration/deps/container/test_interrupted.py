"""A start that a signal ends while programs of ours run for it."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.integration.deps.container.job import Job

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_requirements_are_resolved_ends_the_start(pip_job: Job, number: signal.Signals) -> None:
    """It does not go on to install and to run the job."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pip_job.requirements.write_text(f"--index-url http://127.0.0.1:{silent.getsockname()[1]}/\nheavy\n")
        process = pip_job.service.start(*pip_job.words("--network", "host", script="print('ran')"))
        silent.settimeout(60)
        with silent.accept()[0]:
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    pip_job.nothing_is_left()
