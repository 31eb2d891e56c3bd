"""Certify: the error of an emitted program against exact values, searched for and written down."""
