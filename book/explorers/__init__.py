"""Explorers, widgets and drawings of the book's pages."""
