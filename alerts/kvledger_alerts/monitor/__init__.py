"""`kvledger monitor`: Prometheus and Alertmanager as children, with the generated files. Knows no alert by name."""
