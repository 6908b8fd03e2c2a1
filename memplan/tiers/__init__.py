"""Tiers: which memory a value lies in when, and what the copies between them cost."""
