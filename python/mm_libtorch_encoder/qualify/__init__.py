"""Shows on one machine, without a network, that an encoder does there what it promises.

    python -m mm_libtorch_encoder.qualify CHECKPOINT [--device cuda:0] [--json] [--report FILE]

Each check ends as "passed", "failed" or "not run", with the reason; the exit code is 1 if one failed.
"""
