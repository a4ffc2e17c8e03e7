"""The rows of the metric catalogue, by subject. `kvledger.catalog` is the whole of it."""
