"use strict";
// What a cell stands for, in a line that pointing, touching and the arrow keys all reach.
const facts = document.getElementById("cell-facts");
function show(cell) {
  facts.textContent = cell ? cell.title : "";
}
for (const table of document.querySelectorAll(".matrix")) {
  const rows = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td.cell")]);
  if (rows.length && rows[0].length) rows[0][0].tabIndex = 0;
  table.addEventListener("mouseover", (e) => show(e.target.closest("td.cell")));
  table.addEventListener("mouseleave", () => show(null));
  table.addEventListener("click", (e) => show(e.target.closest("td.cell")));
  table.addEventListener("focusin", (e) => show(e.target.closest("td.cell")));
  table.addEventListener("focusout", () => show(null));
  table.addEventListener("keydown", (e) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    const cell = e.target.closest("td.cell");
    if (!cell) return;
    if (e.key === "Enter" && cell.querySelector("a")) cell.querySelector("a").click();
    if (!step) return;
    const r = rows.findIndex((row) => row.includes(cell));
    const to = rows[r + step[0]]?.[rows[r].indexOf(cell) + step[1]];
    if (to) {
      cell.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    }
    e.preventDefault();
  });
}

// Rows of ops by name and dtype, and those that fail; tables without any row go too.
const matrices = document.querySelector(".matrices");
if (matrices) {
  const form = document.createElement("form");
  form.className = "filter";
  form.setAttribute("role", "search");
  form.innerHTML = '<label>Ops <input type="search" placeholder="name, or name and dtype: exp f16"></label>' +
    '<label><input type="checkbox"> only with failures</label><span aria-live="polite"></span>';
  const [text, failing] = form.querySelectorAll("input"), count = form.querySelector("span");
  const rows = [...matrices.querySelectorAll("tbody tr")];
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const told = [...row.querySelectorAll("td.cell:not(.absent)")].map((cell) => cell.title);
      const here = row.cells[0].textContent.toLowerCase();
      const named = (words[0] === undefined || here.includes(words[0])) &&
        words.slice(1).every((word) => told.some((each) => each.startsWith(`${here} ${word}`)));
      row.hidden = !named || (failing.checked && !row.querySelector(".cell.fail"));
      left += !row.hidden;
    }
    for (const each of matrices.children) each.hidden = !each.querySelector("tbody tr:not([hidden])");
    count.textContent = left === rows.length ? "" : `${left} of ${rows.length}`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (e) => e.preventDefault());
  matrices.before(form);
}

// n and p go to the next and the previous failure.
const failures = [...document.querySelectorAll("details.failure")];
let current = -1;
addEventListener("keydown", (e) => {
  const step = { n: 1, p: -1 }[e.key];
  if (!step || !failures.length || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input")) return;
  current = Math.min(Math.max(current + step, 0), failures.length - 1);
  location.hash = failures[current].id;
  failures[current].querySelector("summary").focus();
});
