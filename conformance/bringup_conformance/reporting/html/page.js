"use strict";
// Links to failures open them.
function reveal() {
  let at = location.hash && document.getElementById(location.hash.slice(1));
  if (!at) return;
  for (let each = at; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  at.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

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

if (navigator.clipboard) {
  for (const block of document.querySelectorAll("pre.command")) {
    const text = block.textContent, button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.onclick = () => navigator.clipboard.writeText(text).then(() => (button.textContent = "copied"));
    block.prepend(button);
  }
}
