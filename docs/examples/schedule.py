"""Place a model's regions on two CPU workers, simulated: python schedule.py MODEL.onnx"""

import sys

import graphopt

record = graphopt.schedule(sys.argv[1], device="cpu:2").record
print(f"{record.regions} regions in {record.makespan / 1000:.0f} us by {record.policy}, {record.waits} waits")
for bound in record.bounds:
    print(f"no schedule is below {bound.time / 1000:.0f} us ({bound.name})")
