"""The parts of which algorithms are made: generators, clustering, soft targets, mixtures, channel splits."""
