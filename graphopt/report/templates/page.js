"use strict";
// The page says everything without this: it adds sorting by column and a filter for rules.
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
  const rules = [...document.querySelectorAll("#rewrites details.rule")];
  const texts = rules.map(rule => rule.textContent.toLowerCase());
  filter.querySelector("input").addEventListener("input", event => {
    const wanted = event.target.value.trim().toLowerCase();
    let shown = 0;
    rules.forEach((rule, place) => {
      rule.hidden = !texts[place].includes(wanted);
      shown += rule.hidden ? 0 : 1;
    });
    filter.querySelector("[role=status]").textContent = wanted ? `${shown} of ${rules.length} rules` : "";
  });
}
