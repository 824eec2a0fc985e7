// The API as a page, from openapi.json.
const box = document.getElementById("paths");
const make = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });

function resolve(schema, all) {
  if (schema.$ref) return all[schema.$ref.split("/").pop()];
  return schema;
}

function kind(schema) {
  if (schema.anyOf) return schema.anyOf.map(kind).filter((name) => name !== "null").join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  return schema.type || "";
}

function bounds(schema) {
  const parts = (schema.anyOf || [schema]).flatMap((part) => [
    part.minimum !== undefined ? `from ${part.minimum}` : "", part.maximum !== undefined ? `to ${part.maximum}` : "",
    part.maxLength !== undefined ? `at most ${part.maxLength} characters` : ""]);
  return parts.filter(Boolean).join(" ");
}

const EXAMPLES = {
  "GET /api/search": "curl 'ADDRESS/api/search?q=red%20fruit&top=3'",
  "POST /api/search": "curl ADDRESS/api/search -H 'content-type: application/json' -d '{\"text\": \"red fruit\", \"top\": 3}'",
  "POST /api/file": "curl ADDRESS/api/file -H 'content-type: image/jpeg' --data-binary @photo.jpg",
  "GET /metrics": "curl ADDRESS/metrics",
};

// A form that sends a request with these parameters and shows the answer.
function tryOut(path, parameters) {
  const form = make("form", "", "tools");
  const inputs = parameters.map((one) => {
    const label = make("label", `${one.name} `);
    const input = make("input");
    input.name = one.name;
    label.append(input);
    form.append(label);
    return input;
  });
  form.append(make("button", "Try it"));
  const answer = make("pre", "", "answer");
  answer.tabIndex = 0;
  answer.hidden = true;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = new URLSearchParams(inputs.filter((one) => one.value).map((one) => [one.name, one.value]));
    const got = await fetch(`${path}?${values}`);
    const text = await got.text();
    answer.hidden = false;
    answer.textContent = `${got.status} ${got.statusText}\n${text.slice(0, 4000)}`;
  });
  const box = make("div");
  box.append(form, answer);
  return box;
}

const description = await (await fetch("/openapi.json")).json();
const schemas = description.components?.schemas || {};
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const section = make("section");
    section.append(make("h2", `${method.toUpperCase()} ${path}`), make("p", operation.summary || ""));
    const rows = (operation.parameters || []).map((one) => [one.name, one.schema, one.description, one.required]);
    const body = operation.requestBody?.content?.["application/json"]?.schema;
    if (body) {
      const schema = resolve(body, schemas);
      for (const [name, part] of Object.entries(schema.properties || {})) {
        rows.push([name, part, part.description, (schema.required || []).includes(name)]);
      }
    }
    const table = make("dl");
    for (const [name, schema, text, required] of rows) {
      const facts = [kind(schema), bounds(schema), required ? "required" : ""].filter(Boolean).join(", ");
      table.append(make("dt", name), make("dd", `${text || ""} ${facts ? `(${facts})` : ""}`));
    }
    section.append(table);
    const example = EXAMPLES[`${method.toUpperCase()} ${path}`];
    if (example) section.append(Object.assign(make("pre", example.replaceAll("ADDRESS", location.origin)), { tabIndex: 0 }));
    if (method === "get" && !path.startsWith("/media") && !path.startsWith("/preview") && path !== "/api/map") {
      section.append(tryOut(path, operation.parameters || []));
    }
    box.append(section);
  }
}
