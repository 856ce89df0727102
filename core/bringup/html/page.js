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

if (navigator.clipboard) {
  for (const block of document.querySelectorAll("pre.command")) {
    const text = block.textContent, button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.onclick = () => navigator.clipboard.writeText(text).then(() => (button.textContent = "copied"));
    block.prepend(button);
  }
}
