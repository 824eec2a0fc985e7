// Small helpers that all scripts of the page share.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function toAddress(values) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) for (const one of [value].flat()) if (one) parts.append(name, one);
  const text = parts.toString();
  return text ? `?${text}` : location.pathname;
}

export const seconds = (time) => `${Math.floor(time / 60)}:${String(Math.floor(time % 60)).padStart(2, "0")}`;

export const fileName = (item) => item.media?.file?.split("/").pop() || "";

const DATA = { added: "search only (added later)", train: "learning and search", val: "checking and search", validate: "checking and search", test: "search only" };

export const splitName = (split) => DATA[split] || split;

// The class and the CSS variable with the colour of a modality.
export const shade = (info, modality) => `m${Object.keys(info.modalities).indexOf(modality) % 6}`;

// What the page calls a modality: the label of its items, or the short name if there are many.
export const called = (info, modality) => (Object.keys(info.modalities).length > 3 ? modality : info.modalities[modality].label);
