"""Personalisation before scoring, and summaries over clients."""
