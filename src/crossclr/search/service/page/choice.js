// Results that a person has selected, and what can be done with them: copy their paths or captions, or keep them as a table.
import { byId, make } from "/elements.js";

const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;

export class Choice {
  constructor() { this.items = new Map(); this.folder = ""; }

  has(id) { return this.items.has(id); }

  toggle(item, chosen) {
    if (chosen) this.items.set(item.id, item); else this.items.delete(item.id);
    this.show();
  }

  path(item) { return [this.folder, item.media?.file || item.id].filter(Boolean).join("/"); }

  async copy(lines, button) {
    try {
      await navigator.clipboard.writeText(lines.join("\n"));
      button.textContent = "Copied";
    } catch { button.textContent = "The browser refused"; }
  }

  show() {
    const items = [...this.items.values()];
    const act = (label, lines) => make("button", { type: "button", onclick: (event) => this.copy(items.map(lines), event.currentTarget) }, label);
    const table = ["path,caption", ...items.map((item) => `${quoted(this.path(item))},${quoted(item.text)}`)].join("\n");
    byId("choice").hidden = !items.length;
    byId("choice").replaceChildren(
      make("span", {}, `${items.length} selected`), act("Copy paths", (item) => this.path(item)), act("Copy captions", (item) => item.text),
      make("a", { class: "button", download: "results.csv", href: `data:text/csv;charset=utf-8,${encodeURIComponent(table)}` }, "Save as CSV"),
      make("button", { type: "button", onclick: () => this.clear() }, "Clear"));
  }

  clear() {
    this.items.clear();
    for (const box of document.querySelectorAll(".chosen")) box.checked = false;
    this.show();
  }
}
