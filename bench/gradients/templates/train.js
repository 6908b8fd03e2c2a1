// The page of training curves: for each network the losses of every run, and their distances from float64.
unpacked("data").then(networks => {
  const RUNS = ["torch float64", "torch float32", "onnxruntime", "program"];
  const LEAST = 1e-12; // what a distance of nothing is drawn at

  function curves(holder, runs, name, isDistance) {
    const redraw = () => chart.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "axis", valueFormatter: value => value.toPrecision(4) },
      legend: { top: 0, textStyle: { color: styled("--ink") } }, grid: { left: 70, right: 20, top: 46, bottom: 84 },
      xAxis: { ...axis(), type: "value", min: 1, max: runs[0].values.length, name: "step", nameLocation: "middle" },
      yAxis: { ...axis(), type: isDistance ? "log" : "value", scale: true, name, nameGap: 8,
        axisLabel: { color: styled("--soft"), formatter: value => isDistance ? value.toExponential() : digits(value) } },
      dataZoom: zoom({ xAxisIndex: 0 }, 4),
      series: runs.map(run => ({
        type: "line", symbol: "none", name: run.name, color: styled(`--colour-${RUNS.indexOf(run.name)}`),
        lineStyle: { width: 1.5, type: run.name.startsWith("torch") ? "solid" : "dashed" },
        data: run.values.map((value, place) => [place + 1, isDistance ? Math.max(value, LEAST) : value]),
      })),
    });
    const chart = drawing(holder, redraw);
    redraw();
  }

  for (const network of networks) {
    curves(document.getElementById(`chart-loss-${network.name}`), network.losses, "loss", false);
    curves(document.getElementById(`chart-distance-${network.name}`), network.distances, "distance from float64", true);
  }
});
