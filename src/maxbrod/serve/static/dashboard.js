// Small comforts; every page works without them.
"use strict";

const copied = (button) => async () => {
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
};

for (const button of document.querySelectorAll("button.copy")) {
  // Browsers have a clipboard only for pages that came safely.
  if (navigator.clipboard) {
    button.hidden = false;
    button.addEventListener("click", copied(button));
  }
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  const field = document.querySelector("[data-search]");
  if (event.key === "/" && !typing && field && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    field.focus();
    field.select();
  }
});

// Parts that tell the present are fetched again, unless somebody is using them.
for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
      if (fresh) part.replaceChildren(...fresh.childNodes);
    } catch {
      // The dashboard is away; the page stays as it was, and says of when it is.
    }
  }, Number(part.dataset.live) * 1000);
}
