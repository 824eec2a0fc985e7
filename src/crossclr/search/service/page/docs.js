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
    box.append(section);
  }
}
