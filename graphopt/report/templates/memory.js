// The memory page: one state, and everything drawn from it. A click anywhere changes the state and draws again.
const KINDS = { activation: "--colour-0", output: "--colour-2", scratch: "--colour-1", input: "--colour-4", weight: "--colour-other" };
const DEPTHS = { outer: 2, middle: 4, module: Infinity };
const OTHERS = "others";
const SIDES = ["left", "right"];

unpacked("data").then(async data => {
  const at = id => document.getElementById(id);
  const text = number => data.strings[number];
  const rowsOf = (columns, more) => columns.name.map((_, place) => ({
    id: place, name: text(columns.name[place]), bytes: columns.bytes[place], kind: text(columns.kind[place]),
    type: text(columns.dtype[place]), shape: text(columns.shape[place]), module: text(columns.module[place]),
    source: text(columns.source[place]), users: columns.users[place].map(text), ...more(columns, place),
  }));
  const given = rowsOf(data.given, (columns, place) => ({
    padded: columns.bytes[place], offset: null, begin: null, end: null, producer: "", operator: "given", holds: [],
    id: -1 - place,
  }));
  const results = data.results.map(result => ({
    ...result,
    rows: rowsOf(result.buffers, (columns, place) => {
      const producer = text(columns.producer[place]), opened = producer.lastIndexOf("(");
      return {
        padded: columns.padded[place], offset: columns.offset[place], begin: columns.begin[place],
        end: columns.end[place], producer, holds: columns.holds[place].map(text),
        operator: opened < 0 ? producer : producer.slice(opened + 1, -1),
      };
    }),
    given: result.given ? given : [],
  }));
  const state = {
    shown: [0, -1], step: [results[0].peak_step, 0], side: 0, by: "operator", group: null, buffer: null, scope: "live",
    given: false,
  };

  const groupOf = row => {
    if (state.by === "kind") return row.kind;
    if (state.by === "operator") return row.operator;
    if (state.by === "type") return row.type || "no tensor";
    if (state.by === "source") return row.source || "not told";
    return row.module.split(".").slice(0, DEPTHS[state.by]).join(".") || "not told";
  };
  const outside = side => (state.given ? results[state.shown[side]].given : []);
  const rowsAt = side => [...results[state.shown[side]].rows, ...outside(side)];
  const isLive = (row, step) => row.begin === null || (row.begin <= step && step < row.end);
  const lastStep = side => Math.max(results[state.shown[side]].steps.live.length - 1, 0);
  const sides = () => (state.shown[1] < 0 ? [0] : [0, 1]);
  const isMeant = row => (state.group === null || groupOf(row) === state.group);

  function groups() {
    const weights = new Map();
    for (const side of sides()) {
      for (const row of rowsAt(side)) {
        const steps = row.begin === null ? results[state.shown[side]].steps.live.length : row.end - row.begin;
        weights.set(groupOf(row), (weights.get(groupOf(row)) ?? 0) + row.padded * steps);
      }
    }
    return colouring(weights, state.by === "kind" ? KINDS : {});
  }

  // -- charts -------------------------------------------------------------------------------------------------------

  function stacks(side, colours) {
    const result = results[state.shown[side]], count = result.steps.live.length;
    const named = [...colours.named, ...(colours.names.length > colours.named.length ? [OTHERS] : [])];
    const place = new Map(named.map((name, number) => [name, number]));
    const changes = named.map(() => new Float64Array(count + 1));
    for (const row of rowsAt(side)) {
      const change = changes[place.get(groupOf(row)) ?? named.length - 1];
      change[row.begin ?? 0] += row.padded;
      change[Math.min(row.end ?? count, count)] -= row.padded;
    }
    return named.map((name, number) => {
      let live = 0;
      const values = Array.from(changes[number].subarray(0, count), change => (live += change));
      return { name, values: [...values, values[count - 1] ?? 0] };
    });
  }

  function stepCard(side, step) {
    const result = results[state.shown[side]], known = result.steps;
    return card(`step ${step}: ${text(known.operator[step])}`, [
      ["operator", text(known.type[step]) + (known.again[step] ? ", computed again" : "")],
      ["live", `${binary(known.live[step])} in the arena`], ["estimated", duration(known.time[step])],
    ]);
  }

  function bufferCard(row) {
    return card(row.name, [
      ["kind", row.kind], ["type", `${row.type} ${row.shape}`.trim()],
      ["bytes", row.padded === row.bytes ? binary(row.bytes) : `${binary(row.bytes)}, ${counted(row.padded)} B with padding`],
      ["offset", row.offset === null ? "the caller's, outside the arena" : counted(row.offset)],
      ["steps", row.begin === null ? "all" : row.end === row.begin + 1 ? `${row.begin}` : `${row.begin} to ${row.end - 1}`],
      ["made by", row.producer], ["module", row.module], ["source", row.source],
      ["used by", few(row.users, 6)], ["also holds", few(row.holds, 6)],
    ]);
  }

  function draw(side) {
    const chart = charts[side], result = results[state.shown[side]], colours = groups();
    const count = result.steps.live.length, layers = stacks(side, colours);
    const top = Math.max(...sides().map(one => {
      const other = results[state.shown[one]];
      return Math.max(other.arena, other.budget ?? 0) + outside(one).reduce((sum, row) => sum + row.padded, 0);
    }));
    const unit = unitOf(top), scale = 1024 ** unit;
    const arenaTop = Math.max(...sides().map(one => results[state.shown[one]].arena));
    const arenaUnit = unitOf(arenaTop), arenaScale = 1024 ** arenaUnit;
    const shades = result.rows.map(row => styled(colours.of(groupOf(row))));
    const ink = styled("--ink"), soft = styled("--soft"), bad = styled("--bad");
    const line = (value, name, colour) => ({
      yAxis: value / scale, label: { formatter: name, color: colour, position: "insideEndTop" },
      lineStyle: { color: colour, type: "dashed" },
    });
    const step = state.step[side], hasChosen = result.rows.some(row => row.name === state.buffer);
    const here = { silent: true, itemStyle: { color: ink, opacity: 0.16 }, data: [[{ xAxis: step }, { xAxis: step + 1 }]] };
    const mark = { xAxis: step + 0.5, label: { show: false }, lineStyle: { color: ink, type: "solid", width: 1, opacity: 0.6 } };
    const left = 54, right = 16, wide = !narrow();
    chart.setOption({
      animation: false, textStyle: { fontFamily: "inherit" }, tooltip: { ...tooltip(), trigger: "item" },
      grid: [
        { left, right, top: 26, height: wide ? 210 : 170 },
        { left, right, top: wide ? 290 : 250, height: wide ? 260 : 200 },
      ],
      xAxis: [0, 1].map(grid => ({
        ...axis(), type: "value", min: 0, max: count, gridIndex: grid, minInterval: 1, splitLine: { show: false },
        name: grid ? "step" : "", nameLocation: "middle",
      })),
      yAxis: [
        { ...axis(), type: "value", min: 0, max: (1.04 * top) / scale, gridIndex: 0, name: UNITS[unit], nameGap: 8 },
        { ...axis(), type: "value", min: 0, max: arenaTop / arenaScale, gridIndex: 1, name: `offset, ${UNITS[arenaUnit]}`, nameGap: 8,
          nameTextStyle: { color: soft, align: "left", padding: [0, 0, 0, -40] } },
      ].map(one => ({ ...one, axisLabel: { ...one.axisLabel, showMaxLabel: false } })),
      dataZoom: zoom({ xAxisIndex: [0, 1] }, 4),
      series: [
        ...layers.map(layer => ({
          type: "line", name: layer.name, stack: "live", silent: true, step: "end", symbol: "none", lineStyle: { width: 0 },
          areaStyle: {
            color: styled(layer.name === OTHERS ? "--colour-other" : colours.of(layer.name)),
            opacity: state.group === null || state.group === layer.name ? 0.9 : 0.2,
          },
          data: layer.values.map((value, number) => [number, value / scale]), emphasis: { disabled: true },
        })),
        ...result.rows.filter(row => row.name === state.buffer).map(row => ({
          type: "line", name: "chosen", silent: true, symbol: "none", lineStyle: { color: ink, width: 2 }, data: [
            [row.begin, 0], [row.begin, row.padded / scale], [row.end, row.padded / scale], [row.end, 0],
          ],
        })),
        {
          // Nothing is seen of it: it tells over which step the pointer is; a line would tell the nearest point.
          type: "custom", name: "steps", clip: true, encode: { x: 0, y: 1 }, data: result.steps.live.map((_, number) => [number, 0]),
          tooltip: { formatter: seen => stepCard(side, seen.dataIndex) },
          renderItem: (params, api) => {
            const box = params.coordSys, [x] = api.coord([api.value(0), 0]), [end] = api.coord([api.value(0) + 1, 0]);
            return { type: "rect", shape: { x, y: box.y, width: end - x, height: box.height }, style: { fill: "transparent" } };
          },
        },
        { type: "line", name: "lines", data: [], silent: true, markArea: here, markLine: {
          symbol: "none", silent: true, data: [
            mark, line(result.arena, `arena ${binary(result.arena)}`, soft),
            ...(result.budget === null ? [] : [line(result.budget, `budget ${binary(result.budget)}`, bad)]),
          ],
        } },
        {
          type: "custom", name: "arena", xAxisIndex: 1, yAxisIndex: 1, clip: true, markArea: here,
          markLine: { symbol: "none", silent: true, data: [mark] },
          encode: { x: [0, 1], y: [2, 3] }, progressive: 4000,
          data: result.rows.map(row => [row.begin, row.end, row.offset / arenaScale, (row.offset + row.padded) / arenaScale]),
          tooltip: { formatter: seen => bufferCard(result.rows[seen.dataIndex]) },
          renderItem: (params, api) => {
            const row = result.rows[params.dataIndex], low = api.coord([api.value(0), api.value(2)]);
            const high = api.coord([api.value(1), api.value(3)]), isChosen = row.name === state.buffer;
            const faint = hasChosen ? !isChosen : !isMeant(row);
            return {
              type: "rect", z2: isChosen ? 10 : 1,
              shape: { x: low[0], y: high[1], width: Math.max(high[0] - low[0], 0.5), height: Math.max(low[1] - high[1], 0.5) },
              style: { fill: shades[params.dataIndex], opacity: faint ? 0.25 : 0.95,
                stroke: isChosen ? ink : styled("--paper"), lineWidth: isChosen ? 2 : 0.5 },
            };
          },
        },
      ],
    }, { replaceMerge: ["series"] });
  }

  // -- what is beside the charts ------------------------------------------------------------------------------------

  function drawGroups() {
    const colours = groups(), found = new Map(colours.names.map(name => [name, [0, 0, 0]]));
    const whole = [0, 0];
    for (const side of sides()) {
      for (const row of rowsAt(side).filter(row => isLive(row, state.step[side]))) {
        found.get(groupOf(row))[side] += row.padded;
        found.get(groupOf(row))[2] += side === 0 ? 1 : 0;
        whole[side] += row.padded;
      }
    }
    const filled = groupTable.replaceData([...found].map(([name, [left, right, count]]) => ({
      id: name, name, swatch: colours.of(name), left, right, count, share: whole[0] ? left / whole[0] : 0,
    })));
    const both = sides().length > 1;
    groupTable[both ? "showColumn" : "hideColumn"]("right");
    at("live-whole").textContent = sides().map(side =>
      `${both ? `${SIDES[side]}: ` : ""}${binary(whole[side])} at step ${state.step[side]}`).join("; ") + ".";
    return filled;
  }

  function drawBuffers() {
    const side = state.side, step = state.step[side], colours = groups();
    const rows = rowsAt(side).filter(row => isMeant(row) && (state.scope === "all" || isLive(row, step)));
    const filled = bufferTable.setData(rows.map(row => ({ ...row, swatch: colours.of(groupOf(row)), members: [row.name, ...row.holds].join(" ") })));
    const where = state.scope === "all" ? "needed at any step" : `live at step ${step}`;
    const kept = state.group === null ? "" : ` of ${state.group}`;
    at("buffers-said").textContent = `${counted(rows.length)} buffers${kept} ${where}${sides().length > 1 ? `, ${SIDES[side]} plan` : ""}`;
    at("sides").hidden = sides().length < 2;
    at("group-clear").hidden = state.group === null;
    return filled;
  }

  function drawChosen() {
    const holder = at("chosen");
    holder.replaceChildren();
    for (const side of sides()) {
      const row = state.buffer === null ? undefined : rowsAt(side).find(row => row.name === state.buffer);
      if (row) holder.append(bufferCard(row));
    }
    holder.hidden = !holder.childElementCount;
    if (!holder.hidden) {
      const clear = make("button", { type: "button", className: "tool", textContent: "Unmark" });
      clear.addEventListener("click", () => change({ buffer: null }));
      holder.append(clear);
    }
  }

  function drawFigures() {
    for (const side of [0, 1]) {
      const holder = at(`side-${SIDES[side]}`);
      holder.hidden = state.shown[side] < 0;
      if (!holder.hidden) at(`name-${SIDES[side]}`).textContent = results[state.shown[side]].name;
    }
    document.querySelector(".plans").classList.toggle("two", sides().length > 1);
    at("comparison").hidden = sides().length < 2;
    if (sides().length < 2) return;
    const [one, other] = sides().map(side => results[state.shown[side]]);
    const more = (change, words) => (change === 0 ? "the same" : `${change < 0 ? "−" : "+"}${words(Math.abs(change))}`);
    const sized = (label, field) => [label, binary(one[field]), binary(other[field]), more(other[field] - one[field], binary)];
    const rows = [
      sized("peak", "peak"), sized("arena", "arena"), sized("lower bound", "lower_bound"),
      sized("fragmentation", "fragmentation"),
      ["steps", counted(one.steps.live.length), counted(other.steps.live.length),
        more(other.steps.live.length - one.steps.live.length, counted)],
      ["extra time (estimated)", ...[one, other].map(plan => `${plan.extra.toFixed(1)}%`),
        more(other.extra - one.extra, number => `${number.toFixed(1)}%`)],
    ];
    at("comparison").querySelector("tbody").replaceChildren(...rows.map(([label, ...cells]) =>
      make("tr", {}, make("th", { scope: "row", textContent: label }),
        ...cells.map(cell => make("td", { className: "num", textContent: cell })))));
  }

  async function change(news) {
    const before = { ...state };
    Object.assign(state, news);
    const onlyMarked = "buffer" in news && (news.side ?? before.side) === before.side && Object.keys(news).every(key => ["buffer", "side"].includes(key));
    drawFigures();
    for (const side of sides()) {
      charts[side].resize();
      draw(side);
    }
    at("step").value = state.step[state.side];
    at("step").max = lastStep(state.side);
    for (const button of at("sides").querySelectorAll("button")) button.setAttribute("aria-pressed", `${SIDES[state.side] === button.value}`);
    drawChosen();
    if (!onlyMarked) {
      await Promise.all([drawGroups(), drawBuffers()]);
    }
    markAgain(groupTable);
    markAgain(bufferTable);
    const row = state.buffer !== null && state.buffer !== before.buffer &&
      bufferTable.getRows("active").find(row => row.getData().name === state.buffer);
    if (row && !bufferTable.getRows("visible").includes(row)) bufferTable.scrollToRow(row, "center", false).catch(() => {});
    document.documentElement.dataset.drawn = `${Number(document.documentElement.dataset.drawn ?? 0) + 1}`;
  }

  const show = (side, number) => {
    const shown = [...state.shown], step = [...state.step];
    shown[side] = number;
    if (number >= 0) step[side] = results[number].peak_step;
    at(side ? "beside" : "plan").value = `${number}`;
    return change({ shown, step, side: number < 0 ? 0 : state.side });
  };
  const goTo = (side, step) => change({ side, scope: "live", step: state.step.map((old, one) => (one === side ? step : old)) })
    .then(() => (at("scope").value = state.scope));
  const choose = (side, row) => change({ side: row.begin === null ? state.side : side, buffer: row.name === state.buffer ? null : row.name });
  // A rectangle may be one that the table does not list now: then the table goes to the step of the click.
  const point = (side, row, step) => {
    const listed = isMeant(row) && (state.scope === "all" || isLive(row, state.step[side]));
    if (listed || row.name === state.buffer) return choose(side, row);
    const moved = state.step.map((old, one) => (one === side ? Math.min(Math.max(step, row.begin), row.end - 1) : old));
    return change({ side, buffer: row.name, step: moved, group: isMeant(row) ? state.group : null });
  };

  // -- building -----------------------------------------------------------------------------------------------------

  at("live-at-peak").remove();
  const told = field => results.some(result => result.rows.some(row => row[field] !== ""));
  const groupTable = await listing(at("groups"), [
    naming("group", "name"), figures("live bytes", "left", binary), figures("right plan", "right", binary, { visible: false }),
    figures("share", "share", percent), figures("buffers", "count", counted),
  ], { initialSort: [{ column: "left", dir: "desc" }], maxHeight: 300 }, row => row.name === state.group,
  row => change({ group: row.name === state.group ? null : row.name }));
  const bufferTable = await listing(at("list"), [
    naming("buffer", "name", { frozen: !narrow() }), figures("bytes", "bytes", binary),
    figures("padded, B", "padded", counted, { headerTooltip: "bytes in the arena, with padding" }),
    column("kind", "kind"), column("shape", "shape", { minWidth: 120 }), figures("from", "begin", counted, { headerTooltip: "first step in which it is needed" }),
    figures("to", "end", number => counted(number - 1), { headerTooltip: "last step in which it is needed" }), figures("offset", "offset", counted),
    column("made by", "producer", { minWidth: 150, widthGrow: 2 }),
    ...(told("module") ? [column("module", "module", { minWidth: 150, widthGrow: 2 })] : []),
    ...(told("source") ? [column("source line", "source", { minWidth: 150, widthGrow: 2 })] : []),
  ], { initialSort: [{ column: "padded", dir: "desc" }], maxHeight: 420 }, row => row.name === state.buffer,
  row => choose(state.side, row));

  const charts = SIDES.map((name, side) => {
    const chart = drawing(at(`chart-${name}`), () => sides().includes(side) && change({}));
    chart.on("click", { seriesName: "arena" }, seen => {
      const step = Math.floor(chart.convertFromPixel({ gridIndex: 1 }, [seen.event.offsetX, seen.event.offsetY])[0]);
      point(side, results[state.shown[side]].rows[seen.dataIndex], step);
    });
    chart.getZr().on("click", event => {
      const place = [event.offsetX, event.offsetY], grid = [0, 1].find(one => chart.containPixel({ gridIndex: one }, place));
      if (grid === undefined || (grid === 1 && event.target)) return;
      const step = Math.floor(chart.convertFromPixel({ gridIndex: grid }, place)[0]);
      goTo(side, Math.min(Math.max(step, 0), lastStep(side)));
    });
    return chart;
  });

  const option = (value, words) => make("option", { value, textContent: words });
  at("plan").append(...results.map((result, number) => option(`${number}`, result.name)));
  at("beside").append(option("-1", "nothing"), ...results.map((result, number) => option(`${number}`, result.name)));
  at("by").append(option("operator", "operator"), option("kind", "kind"), option("type", "data type"),
    ...(told("module") ? [option("module", "module"), option("middle", "module, 4 levels"), option("outer", "module, 2 levels")] : []),
    ...(told("source") ? [option("source", "source line")] : []));
  at("plan").addEventListener("change", event => show(0, Number(event.target.value)));
  at("beside").addEventListener("change", event => show(1, Number(event.target.value)));
  at("by").addEventListener("change", event => change({ by: event.target.value, group: null }));
  at("given").addEventListener("change", event => change({ given: event.target.checked, group: null }));
  at("scope").addEventListener("change", event => change({ scope: event.target.value }));
  at("step").addEventListener("change", event => {
    goTo(state.side, Math.min(Math.max(Math.round(Number(event.target.value)) || 0, 0), lastStep(state.side)));
  });
  at("to-peak").addEventListener("click", () => goTo(state.side, results[state.shown[state.side]].peak_step));
  at("whole").addEventListener("click", () => charts.forEach(chart => chart.dispatchAction({ type: "dataZoom", start: 0, end: 100 })));
  at("group-clear").addEventListener("click", () => change({ group: null }));
  at("sides").addEventListener("click", event => event.target.value && change({ side: SIDES.indexOf(event.target.value) }));
  at("search").addEventListener("input", event => {
    const wanted = event.target.value.trim().toLowerCase();
    if (!wanted) return bufferTable.clearFilter();
    return bufferTable.setFilter(row => [row.members, row.kind, row.producer, row.module, row.source, row.type, row.shape]
      .some(words => words.toLowerCase().includes(wanted)));
  });
  for (const row of document.querySelectorAll("[data-plan]")) {
    const number = results.findIndex(result => result.name === row.dataset.plan);
    if (number >= 0) row.querySelector("button").addEventListener("click", () => show(1, number).then(() => at("plans").scrollIntoView()));
  }

  if (data.curve.length > 1) {
    curveChart(at("chart-curve"), data.curve, point => {
      const number = results.findIndex(result => result.name === point.plan);
      if (number >= 0) show(1, number).then(() => at("plans").scrollIntoView());
    });
  }
  if (data.tiers.length) tierChart(at("chart-tiers"), data.tiers);
  await change({});
});
