"""How an error is measured: units in the last place, and tolerances as data."""
