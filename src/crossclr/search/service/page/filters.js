// Filters: one control for each filter that is of use for this collection. `where` is a list of texts such as "year=2010..2015".
import { byId, make, splitName } from "/elements.js";

const FEW = 60; // values of a list; more are typed
const DAY = 86400000, FIRST_DAY = 719163; // 1970-01-01 in the days that the server counts
const NAMES = { split: "data", group: "groups" };

function given(where, name) {
  const found = where.find((one) => one.startsWith(`${name}=`));
  return found ? found.slice(name.length + 1) : "";
}

function edges(value) {
  const [low, high] = value.split("..");
  return [low, high === undefined ? low : high];
}

function choice(about, change) {
  const { name, values } = about, all = `all ${NAMES[name] || `(${name})`}`, shown = (value) => (name === "split" ? splitName(value) : value);
  if (values.length <= FEW) {
    return make("select", { id: `filter-${name}`, "aria-label": name === "split" ? "used for" : name, onchange: (event) => change(name, event.target.value) },
      make("option", { value: "" }, all), ...values.map((value) => make("option", { value }, shown(value))));
  }
  const list = make("datalist", { id: `values-${name}` }, ...values.map((value) => make("option", { value })));
  const box = make("input", { id: `filter-${name}`, list: list.id, placeholder: all, "aria-label": name, autocomplete: "off", onchange: () => change(name, box.value.trim()) });
  return make("span", {}, box, list);
}

// Two boxes: from and to.
function range({ name, kind, low, high }, change) {
  const boxes = [["from", low], ["to", high]].map(([word, value]) => make("input", {
    type: kind, step: "any", placeholder: kind === "number" ? value : null, min: low, max: high, "aria-label": `${name} ${word}`,
    onchange: () => { const [first, last] = boxes.map((box) => box.value); change(name, first || last ? `${first}..${last}` : ""); },
  }));
  return make("span", { id: `filter-${name}`, class: "range", role: "group", "aria-label": name },
    make("span", {}, name === "duration" ? "seconds" : name), boxes[0], "–", boxes[1]);
}

export function makeFilters(filters, change) {
  byId("filter-row").replaceChildren(...filters.map((about) => (about.kind === "choice" ? choice : range)(about, change)));
  byId("form").classList.toggle("many", filters.length > 2);
  byId("form").classList.toggle("no-filters", !filters.length);
}

export function showFilters(filters, where) {
  for (const { name, kind } of filters) {
    const control = byId(`filter-${name}`), value = given(where, name);
    if (kind === "choice") control.value = value;
    else control.querySelectorAll("input").forEach((box, place) => { box.value = value ? edges(value)[place] : ""; });
  }
}

// Which points of the map pass: a test of their place in the columns.
export function passes(filters, columns, where) {
  const number = (kind, text) => (kind === "date" ? Date.parse(text) / DAY + FIRST_DAY : Number(text));
  const tests = filters.filter(({ name }) => given(where, name)).map(({ name, kind, values }) => {
    const value = given(where, name), column = columns[name];
    if (kind === "choice") return (index) => column[index] === values.indexOf(value);
    const [low, high] = edges(value);
    const first = low ? number(kind, low) : -Infinity, last = high ? number(kind, high) : Infinity;
    return (index) => column[index] !== null && column[index] >= first && column[index] <= last;
  });
  return (index) => tests.every((test) => test(index));
}
