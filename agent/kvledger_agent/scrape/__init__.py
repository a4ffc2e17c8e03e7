"""Engines seen through the pages they serve: fetch, parse, detect, read, watch. Needs no restart and no plugin."""
