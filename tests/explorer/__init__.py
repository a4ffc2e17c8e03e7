"""The explorer, from its client to its pages in a browser, against real agents and engines."""
