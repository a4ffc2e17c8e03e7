"""The model: a Llama's shape, its weights and its arithmetic. Knows no request, no block and no ledger."""
