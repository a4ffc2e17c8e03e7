"""The sidecar: reads ledgers, never writes them; observation, findings, exporters and the kvledger command."""
