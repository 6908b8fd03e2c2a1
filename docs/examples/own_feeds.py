"""Check an optimized model on data of one's own besides the seeded feeds: python own_feeds.py MODEL.onnx FEEDS.npz"""

import sys

import graphopt

model, feeds = sys.argv[1:]
result = graphopt.optimize(model, feeds=feeds)
verdict = result.verification
print(f"{verdict.status} on {verdict.feeds} feeds ({', '.join(verdict.draws)}), largest error {verdict.max_rel:.0e}")
