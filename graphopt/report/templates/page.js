"use strict";
// The page says everything without this: it adds sorting by column and a filter for rules and models.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th[scope]").forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      const text = row => row.cells[column].textContent.trim();
      const number = row => Number(row.cells[column].dataset.value ?? text(row).replace(/,/g, "") ?? 0);
      const numeric = head.classList.contains("num");
      const rows = [...body.rows].sort((a, b) => numeric ? number(a) - number(b) : text(b).localeCompare(text(a)));
      body.append(...(down ? rows.reverse() : rows));
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
const filter = document.querySelector(".filter");
if (filter) {
  filter.hidden = false;
  const { of, what } = filter.dataset;
  const items = [...document.querySelectorAll(of)];
  const texts = new Map(items.map(item => [item, item.textContent.toLowerCase()]));
  filter.querySelector("input").addEventListener("input", event => {
    const wanted = event.target.value.trim().toLowerCase();
    let shown = 0;
    for (const item of items) {
      item.hidden = !texts.get(item).includes(wanted);
      shown += item.hidden ? 0 : 1;
    }
    filter.querySelector("[role=status]").textContent = wanted ? `${shown} of ${items.length} ${what}` : "";
  });
}
