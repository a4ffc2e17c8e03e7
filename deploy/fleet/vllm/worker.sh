#!/usr/bin/env bash
# The second machine: no API server, and the engine cores with the ranks 2 and 3.
set -euo pipefail
export KVLEDGER_DIR=/dev/shm/kvledger
export KVLEDGER_ENGINE=chat
kvledger agent --host 0.0.0.0 &
exec vllm serve your/model --headless \
    --data-parallel-size 4 \
    --data-parallel-size-local 2 \
    --data-parallel-start-rank 2 \
    --data-parallel-address "${HEAD:?address of the first machine}" \
    --data-parallel-rpc-port 13345
