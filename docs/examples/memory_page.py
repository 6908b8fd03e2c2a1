"""Write the page of a model's memory, with the plans of every lever: python memory_page.py MODEL.onnx PAGE.html"""

import sys

import graphopt

source, page = sys.argv[1:]
report = graphopt.memory(source, points=4)
print(report)
for buffer in sorted(report.record.buffers, key=lambda line: -line.bytes)[:3]:
    print(f"{buffer.name}: {buffer.bytes:,} bytes")
report.write(page)
