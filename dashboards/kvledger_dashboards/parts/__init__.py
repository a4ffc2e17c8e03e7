"""Panels that more than one board shows, or that belong together: functions that take an id and give a panel."""
