"""Deploying: a program in this process, or a folder that runs without graphopt, without Python, without a framework."""
