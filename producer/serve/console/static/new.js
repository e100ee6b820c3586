// Columns of the page of a new job: a click writes one into the prompt. Without scripts they are text to copy.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const columns of document.querySelectorAll("[data-into]")) {
    const target = document.getElementById(columns.dataset.into);
    for (const code of columns.querySelectorAll("code")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "chip";
      button.append(code.cloneNode(true));
      button.addEventListener("click", () => {
        target.setRangeText(code.textContent, target.selectionStart, target.selectionEnd, "end");
        target.focus();
      });
      code.replaceWith(button);
    }
  }
});
