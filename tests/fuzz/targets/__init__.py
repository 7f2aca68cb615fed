"""Fuzz targets by kind."""
