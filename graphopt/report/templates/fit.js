// The training page: the loss of each run and its running mean.
unpacked("data").then(data => {
  const redraw = () => chart.setOption({
    animation: false, tooltip: { ...tooltip(), trigger: "axis" },
    color: [styled("--colour-other"), styled("--colour-0")],
    legend: { top: 0, textStyle: { color: styled("--ink") } }, grid: { left: 64, right: 20, top: 40, bottom: 84 },
    xAxis: { ...axis(), type: "value", min: 1, max: Math.max(2, data.runs.length), name: "run", nameLocation: "middle" },
    yAxis: { ...axis(), type: "value", scale: true, name: "loss", nameGap: 8 }, dataZoom: zoom({ xAxisIndex: 0 }, 4),
    series: [["each run", data.loss, 1], ["running mean", data.mean, 2]].map(([name, losses, width]) => ({
      type: "line", symbol: "none", name, lineStyle: { width },
      data: losses.map((loss, place) => [data.runs[place], Number(loss.toPrecision(5))]),
    })),
  });
  const chart = drawing(document.getElementById("chart-loss"), redraw);
  redraw();
});
