"""Streams, events and ownership, written down by the double: what waits for what, and that nothing waits for more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from scripts import run

CheckpointOf = Callable[[str], Path]

START = """
    import asyncio, re, sys
    import images
    from cuda_double import Double, Stream
    from mm_libtorch_encoder import DeviceOutOfMemory, Encoder, MediaError, _native, device
    import mm_libtorch_encoder.encoder

    library, folder = sys.argv[1:]
    double = Double(library)
    double.current = Stream(900)
    source = images.png(128, 96, 1)

    def show(title):
        print("#", title)
        for number, shape in double.recorded:
            print("record", number, *shape)
        double.recorded.clear()
        for line in double.log():
            if line.startswith("upload "):
                continue
            if not line.startswith("launch "):
                print(line)
            elif (title, line.split()[-1]) not in seen:
                seen.add((title, line.split()[-1]))
                print("launches on stream", line.split()[-1])
    seen = set()
"""


def sections(program: str, double: Path, folder: Path) -> dict[str, list[str]]:
    """What `show` printed, by title."""
    outcome = run(START + program, double, folder)
    assert outcome.code == 0, outcome.err
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in outcome.out.splitlines():
        if line.startswith("# "):
            lines = found[line[2:]] = []
        else:
            lines.append(line)
    return found


def numbers(pattern: str, lines: list[str]) -> list[int]:
    return [int(found.group(1)) for line in lines if (found := re.fullmatch(pattern, line))]


def test_every_worker_has_a_stream_of_its_own_behind_the_weights(
    double: Path, demo_checkpoint: CheckpointOf
) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0", replicas_per_gpu=3)
    show("open")
    encoder.close()
    show("close")
    """
    found = sections(program, double, demo_checkpoint("qwen35"))
    entered = numbers(r"enter stream (\d+) of cuda:0", found["open"])
    assert len(entered) == len(set(entered)) == 4, found["open"]
    loader, *workers = entered
    (loaded,) = numbers(rf"mark stream {loader} event (\d+)", found["open"])
    # The loader enters before anything is loaded, and every worker waits for its event and for nothing else.
    assert found["open"][0] == f"enter stream {loader} of cuda:0"
    assert numbers(r"launches on stream (\d+)", found["open"]) == [loader]
    waits = [line for line in found["open"] if line.startswith("wait")]
    assert sorted(waits) == sorted(f"wait stream {worker} event {loaded}" for worker in workers)
    # Weights are freed behind the last reader: each worker drains its own stream, then leaves it.
    for worker in workers:
        assert found["close"].index(f"drain stream {worker}") < found["close"].index(f"leave stream {worker}")
    assert numbers(r"drain stream (\d+)", found["close"] + found["open"]).__len__() == 3


def test_a_result_is_fenced_by_one_event(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0")
    show("open")
    (result,) = encoder.generate(source)
    show("generate")
    del result
    encoder.close()
    """
    found = sections(program, double, demo_checkpoint("qwen35"))
    worker = numbers(r"enter stream (\d+) of cuda:0", found["open"])[-1]
    lines = found["generate"]
    (event,) = numbers(rf"mark stream {worker} event (\d+)", lines)
    assert numbers(r"launches on stream (\d+)", lines) == [worker]
    # The caller's stream waits for the event and the tensor is recorded on it; the host waits for nothing.
    assert f"wait stream 900 event {event}" in lines
    (recorded,) = (line for line in lines if line.startswith("record"))
    assert re.fullmatch(r"record 900 \d+ 64", recorded)
    assert lines.index(f"mark stream {worker} event {event}") < lines.index(f"wait stream 900 event {event}")
    assert not [line for line in lines if line.startswith("drain")]
    assert f"forget event {event}" in lines


def test_images_of_one_batch_share_an_event(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0", max_batch_images=4)
    show("open")
    results = encoder.generate([source] * 6)
    show("generate")
    encoder.close()
    """
    found = sections(program, double, demo_checkpoint("qwen35"))["generate"]
    marks = numbers(r"mark stream \d+ event (\d+)", found)
    waits = numbers(r"wait stream 900 event (\d+)", found)
    assert len(waits) == 6 and set(waits) == set(marks) and len(marks) <= 6


def test_another_current_stream_behind_await(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0")
    show("open")

    async def main():
        task = asyncio.ensure_future(encoder.generate_async(source))
        await asyncio.sleep(0)  # the call has been made, under stream 900
        double.current = Stream(901)
        await task
        show("await")
        await encoder.generate_async(source)
        show("again")

    asyncio.run(main())
    encoder.close()
    """
    found = sections(program, double, demo_checkpoint("qwen35"))
    (event,) = numbers(r"mark stream \d+ event (\d+)", found["await"])
    assert numbers(rf"wait stream (\d+) event {event}", found["await"]) == [900, 901]
    assert [line.split()[1] for line in found["await"] if line.startswith("record")] == ["900", "901"]
    (event,) = numbers(r"mark stream \d+ event (\d+)", found["again"])
    assert numbers(rf"wait stream (\d+) event {event}", found["again"]) == [901]


def test_a_result_nobody_takes_is_forgotten(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0")
    show("open")
    before = _native.live_tensors()
    encodings = encoder._native.generate([source] * 3, None, None)
    assert _native.live_tensors() == before + 3
    del encodings
    assert _native.live_tensors() == before
    show("dropped")
    encoder.close()
    """
    found = sections(program, double, demo_checkpoint("qwen35"))["dropped"]
    marks = numbers(r"mark stream \d+ event (\d+)", found)
    assert len(marks) == 3 and sorted(numbers(r"forget event (\d+)", found)) == marks
    assert not [line for line in found if line.startswith(("wait", "record"))]


def test_results_of_a_cache_are_in_host_memory(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    from mm_libtorch_encoder import CacheConfig
    with Encoder(folder, "demo", "cpu") as encoder:
        wanted = encoder.generate(source)[0].tensor
    encoder = Encoder(folder, "demo", "cuda:0", cache=CacheConfig(memory_bytes=1 << 28))
    for title in ("computed", "cached"):
        double.log()
        (result,) = encoder.generate(source)
        assert (result.tensor - wanted).abs().max() < 3e-2 * wanted.abs().max()
        show(title)
    encoder.close()
    """
    found = sections(program, double, demo_checkpoint("qwen35"))
    # The worker has copied it to the host, so that no stream waits and no memory of the device is recorded.
    for lines in found.values():
        assert not [line for line in lines if line.startswith(("wait", "record"))]
    assert found["computed"] and not [line for line in found["cached"] if line.startswith("launches")]


def test_the_actual_priority_is_told(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    for asked in (1, 0, -1, -99):
        with Encoder(folder, "demo", "cuda:0", stream_priority=asked) as encoder:
            print("said", encoder.stream_priority)
    for wrong in (True, 1.0, "high", None, 2**31):
        try:
            Encoder(folder, "demo", "cuda:0", stream_priority=wrong)
        except ValueError as error:
            print("said", str(error).split(",")[0])
    with Encoder(folder, "demo", "cpu", stream_priority=-1) as encoder:
        print("said", encoder.stream_priority)
    """
    outcome = run(START + program, double, demo_checkpoint("qwen35"))
    assert outcome.code == 0, outcome.err
    said = [line.removeprefix("said ") for line in outcome.out.splitlines() if line.startswith("said")]
    assert said == ["0", "0", "-5", "-5", *["stream_priority must be an integer"] * 5, "0"]


def test_out_of_memory_stays_with_its_request(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = Encoder(folder, "demo", "cuda:0")
    wanted = encoder.generate(source)[0].tensor.clone()
    before = _native.live_tensors()
    double.run_out_of_memory(1)
    try:
        encoder.generate(source)
    except DeviceOutOfMemory as error:
        print("said", error)
    first, second, third = encoder.generate([source, b"no image", source], return_errors=True)
    assert isinstance(second, MediaError)
    assert (first.tensor == wanted).all() and (third.tensor == wanted).all()
    del first, third
    double.run_out_of_memory(1)
    answers = encoder.generate([source] * 3, return_errors=True)
    print("said", sorted(type(answer).__name__ for answer in answers))  # which one comes first is chance
    del answers
    assert _native.live_tensors() == before, "a failed request left tensors behind"
    encoder.close()
    """
    outcome = run(START + program, double, demo_checkpoint("glm53"))
    assert outcome.code == 0, outcome.err
    said = [line.removeprefix("said ") for line in outcome.out.splitlines() if line.startswith("said")]
    assert "out of memory" in said[0]
    assert said[1] == "['DeviceOutOfMemory', 'ImageResult', 'ImageResult']"
