"""What several methods share: generators, clustering, soft targets, mixtures, channel cuts."""
