"""Engines seen through their pages."""
