"""Plans: what a spec needs and how long it takes, from measurements."""
