"""`kvledger up`: an engine, its agent and a load as child processes. Starts processes; imports none of them."""
