"""Transactions: ids, epochs, two-phase ends."""
