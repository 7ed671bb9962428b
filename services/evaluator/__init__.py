"""The evaluator: whole episodes of saved policies, while they are trained and afterwards."""
