// The page of training curves: for each network the losses of every run, and their distances from float64.
unpacked("data").then(networks => {
  const COLOUR = { "torch float64": "--ink", "torch float32": "--colour-other", onnxruntime: "--colour-0", program: "--colour-1" };
  const SAID = { onnxruntime: "ONNX Runtime" };
  const LEAST = 1e-9; // what a distance of nothing is drawn at
  const MEAN = 10; // steps

  const means = values => values.map((_, place) => {
    const part = values.slice(Math.max(0, place + 1 - MEAN), place + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });

  function line(name, values, how) {
    return { type: "line", symbol: "none", name: SAID[name] ?? name, color: styled(COLOUR[name] ?? "--colour-3"), ...how,
      data: values.map((value, place) => [place + 1, value]) };
  }

  function curves(id, steps, scale, series) {
    const redraw = () => {
      const lines = series();
      chart.setOption({
        animation: false,
        tooltip: { ...tooltip(), trigger: "axis", formatter: points => {
          const seen = new Map(points.filter(one => !one.seriesId.startsWith("thin")).map(one => [one.seriesName, one]));
          return card(`step ${points[0].axisValue}`, [...seen].map(([name, one]) => [name, one.value[1].toPrecision(3)]));
        } },
        legend: { type: "scroll", top: 0, pageTextStyle: { color: styled("--soft") }, textStyle: { color: styled("--ink") }, data: [...new Set(lines.map(one => one.name))] },
        grid: { left: 64, right: 20, top: 46, bottom: 84 },
        xAxis: { ...axis(), type: "value", min: 1, max: steps, name: "step", nameLocation: "middle" },
        yAxis: { ...axis(), scale: true, nameGap: 8, nameTextStyle: { color: styled("--soft"), align: "left" }, ...scale() },
        dataZoom: zoom({ xAxisIndex: 0 }, 4), series: lines,
      });
    };
    const chart = drawing(document.getElementById(id), redraw);
    redraw();
  }

  for (const network of networks) {
    const steps = network.allowed.length;
    curves(`chart-loss-${network.name}`, steps, () => ({ type: "value", name: "loss" }), () => [
      line("torch float64", network.losses[0].values, { id: "thin", lineStyle: { width: 1, opacity: 0.25 } }),
      ...network.losses.map(run => line(run.name, means(run.values), {
        id: run.name, lineStyle: { width: 1.8, type: run.name.startsWith("torch") ? "solid" : "dashed" },
      })),
    ]);
    curves(`chart-distance-${network.name}`, steps, () => ({
      type: "log", name: "distance from float64",
      axisLabel: { color: styled("--soft"), formatter: value => value.toExponential(0) },
    }), () => [
      ...network.distances.map((run, place) => {
        const thin = run.name === "torch float32";
        return line(run.name, run.values.map(value => Math.max(value, LEAST)), {
          id: thin && place ? `thin-${place}` : run.name, lineStyle: { width: thin ? 0.8 : 2 },
        });
      }),
      line("allowed", network.allowed, { id: "allowed", lineStyle: { width: 1.5, type: "dotted" } }),
    ]);
  }
});
