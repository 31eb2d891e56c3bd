"""What a first hour with the package tries: a program for each fault that one met, and what it must say.

Each program uses the public API alone, so that it runs on commits from before its fault was mended.
``python -m first_contact --out FILE`` (from ``tests``) writes what each says on the commit that runs.
"""
