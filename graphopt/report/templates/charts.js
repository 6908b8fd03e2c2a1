// For pages with charts: the data inside the page, words for figures, colours of the style sheet, tables of many rows.
// ECharts draws on a canvas and reads no style sheet, so colours are handed to it, again when light turns to dark.
const COLOURS = 8;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

async function unpacked(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Three digits, and a tie to the even one, as the terminal prints them.
const THREE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, roundingMode: "halfEven", useGrouping: false });
const digits = number => THREE.format(number);

function unitOf(bytes) {
  let unit = 0;
  while (unit + 1 < UNITS.length && bytes / 1024 ** unit >= 1023.5) unit += 1;
  return unit;
}

function binary(bytes) {
  const unit = unitOf(bytes), number = bytes / 1024 ** unit;
  return `${unit === 0 || number >= 999.5 ? Math.round(number) : digits(number)} ${UNITS[unit]}`;
}

function duration(nanoseconds) {
  let number = nanoseconds;
  for (const unit of ["ns", "us", "ms"]) {
    if (number < 999.5) return `${digits(number)} ${unit}`;
    number /= 1000;
  }
  return `${digits(number)} s`;
}

const percent = share => `${(100 * share).toFixed(1)}%`;
const counted = number => number.toLocaleString("en");
const styled = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => document.documentElement.clientWidth < 640;

function make(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// A card of lines for a tooltip or for what was chosen; names are text, whatever is in them.
function card(title, pairs) {
  const rows = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return make("div", { className: "detail" }, make("b", { textContent: title }),
    make("dl", {}, ...rows.flatMap(([label, value]) =>
      [make("dt", { textContent: label }), make("dd", { textContent: value })])));
}

function few(names, count) {
  const more = names.length > count ? ` and ${names.length - count} more` : "";
  return names.slice(0, count).join(", ") + more;
}

// The largest groups get the colours in turn, the rest one grey; `fixed` groups keep theirs.
function colouring(weights, fixed) {
  const names = [...weights.keys()].sort((a, b) => weights.get(b) - weights.get(a) || (a < b ? -1 : 1));
  const free = names.filter(name => !(name in fixed)).slice(0, COLOURS);
  const own = new Map(free.map((name, place) => [name, `--colour-${place}`]));
  for (const name of names) if (name in fixed) own.set(name, fixed[name]);
  return { names, named: names.filter(name => own.has(name)), of: name => own.get(name) ?? "--colour-other" };
}

const axis = () => ({
  axisLine: { lineStyle: { color: styled("--line") } }, axisLabel: { color: styled("--soft"), hideOverlap: true },
  splitLine: { lineStyle: { color: styled("--line") } }, nameTextStyle: { color: styled("--soft") }, nameGap: 26,
});

const tooltip = () => ({
  backgroundColor: styled("--paper"), borderColor: styled("--line"), textStyle: { color: styled("--ink"), fontSize: 13 },
  confine: true, extraCssText: "max-width: 340px; white-space: normal;",
});

const zoom = (axes, bottom) => [
  { type: "slider", ...axes, bottom, height: 18, filterMode: "none", brushSelect: false, showDataShadow: false,
    borderColor: styled("--line"), textStyle: { color: styled("--soft") }, labelFormatter: value => Math.round(value) },
  { type: "inside", ...axes, filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
];

const drawings = new Set();
function drawing(holder, redraw) {
  const chart = echarts.init(holder, null, { renderer: "canvas" });
  drawings.add({ chart, redraw });
  new ResizeObserver(() => chart.resize()).observe(holder);
  return chart;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawings.forEach(one => one.redraw()));

function column(title, field, how = {}) {
  return { title, field, headerTooltip: title, ...how };
}

function figures(title, field, words, how = {}) {
  return column(title, field, {
    sorter: "number", hozAlign: "right", headerHozAlign: "right", headerSortStartingDir: "desc",
    formatter: cell => make("span", { textContent: cell.getValue() === null ? "" : words(cell.getValue()) }), ...how,
  });
}

// The name of a row with the colour of its group; a button, so that keys reach it.
function naming(title, field, how = {}) {
  return column(title, field, {
    minWidth: 170, widthGrow: 3, formatter: cell => {
      const name = cell.getValue(), swatch = cell.getData().swatch;
      return make("span", { className: "named" }, make("i", { className: "swatch", style: `background: var(${swatch})` }),
        make("button", { type: "button", className: "pick", textContent: name, title: name }));
    }, ...how,
  });
}

// A table of any number of rows, of which those in sight are drawn; `chosen` says of a row's data whether it is marked.
// Left to itself the table makes its rows anew whenever it comes into sight, and a click on a row that goes is lost:
// here only another width makes them anew.
function listing(holder, columns, options, chosen, click) {
  let width = holder.clientWidth;
  const table = new Tabulator(holder, {
    autoResize: false, columns, data: [], index: "id", layout: "fitColumns", columnDefaults: { minWidth: 84, headerWordWrap: true }, placeholder: "no rows",
    rowFormatter: row => row.getElement().classList.toggle("chosen", chosen(row.getData())), ...options,
  });
  table.on("rowClick", (event, row) => click(row.getData()));
  const resized = new ResizeObserver(() => {
    if (holder.clientWidth !== width) table.redraw(true);
    width = holder.clientWidth;
  });
  return new Promise(ready => table.on("tableBuilt", () => {
    resized.observe(holder);
    ready(table);
  }));
}

function markAgain(table) {
  for (const row of table.getRows("visible")) row.reformat();
}
