"""Signals, forks and exits, each in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import FORKED, Outcome, finish, run, start

CheckpointOf = Callable[[str], Path]

OPENED = """
import gc, os, signal, sys, threading, time
import images
from mm_libtorch_encoder import Encoder, EncoderClosed
encoder = Encoder(sys.argv[1], "demo", "cpu", dtype="float32")
good = images.png(90, 60, 1)
"""


def opened(checkpoint_of: CheckpointOf, body: str, **environ: str) -> Outcome:
    """Runs `body`: `encoder` is an open encoder of the small GLM, `good` an image of 20 tokens."""
    return run(OPENED + body, checkpoint_of("glm53"), **environ)


def silent(outcome: Outcome, code: int = 0) -> str:
    assert (outcome.code, outcome.err) == (code, ""), outcome
    return outcome.out


# Exit


def test_exit_without_closing(demo_checkpoint: CheckpointOf) -> None:
    assert silent(opened(demo_checkpoint, "encoder.generate([good] * 3); print('end')")) == "end\n"


def test_exit_without_ever_encoding(demo_checkpoint: CheckpointOf) -> None:
    silent(opened(demo_checkpoint, ""))


def test_exit_with_results_alive(demo_checkpoint: CheckpointOf) -> None:
    silent(
        opened(demo_checkpoint, "import builtins; builtins.kept = encoder.generate([good] * 3); del encoder")
    )


def test_exit_with_untaken_results_alive(demo_checkpoint: CheckpointOf) -> None:
    silent(
        opened(demo_checkpoint, "import builtins; builtins.kept = encoder._native.generate([good] * 3, None)")
    )


def test_exit_of_several_encoders_that_modules_hold(demo_checkpoint: CheckpointOf) -> None:
    body = """
import builtins
builtins.first = encoder
sys.modules["mm_libtorch_encoder"].kept = Encoder(sys.argv[1], "demo", "cpu")
builtins.cycle = [encoder]; builtins.cycle.append(builtins.cycle)
"""
    silent(opened(demo_checkpoint, body))


@pytest.mark.parametrize("daemon", [True, False])
def test_exit_while_a_thread_encodes(demo_checkpoint: CheckpointOf, daemon: bool) -> None:
    body = f"""
begun = threading.Event()
def work():
    begun.set()
    try:
        for _ in range(20): encoder.generate([good] * 4)
    except EncoderClosed:
        pass
threading.Thread(target=work, daemon={daemon}).start()
begun.wait(); time.sleep(0.05)
"""
    silent(opened(demo_checkpoint, body))


# A daemon thread that is inside of LibTorch for a while, and the exit that comes meanwhile.
TAKING = """
import asyncio, torch
module = sys.modules["mm_libtorch_encoder.encoder"]
take, entered = module._take, threading.Event()
def slow(number):
    entered.set()
    time.sleep(0.3)
    tensors = take(number)
    os.write(1, b"taken\\n")
    return tensors
module._take = slow
def work():
    result = CALL
    threading.Event().wait()  # to drop a tensor while the interpreter ends is the caller's own risk
threading.Thread(target=work, daemon=True).start()
entered.wait()
"""


@pytest.mark.parametrize(
    "call",
    [
        "encoder.generate(good)",
        "encoder.encode_image(good)",
        "encoder.encode_pixels(torch.zeros(64, 1176), [(1, 8, 8)])",
        "asyncio.run(encoder.generate_async(good))",
        "asyncio.run(encoder.encode_image_async(good))",
    ],
)
def test_the_exit_waits_for_a_daemon_thread_that_takes_its_result(
    demo_checkpoint: CheckpointOf, call: str
) -> None:
    """One that were torn out of LibTorch would end the process by a signal."""
    assert silent(opened(demo_checkpoint, TAKING.replace("CALL", call))) == "taken\n"


def test_an_event_loop_that_finds_its_answer_behind_the_exits_wait_is_refused(
    demo_checkpoint: CheckpointOf,
) -> None:
    """A handler that was registered before the package was imported runs behind the one that closes."""
    program = (
        """
import asyncio, atexit, threading
submitted, late, done = threading.Event(), threading.Event(), threading.Event()
atexit.register(lambda: (late.set(), done.wait(60)))
"""
        + OPENED
        + """
async def main():
    task = asyncio.create_task(encoder.encode_image_async(good))
    await asyncio.sleep(0)
    submitted.set()
    late.wait()
    try: await task
    except EncoderClosed as error: os.write(1, str(error).encode())
    done.set()
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
submitted.wait()
"""
    )
    assert "no result can be taken" in silent(run(program, demo_checkpoint("glm53")))


def test_an_exit_beside_a_loop_that_nobody_runs_does_not_wait(demo_checkpoint: CheckpointOf) -> None:
    body = """
import asyncio, atexit
loop = asyncio.new_event_loop()
task = loop.create_task(encoder.encode_image_async(good))
loop.run_until_complete(asyncio.sleep(0))
module, begin = sys.modules["mm_libtorch_encoder.encoder"], time.monotonic()
module._close_all()
print(time.monotonic() - begin < 5)
task.cancel()
loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
"""
    assert silent(opened(demo_checkpoint, body)) == "True\n"


def test_exit_by_an_error(demo_checkpoint: CheckpointOf) -> None:
    outcome = opened(demo_checkpoint, "encoder.generate(good); raise KeyError('mine')")
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback") and outcome.err.endswith("KeyError: 'mine'\n")


def test_exit_at_once_while_encoding(demo_checkpoint: CheckpointOf) -> None:
    body = """
threading.Thread(target=lambda: encoder.generate([good] * 1000)).start()
time.sleep(0.1)
os._exit(7)
"""
    silent(opened(demo_checkpoint, body), 7)


def test_exit_from_a_thread(demo_checkpoint: CheckpointOf) -> None:
    body = """
thread = threading.Thread(target=lambda: (encoder.generate(good), sys.exit(3)))
thread.start(); thread.join()
"""
    silent(opened(demo_checkpoint, body))


def test_use_in_an_exit_handler(demo_checkpoint: CheckpointOf) -> None:
    """Handlers run in reverse: one registered before the package was imported finds the encoder closed."""
    program = (
        """
import atexit
def late():
    try: encoder.generate(good)
    except EncoderClosed as error: print("closed")
atexit.register(late)
"""
        + OPENED
        + """
atexit.register(lambda: print(len(encoder.generate(good))))
"""
    )
    outcome = run(program, demo_checkpoint("glm53"))
    assert silent(outcome) == "1\nclosed\n"


def test_a_terminated_process_ends_at_once(demo_checkpoint: CheckpointOf) -> None:
    process = start(
        OPENED + "print('ready', flush=True); encoder.generate([good] * 100000)", demo_checkpoint("glm53")
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert finish(process, 20).code == -signal.SIGTERM


# Ctrl-C


@pytest.mark.parametrize("size", [(90, 60), (900, 700)])
def test_ctrl_c_stops_a_call_and_the_encoder_goes_on(
    demo_checkpoint: CheckpointOf, size: tuple[int, int]
) -> None:
    body = f"""
many = [images.png{size}] * 5000
print("ready", flush=True)
try:
    encoder.generate(many)
except KeyboardInterrupt:
    print("stopped", flush=True)
print(len(encoder.generate(good)))
gc.collect()
from mm_libtorch_encoder import _native
before = _native.live_tensors()
encoder.generate([good] * 9)
print(_native.live_tensors() - before)
"""
    process = start(OPENED + body, demo_checkpoint("glm53"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.stdout.readline() == "stopped\n"
    assert time.monotonic() - begin < 20
    outcome = finish(process)
    assert silent(outcome) == "1\n0\n"


def test_ctrl_c_in_a_long_forward(demo_checkpoint: CheckpointOf) -> None:
    """The call returns though the tower is still at it, and closing waits for the tower."""
    body = """
big = images.png(2200, 2200)
print("ready", flush=True)
try:
    encoder.generate(big)
    print("done", flush=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
encoder.close()
"""
    process = start(OPENED + body, demo_checkpoint("glm53"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() in ("stopped\n", "done\n")
    silent(finish(process))


# Fork


def test_a_forked_child_is_told_at_once(demo_checkpoint: CheckpointOf) -> None:
    body = (
        FORKED
        + """
import torch
def child():
    begin = time.monotonic()
    for call in (lambda: encoder.generate(good), lambda: encoder.encode_image(good), encoder.close,
                 lambda: encoder.encode_pixels(torch.zeros(64, 1176), [(1, 8, 8)])):
        try: call()
        except EncoderClosed as error: print(error)
        else: print("no error")
    assert time.monotonic() - begin < 5
wanted = encoder.generate(good)[0].tensor
print(forked(child))
assert torch.equal(encoder.generate(good)[0].tensor, wanted)
"""
    )
    *sentences, code = silent(opened(demo_checkpoint, body)).splitlines()
    assert code == "0"
    assert len(sentences) == 4 and len(set(sentences)) == 1
    assert "belongs to the parent process" in sentences[0] and "create one in each process" in sentences[0]


@pytest.mark.parametrize("ending", ["pass", "global encoder; del encoder; gc.collect()", "os._exit(0)"])
def test_a_forked_child_ends_cleanly(demo_checkpoint: CheckpointOf, ending: str) -> None:
    body = (
        FORKED
        + f"""
def child():
    {ending}
encoder.generate(good)
print([forked(child) for _ in range(3)], len(encoder.generate(good)))
"""
    )
    assert silent(opened(demo_checkpoint, body)) == "[0, 0, 0] 1\n"


def test_forking_while_threads_encode_and_close(demo_checkpoint: CheckpointOf) -> None:
    """Locks that a thread of the parent held at the fork stay held in the child for ever."""
    body = (
        FORKED
        + """
stop = threading.Event()
def work():
    while not stop.is_set(): encoder.generate([good] * 3)
def open_and_close():
    while not stop.is_set(): Encoder(sys.argv[1], "demo", "cpu").close()
threads = [threading.Thread(target=target) for target in (work, work, open_and_close)]
for thread in threads: thread.start()
def child():
    global encoder
    try: encoder.generate(good)
    except EncoderClosed: pass
    del encoder
    gc.collect()
    os._exit(0)
codes = {forked(child, 30) for _ in range(15)}
stop.set()
for thread in threads: thread.join()
print(codes, len(encoder.generate(good)))
"""
    )
    assert silent(opened(demo_checkpoint, body)) == "{0} 1\n"


def test_a_forked_child_opens_its_own(demo_checkpoint: CheckpointOf) -> None:
    body = (
        FORKED
        + """
import torch
wanted = encoder.generate(good)[0].tensor
def child():
    with Encoder(sys.argv[1], "demo", "cpu", dtype="float32") as own:
        assert torch.equal(own.generate(good)[0].tensor, wanted)
    unclosed = Encoder(sys.argv[1], "demo", "cpu", dtype="float32")
    unclosed.generate(good)
print(forked(child), len(encoder.generate(good)))
"""
    )
    assert silent(opened(demo_checkpoint, body)) == "0 1\n"


def test_forking_before_there_is_an_encoder(demo_checkpoint: CheckpointOf) -> None:
    program = (
        "import gc, os, signal, sys, time\nimport images\nfrom mm_libtorch_encoder import Encoder\n"
        + FORKED
        + """
good = images.png(90, 60, 1)
def child():
    with Encoder(sys.argv[1], "demo", "cpu") as encoder: print(len(encoder.generate([good] * 3)))
print(forked(child), forked(child))
child()
"""
    )
    assert silent(run(program, demo_checkpoint("glm53"))) == "3\n3\n0 0\n3\n"


def test_spawned_processes(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    """Metadata and exceptions come back from workers of another process."""
    (tmp_path / "work.py").write_text(
        "import images\n"
        "from mm_libtorch_encoder import Encoder\n"
        "def work(folder):\n"
        "    with Encoder(folder, 'demo', 'cpu') as encoder:\n"
        "        outcomes = encoder.generate([images.png(90, 60, 1), b'bad'], return_errors=True)\n"
        "        return outcomes[0].metadata, outcomes[1]\n"
    )
    program = """
if __name__ == "__main__":
    import multiprocessing, sys
    from work import work
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        metadata, error = pool.apply(work, (sys.argv[1],))
    print(metadata.length, type(error).__name__)
"""
    (tmp_path / "main.py").write_text(program)
    command = """
        import runpy, sys
        sys.path.insert(0, sys.argv[2])
        runpy.run_path(sys.argv[2] + "/main.py", run_name="__main__")
    """
    outcome = run(command, demo_checkpoint("glm53"), tmp_path)
    assert silent(outcome) == "20 MediaError\n"


# Import


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    program = """
        import sys
        import mm_libtorch_encoder
        print(sorted({"torch", "numpy"} & set(sys.modules)), mm_libtorch_encoder.__version__)
    """
    assert silent(run(program)).startswith("[] ")


def test_the_encoder_is_imported_quickly() -> None:
    """Processor time beyond Torch's own import, so that a busy machine does not matter."""
    program = """
        import time
        import torch
        begin = time.process_time()
        from mm_libtorch_encoder import Encoder
        print(time.process_time() - begin)
    """
    seconds = min(float(silent(run(program))) for _ in range(2))
    assert seconds < 0.3
