// The page of memory against depth: both arenas and the square root, on logarithmic axes.
unpacked("data").then(depths => {
  const MIB = 1 << 20;
  const line = (name, key, colour, how) => ({ type: "line", name, color: styled(colour), ...how,
    data: depths.map(one => [one.depth, one[key] / MIB]) });
  const redraw = () => chart.setOption({
    animation: false,
    tooltip: { ...tooltip(), trigger: "axis", formatter: points => card(`${points[0].axisValue} layers`,
      points.map(one => [one.seriesName, `${one.value[1].toFixed(1)} MiB`])) },
    legend: { top: 0, textStyle: { color: styled("--ink") } },
    grid: { left: 64, right: 20, top: 46, bottom: 48 },
    xAxis: { ...axis(), type: "log", min: depths[0].depth, max: depths[depths.length - 1].depth, name: "layers", nameLocation: "middle" },
    yAxis: { ...axis(), type: "log", name: "MiB", nameTextStyle: { color: styled("--soft") } },
    series: [
      line("without a budget", "alone", "--colour-1"),
      line("with a budget", "kept", "--colour-0"),
      line("square root of depth", "budget", "--ink", { symbol: "none", lineStyle: { type: "dotted" } }),
    ],
  });
  const chart = drawing(document.getElementById("chart-depth"), redraw);
  redraw();
});
