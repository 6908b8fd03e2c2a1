// The profile page: blocks of workers over time, operators, steps; a click marks a step everywhere.
unpacked("data").then(async data => {
  const at = id => document.getElementById(id);
  const { spans } = data;
  const text = number => data.strings[number];
  const total = data.steps.work.reduce((sum, time) => sum + time, 0);
  const steps = data.steps.name.map((name, id) => ({
    id, name: text(name), operator: text(data.steps.operator[id]), kernel: text(data.steps.kernel[id]),
    candidate: text(data.steps.candidate[id]), blocks: data.steps.blocks[id], wall: data.steps.wall[id],
    work: data.steps.work[id], waited: data.steps.waited[id], rate: data.steps.rate[id], share: data.steps.share[id],
    constants: data.steps.constants[id],
  }));
  const operators = new Map();
  for (const step of steps) operators.set(step.operator, (operators.get(step.operator) ?? 0) + step.work);
  const colours = colouring(operators, {});
  const state = { step: null, operator: null, span: null };
  const unit = data.wall < 1e6 ? ["us", 1e3] : data.wall < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  for (const step of steps) step.swatch = colours.of(step.operator);

  function stepCard(step, span) {
    const here = span === null ? [] : [
      ["here", `block ${spans.block[span]} in ${duration(spans.time[span])}, from ${duration(spans.start[span])} on`],
      ["where", `worker ${spans.row[span]}`],
    ];
    return card(step.name, [["kernel", step.kernel], ["tiles", step.candidate], ...here,
      ["in all", `${counted(step.blocks)} blocks, ${duration(step.work)} of work in ${duration(step.wall)}`],
      ["rate", `${digits(step.rate)} Gflop/s, ${percent(step.share)} of the peak`], ["constants", binary(step.constants)]]);
  }

  const rowHeight = Math.max(8, Math.min(44, 1000 / data.workers));
  at("chart-gantt").style.height = `${Math.round(rowHeight * data.workers + 130)}px`;
  const bars = spans.row.map((row, span) => [spans.start[span] / unit[1], (spans.start[span] + spans.time[span]) / unit[1], row]);

  function draw() {
    const shades = steps.map(step => styled(step.swatch)), ink = styled("--ink");
    gantt.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item" }, grid: { left: 74, right: 36, top: 8, bottom: 78 },
      xAxis: { ...axis(), type: "value", min: 0, max: data.wall / unit[1], name: unit[0], nameLocation: "middle",
        axisLabel: { color: styled("--soft"), hideOverlap: true, showMaxLabel: false } },
      yAxis: { ...axis(), type: "category", data: [...Array(data.workers).keys()].map(row => `worker ${row}`),
        axisTick: { show: false }, splitLine: { show: false } },
      dataZoom: zoom({ xAxisIndex: 0 }, 6).map(one => ({ ...one, labelFormatter: value => `${digits(value)} ${unit[0]}` })),
      series: [{
        type: "custom", name: "blocks", clip: true, encode: { x: [0, 1], y: 2 }, data: bars, progressive: 4000,
        tooltip: { formatter: seen => stepCard(steps[spans.step[seen.dataIndex]], seen.dataIndex) },
        renderItem: (params, api) => {
          const step = spans.step[params.dataIndex], [x, y] = api.coord([api.value(0), api.value(2)]);
          const end = api.coord([api.value(1), api.value(2)])[0], height = api.size([0, 1])[1];
          const isChosen = state.step === step;
          const faint = state.step !== null ? !isChosen : state.operator !== null && steps[step].operator !== state.operator;
          return {
            type: "rect", z2: isChosen ? 10 : 1,
            shape: { x, y: y - 0.45 * height, width: Math.max(end - x, 0.4), height: 0.9 * height },
            style: { fill: shades[step], opacity: faint ? 0.18 : 0.95, stroke: isChosen && height > 6 ? ink : null, lineWidth: 1 },
          };
        },
      }],
    }, { replaceMerge: ["series"] });
  }

  function change(news) {
    const before = { ...state };
    Object.assign(state, news);
    draw();
    const holder = at("chosen");
    holder.replaceChildren();
    holder.hidden = state.step === null;
    if (state.step !== null) {
      const clear = make("button", { type: "button", className: "tool", textContent: "Unmark" });
      clear.addEventListener("click", () => change({ step: null, span: null }));
      holder.append(stepCard(steps[state.step], state.span), clear);
    }
    at("group-clear").hidden = state.operator === null;
    if (state.operator !== before.operator) filter();
    markAgain(groupTable);
    markAgain(stepTable);
    if (state.step !== null && state.step !== before.step) {
      const row = stepTable.getRows("active").find(row => row.getData().id === state.step);
      if (row && !stepTable.getRows("visible").includes(row)) stepTable.scrollToRow(row, "center", false).catch(() => {});
    }
    document.documentElement.dataset.drawn = `${Number(document.documentElement.dataset.drawn ?? 0) + 1}`;
  }

  function filter() {
    const wanted = at("search").value.trim().toLowerCase();
    stepTable.setFilter(step => (state.operator === null || step.operator === state.operator) &&
      [step.name, step.kernel, step.candidate].some(words => words.toLowerCase().includes(wanted)));
    at("steps-said").textContent = `${counted(stepTable.getDataCount("active"))} of ${counted(steps.length)} steps`;
  }

  const groupTable = await listing(at("groups"), [
    naming("operator", "name"), figures("work", "work", duration), figures("share", "share", percent),
    figures("steps", "steps", counted), figures("blocks", "blocks", counted),
  ], { initialSort: [{ column: "work", dir: "desc" }], maxHeight: 300 }, row => row.name === state.operator,
  row => change({ operator: row.name === state.operator ? null : row.name }));
  const stepTable = await listing(at("list"), [
    naming("nodes", "name"), column("kernel", "kernel", { minWidth: 130 }), column("tiles", "candidate", { minWidth: 170 }),
    figures("blocks", "blocks", counted), figures("wall", "wall", duration), figures("work", "work", duration),
    figures("Gflop/s", "rate", digits), figures("of peak", "share", percent), figures("constants", "constants", binary),
    figures("waited", "waited", duration),
  ], { initialSort: [{ column: "work", dir: "desc" }], maxHeight: 460 }, row => row.id === state.step,
  row => change({ step: row.id === state.step ? null : row.id, span: null }));
  await groupTable.setData(colours.names.map(name => {
    const own = steps.filter(step => step.operator === name);
    return { id: name, name, swatch: colours.of(name), work: operators.get(name), share: total ? operators.get(name) / total : 0,
      steps: own.length, blocks: own.reduce((sum, step) => sum + step.blocks, 0) };
  }));
  await stepTable.setData(steps);

  const gantt = drawing(at("chart-gantt"), () => draw());
  gantt.on("click", { seriesName: "blocks" }, seen => {
    const step = spans.step[seen.dataIndex];
    change(state.span === seen.dataIndex ? { step: null, span: null } : { step, span: seen.dataIndex });
  });
  at("whole").addEventListener("click", () => [0, 1].forEach(number => gantt.dispatchAction({ type: "dataZoom", dataZoomIndex: number, start: 0, end: 100 })));
  at("group-clear").addEventListener("click", () => change({ operator: null }));
  at("search").addEventListener("input", filter);
  filter();
  change({});
});
