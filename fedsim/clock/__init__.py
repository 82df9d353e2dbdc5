"""The simulated clock: the devices of the clients, the policies of the server, and the seconds of a round."""
