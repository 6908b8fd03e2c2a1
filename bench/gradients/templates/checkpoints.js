// The page of time against memory: for each network the points of torch and of our programs.
unpacked("data").then(networks => {
  const COLOUR = { ours: "--colour-1", checkpoint_sequential: "--colour-0" };

  for (const network of networks) {
    const redraw = () => chart.setOption({
      animation: false,
      tooltip: { ...tooltip(), trigger: "item", formatter: point => card(`${point.seriesName}, ${point.value[2]}`,
        [["memory", `${point.value[0].toFixed(1)} MiB`], ["time / eager", point.value[1].toFixed(2)]]) },
      legend: { top: 0, textStyle: { color: styled("--ink") } },
      grid: { left: 64, right: 20, top: 46, bottom: 48 },
      xAxis: { ...axis(), type: "log", name: "MiB", nameLocation: "middle",
        min: extent => Math.floor(extent.min * 0.9), max: extent => Math.ceil(extent.max * 1.1) },
      yAxis: { ...axis(), type: "value", scale: true, name: "time / eager", nameTextStyle: { color: styled("--soft"), align: "left" } },
      series: network.lines.map(line => ({
        type: "line", name: line.name, color: styled(COLOUR[line.name] ?? "--colour-other"), symbolSize: 8,
        lineStyle: { width: line.name === "ours" ? 2.5 : 1.2, type: line.name === "ours" ? "solid" : "dashed" },
        data: line.points.map(([way, memory, time]) => [memory, time, way]),
      })),
    });
    const chart = drawing(document.getElementById(`chart-${network.name}`), redraw);
    redraw();
  }
});
