"""How much memory there is, how much the models take, who gets it, and who must go."""
