#!/usr/bin/env bash
# The first of two machines: the API server, and the engine cores with the ranks 0 and 1.
set -euo pipefail
export KVLEDGER_DIR=/dev/shm/kvledger  # a ledger for each engine core of this machine
export KVLEDGER_ENGINE=chat            # the same on every machine of one engine; ranks tell the cores apart
kvledger agent --host 0.0.0.0 &
exec vllm serve your/model \
    --data-parallel-size 4 \
    --data-parallel-size-local 2 \
    --data-parallel-address "${HEAD:?address of this machine}" \
    --data-parallel-rpc-port 13345
