// Charts of the memory page that do not depend on what was chosen: memory against time, and tiers.
function curveChart(holder, curve, click) {
  const unit = unitOf(curve.at(-1).arena);
  const redraw = () => chart.setOption({
    animation: false,
    tooltip: {
      ...tooltip(), trigger: "item", formatter: seen => {
        const point = curve[seen.dataIndex];
        return card(binary(point.arena), [["extra time", `${point.extra.toFixed(1)}%`],
          ["operators again", counted(point.recomputed)], ["regions in tiles", counted(point.tiled)]]);
      },
    },
    grid: { left: 54, right: 24, top: 26, bottom: 40 },
    xAxis: { ...axis(), type: "value", scale: true, name: `arena, ${UNITS[unit]}`, nameLocation: "middle" },
    yAxis: {
      ...axis(), type: "value", name: "extra time, %", nameGap: 10,
      nameTextStyle: { color: styled("--soft"), align: "left", padding: [0, 0, 0, -40] },
    },
    series: [{
      type: "line", step: "end", symbol: "circle", symbolSize: 12, color: styled("--colour-0"),
      data: curve.map(point => [point.arena / 1024 ** unit, point.extra]),
    }],
  });
  const chart = drawing(holder, redraw);
  chart.on("click", seen => click(curve[seen.dataIndex]));
  redraw();
}

function tierChart(holder, tiers) {
  const unit = unitOf(Math.max(...tiers.flatMap(tier => tier.occupancy)));
  const redraw = () => chart.setOption({
    animation: false, tooltip: { ...tooltip(), trigger: "axis" },
    color: tiers.map((_, place) => styled(`--colour-${place % COLOURS}`)),
    legend: { top: 0, selectedMode: false, textStyle: { color: styled("--ink") } }, grid: { left: 54, right: 16, top: 50, bottom: 70 },
    xAxis: {
      ...axis(), type: "value", min: 0, max: tiers[0].occupancy.length, name: "step", nameLocation: "middle",
      splitLine: { show: false },
    },
    yAxis: { ...axis(), type: "value", name: UNITS[unit], nameGap: 8 }, dataZoom: zoom({ xAxisIndex: 0 }, 4),
    series: tiers.map(tier => ({
      type: "line", step: "end", symbol: "none", lineStyle: { width: 1.5 },
      name: `${tier.name} (of ${binary(tier.capacity)})`,
      data: tier.occupancy.map((held, number) => [number, Number((held / 1024 ** unit).toPrecision(4))]),
    })),
  });
  const chart = drawing(holder, redraw);
  redraw();
}
