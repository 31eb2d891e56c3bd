"""f with kinks or jumps: power series about these and another form above v*, halves, quadrature."""
