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

// A form that hides what does not match: by words, and by classes that something in it has.
// choices: of each class the words of its choice.  matches: whether an item has all words.
function filtered(place, items, hint, choices, matches, hidden) {
  const form = document.createElement("form");
  form.className = "filter";
  form.setAttribute("role", "search");
  const there = Object.entries(choices).filter(([look]) => items.some((item) => item.querySelector(look)));
  const options = there.map(([look, words]) => `<option value="${look}">${words}</option>`).join("");
  form.innerHTML = `<label>Filter <input type="search" placeholder="${hint}"></label>` +
    (options && `<label>Show <select><option value="">all</option>${options}</select></label>`) +
    '<span aria-live="polite"></span>';
  const text = form.querySelector("input"), choice = form.querySelector("select"), count = form.querySelector("span");
  form.addEventListener("input", () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const item of items) {
      item.hidden = !matches(item, words) || Boolean(choice?.value && !item.querySelector(choice.value));
      left += !item.hidden;
    }
    hidden();
    count.textContent = left === items.length ? "" : `${left} of ${items.length}`;
  });
  form.addEventListener("submit", (e) => e.preventDefault());
  place.before(form);
}

// Rows of ops by name and dtype; tables without any row go too.
const matrices = document.querySelector(".matrices");
if (matrices) {
  const looks = { ".cell.fail": "with failures", ".cell.no": "in part not declared",
    ".cell.none": "in part left out", ".cell.changed": "not as before" };
  const matches = (row, words) => {
    const told = [...row.querySelectorAll("td.cell:not(.absent)")].map((cell) => cell.title);
    const here = row.cells[0].textContent.toLowerCase();
    return (words[0] === undefined || here.includes(words[0])) &&
      words.slice(1).every((word) => told.some((each) => each.startsWith(`${here} ${word}`)));
  };
  const hidden = () => {
    for (const each of matrices.children) each.hidden = !each.querySelector("tbody tr:not([hidden])");
  };
  filtered(matrices, [...matrices.querySelectorAll("tbody tr")], "exp f16", looks, matches, hidden);
}

// Failures by any of their words; headings of causes without any failure go too.
const blocks = [...document.querySelectorAll("details.failure, .rest > ul > li")];
if (blocks.length > 1) {
  const causes = [...document.querySelectorAll("#failures > h3")];
  const hidden = () => {
    for (const cause of causes) {
      const of = [];
      for (let each = cause.nextElementSibling; each && each.tagName !== "H3"; each = each.nextElementSibling) {
        of.push(...blocks.filter((block) => each.contains(block)));
      }
      cause.hidden = of.every((block) => block.hidden);
    }
    for (const rest of document.querySelectorAll(".rest")) {
      rest.hidden = blocks.every((block) => !rest.contains(block) || block.hidden);
    }
  };
  const matches = (block, words) => words.every((word) => block.textContent.toLowerCase().includes(word));
  filtered(document.querySelector("#failures > h3"), blocks, "sort f32 hang", {}, matches, hidden);
}

// n and p go to the next and the previous failure.
const failures = [...document.querySelectorAll("details.failure")];
let current = -1;
addEventListener("keydown", (e) => {
  const step = { n: 1, p: -1 }[e.key];
  if (!step || !failures.length || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, select")) return;
  current = Math.min(Math.max(current + step, 0), failures.length - 1);
  location.hash = failures[current].id;
  failures[current].querySelector("summary").focus();
});
