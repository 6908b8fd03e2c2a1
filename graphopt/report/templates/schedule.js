// The schedule page: bars of workers over time, operators, regions and the program; a click marks a region everywhere.
const SHOWN_TEXT = 60000; // letters of the program that are shown at once

unpacked("data").then(async data => {
  const at = id => document.getElementById(id);
  const { spans, places } = data;
  const text = number => data.strings[number];
  const regions = data.regions.name.map((name, id) => ({
    id, name: text(name), operator: text(data.regions.operator[id]), blocks: data.regions.blocks[id],
    time: data.regions.time[id], start: data.regions.start[id], end: data.regions.end[id],
    share: data.regions.time[id] / data.whole,
  }));
  const operators = new Map();
  for (const region of regions) operators.set(region.operator, (operators.get(region.operator) ?? 0) + region.time);
  const colours = colouring(operators, {});
  const state = { region: null, operator: null, span: null };
  const placeName = ([multiprocessor, worker]) => (data.gpu ? `multiprocessor ${multiprocessor}, worker ${worker}` : `worker ${worker}`);
  const rowName = ([multiprocessor, worker]) => (data.gpu ? `mp ${multiprocessor}` : `worker ${worker}`);
  const unit = data.makespan < 1e6 ? ["us", 1e3] : data.makespan < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  for (const region of regions) region.swatch = colours.of(region.operator);

  function regionCard(region, span) {
    const here = span === null ? [] : [
      ["here", `${counted(spans.blocks[span])} blocks in ${duration(spans.time[span])}, from ${duration(spans.start[span])} on`],
      ["where", placeName(places[spans.row[span]])],
    ];
    return card(region.name, [["operator", region.operator], ...here, ["in all", `${counted(region.blocks)} blocks, ${duration(region.time)}`],
      ["first to last", `${duration(region.start)} to ${duration(region.end)}`]]);
  }

  // -- charts -------------------------------------------------------------------------------------------------------

  const rowHeight = Math.max(4, Math.min(22, 1000 / places.length));
  at("chart-gantt").style.height = `${Math.round(rowHeight * places.length + 130)}px`;
  const bars = spans.row.map((row, span) => [spans.start[span] / unit[1], (spans.start[span] + spans.time[span]) / unit[1], row]);

  function draw() {
    const shades = regions.map(region => styled(region.swatch)), ink = styled("--ink");
    gantt.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item" }, grid: { left: 74, right: 36, top: 8, bottom: 78 },
      xAxis: { ...axis(), type: "value", min: 0, max: data.makespan / unit[1], name: unit[0], nameLocation: "middle",
        axisLabel: { color: styled("--soft"), hideOverlap: true, showMaxLabel: false } },
      yAxis: { ...axis(), type: "category", data: places.map(rowName), axisTick: { show: false }, splitLine: { show: false } },
      dataZoom: [
        ...zoom({ xAxisIndex: 0 }, 6).map(one => ({ ...one, labelFormatter: value => `${digits(value)} ${unit[0]}` })),
        ...(places.length > 8 ? [{ type: "slider", yAxisIndex: 0, right: 6, width: 16, filterMode: "none", brushSelect: false,
          showDataShadow: false, borderColor: styled("--line"), showDetail: false }] : []),
      ],
      series: [{
        type: "custom", name: "runs", clip: true, encode: { x: [0, 1], y: 2 }, data: bars, progressive: 4000,
        tooltip: { formatter: seen => regionCard(regions[spans.region[seen.dataIndex]], seen.dataIndex) },
        renderItem: (params, api) => {
          const region = spans.region[params.dataIndex], [x, y] = api.coord([api.value(0), api.value(2)]);
          const end = api.coord([api.value(1), api.value(2)])[0], height = api.size([0, 1])[1];
          const isChosen = state.region === region;
          const faint = state.region !== null ? !isChosen : state.operator !== null && regions[region].operator !== state.operator;
          return {
            type: "rect", z2: isChosen ? 10 : 1,
            shape: { x, y: y - 0.45 * height, width: Math.max(end - x, 0.4), height: 0.9 * height },
            style: { fill: shades[region], opacity: faint ? 0.18 : 0.95, stroke: isChosen && height > 6 ? ink : null, lineWidth: 1 },
          };
        },
      }],
    }, { replaceMerge: ["series"] });
  }

  function drawUtilisation() {
    utilisation.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item", formatter: seen =>
        card(`${data.gpu ? "multiprocessor" : "worker"} ${seen.dataIndex}`, [["busy", percent(data.utilisation[seen.dataIndex])]]) },
      grid: { left: 54, right: 16, top: 16, bottom: 44 },
      xAxis: { ...axis(), type: "category", data: data.utilisation.map((_, place) => `${place}`), name: data.gpu ? "multiprocessor" : "worker", nameLocation: "middle" },
      yAxis: { ...axis(), type: "value", min: 0, max: 100, axisLabel: { color: styled("--soft"), formatter: "{value}%" } },
      series: [{ type: "bar", barMaxWidth: 60, color: styled("--part-0"), data: data.utilisation.map(share => 100 * share) }],
    });
  }

  // -- one state, drawn everywhere ----------------------------------------------------------------------------------

  function change(news) {
    const before = { ...state };
    Object.assign(state, news);
    draw();
    const holder = at("chosen");
    holder.replaceChildren();
    holder.hidden = state.region === null;
    if (state.region !== null) {
      const clear = make("button", { type: "button", className: "tool", textContent: "Unmark" });
      clear.addEventListener("click", () => change({ region: null, span: null }));
      holder.append(regionCard(regions[state.region], state.span), clear);
    }
    at("group-clear").hidden = state.operator === null;
    if (state.operator !== before.operator) filter();
    markAgain(groupTable);
    markAgain(regionTable);
    if (state.region !== null && state.region !== before.region) {
      const row = regionTable.getRows("active").find(row => row.getData().id === state.region);
      if (row && !regionTable.getRows("visible").includes(row)) regionTable.scrollToRow(row, "center", false).catch(() => {});
    }
    document.documentElement.dataset.drawn = `${Number(document.documentElement.dataset.drawn ?? 0) + 1}`;
  }

  function filter() {
    const wanted = at("search").value.trim().toLowerCase();
    regionTable.setFilter(region => (state.operator === null || region.operator === state.operator) &&
      [region.name, region.operator].some(words => words.toLowerCase().includes(wanted)));
    at("regions-said").textContent = `${counted(regionTable.getDataCount("active"))} of ${counted(regions.length)} regions`;
  }

  const groupTable = await listing(at("groups"), [
    naming("operator", "name"), figures("time of all blocks", "time", duration), figures("share", "share", percent),
    figures("regions", "regions", counted), figures("blocks", "blocks", counted),
  ], { initialSort: [{ column: "time", dir: "desc" }], maxHeight: 300 }, row => row.name === state.operator,
  row => change({ operator: row.name === state.operator ? null : row.name }));
  const regionTable = await listing(at("list"), [
    naming("region", "name"), column("operator", "operator", { minWidth: 110 }), figures("blocks", "blocks", counted),
    figures("time", "time", duration), figures("share", "share", percent), figures("start", "start", duration), figures("end", "end", duration),
  ], { initialSort: [{ column: "start", dir: "asc" }], maxHeight: 380 }, row => row.id === state.region,
  row => change({ region: row.id === state.region ? null : row.id, span: null }));
  await groupTable.setData(colours.names.map(name => {
    const own = regions.filter(region => region.operator === name);
    return { id: name, name, swatch: colours.of(name), time: operators.get(name), share: operators.get(name) / data.whole,
      regions: own.length, blocks: own.reduce((sum, region) => sum + region.blocks, 0) };
  }));
  await regionTable.setData(regions);

  const gantt = drawing(at("chart-gantt"), () => draw());
  gantt.on("click", { seriesName: "runs" }, seen => {
    const region = spans.region[seen.dataIndex];
    change(state.span === seen.dataIndex ? { region: null, span: null } : { region, span: seen.dataIndex });
  });
  const utilisation = drawing(at("chart-utilisation"), () => drawUtilisation());
  utilisation.on("click", seen => {
    const rows = places.map(([multiprocessor], row) => (multiprocessor === seen.dataIndex ? row : -1)).filter(row => row >= 0);
    if (places.length > 8 && rows.length) {
      gantt.dispatchAction({ type: "dataZoom", dataZoomIndex: 2, startValue: rows[0], endValue: rows.at(-1) });
    }
    at("gantt").scrollIntoView();
  });
  const everything = () => [0, 1, 2].forEach(number => gantt.dispatchAction({ type: "dataZoom", dataZoomIndex: number, start: 0, end: 100 }));
  at("whole").addEventListener("click", everything);
  at("group-clear").addEventListener("click", () => change({ operator: null }));
  at("search").addEventListener("input", filter);

  const lines = data.program.split("\n");
  function drawProgram() {
    const wanted = at("program-search").value.trim().toLowerCase();
    const found = lines.filter(line => line.toLowerCase().includes(wanted)), whole = found.join("\n");
    at("program-lines").textContent = whole.slice(0, SHOWN_TEXT);
    at("program-said").textContent = `${counted(found.length)} of ${counted(lines.length)} lines` +
      (whole.length > SHOWN_TEXT ? `; the first ${counted(SHOWN_TEXT)} letters of ${counted(whole.length)} are shown, the file that is saved has all` : "");
  }
  at("program-search").addEventListener("input", drawProgram);
  at("program-save").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([data.program], { type: "text/plain" }));
    make("a", { href: address, download: "program.txt" }).click();
    URL.revokeObjectURL(address);
  });
  drawProgram();
  filter();
  drawUtilisation();
  change({});
});
