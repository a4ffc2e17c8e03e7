"""Exporters: an observation on the wire. They name and format; they never compute."""
