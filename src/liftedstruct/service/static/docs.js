// The documentation of the HTTP interface, drawn from openapi.json.

import { get } from "./api.js";
import { element, named } from "./cards.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

// Return what a $ref points to, or the schema itself.
function resolved(schema, whole) {
  if (!schema?.$ref) return schema ?? {};
  return schema.$ref.slice(2).split("/").reduce((at, name) => at[name], whole);
}

// Return a schema in one line, such as "list of Match" or "number or null".
function typed(schema, whole) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const several = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (several) return several.map((each) => typed(each, whole)).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typed(schema.items ?? {}, whole)}`;
  if (schema.format === "binary" || schema.contentMediaType) return "file";
  return schema.type === "object" ? schema.title ?? "object" : schema.type ?? "any";
}

function limits(schema) {
  const kept = (schema.anyOf ?? [schema]).find((each) => each.type !== "null") ?? {};
  const words = { default: "default", minimum: "at least", maximum: "at most", minItems: "at least", maxItems: "at most", maxLength: "characters, at most" };
  const all = { ...kept, ...schema };
  return Object.entries(words).filter(([name]) => all[name] !== undefined && all[name] !== null).map(([name, word]) => `${word} ${JSON.stringify(all[name])}`).join(", ");
}

// Return a table of [name, schema, required, description] rows.
function table(caption, rows, whole) {
  const cells = rows.map(([name, schema, required, said]) => {
    const type = element("td", "", element("code", "", typed(schema, whole)), required ? " required" : "");
    return element("tr", "", element("th", "", named("", name)), type, element("td", "", [said, limits(schema)].filter(Boolean).join(" · ")));
  });
  for (const cell of cells) cell.firstChild.scope = "row";
  return element("table", "", element("caption", "", caption), element("tbody", "", ...cells));
}

// Return the tables of a schema and of the schemas that it names.
function tables(caption, schema, whole, seen = new Set()) {
  const found = resolved(schema, whole);
  const inner = [...(found.anyOf ?? found.oneOf ?? found.allOf ?? []), found.items, ...Object.values(found.properties ?? {})].filter(Boolean);
  const rows = Object.entries(found.properties ?? {}).map(([name, each]) => [name, each, found.required?.includes(name), each.description]);
  const own = rows.length ? [table(caption, rows, whole)] : schema.$ref || inner.length ? [] : [element("p", "soft", `${caption}: ${typed(found, whole)}`)];
  for (const each of inner) {
    const name = each.$ref ?? each.items?.$ref;
    if (each.$ref && seen.has(name)) continue;
    if (name) seen.add(name);
    if (name || each.anyOf || each.items) own.push(...tables(name ? name.split("/").at(-1) : caption, each, whole, seen).filter((made) => made.tagName === "TABLE"));
  }
  return own;
}

function endpoint(path, method, about, whole) {
  const title = element("h2", "", element("span", `method ${method}`, method.toUpperCase()), " ", named("", path));
  const made = element("section", "endpoint", title, element("p", "", about.description ?? about.summary ?? ""));
  const rows = (about.parameters ?? []).map((each) => [`${each.name} (${each.in})`, each.schema ?? {}, each.required, each.description]);
  if (rows.length) made.append(table("Parameters", rows, whole));
  for (const [type, { schema }] of Object.entries(about.requestBody?.content ?? {})) made.append(...tables(`Body, ${type}`, schema ?? {}, whole));
  for (const [code, response] of Object.entries(about.responses ?? {})) {
    const [[type, content] = ["", {}]] = Object.entries(response.content ?? {});
    made.append(element("p", "status", element("b", "", code), ` ${response.description ?? ""}`, type ? element("span", "soft", ` ${type}`) : null));
    if (content.schema && code < 300) made.append(...tables("Answer", content.schema, whole));
  }
  return made;
}

try {
  const whole = await get("openapi.json");
  const head = element("header", "", element("h1", "", whole.info.title), element("p", "soft", whole.info.description ?? ""));
  const parts = Object.entries(whole.paths).flatMap(([path, each]) => METHODS.filter((method) => each[method]).map((method) => endpoint(path, method, each[method], whole)));
  document.querySelector("main").replaceChildren(head, ...parts);
} catch (error) {
  document.querySelector(".loading").textContent = error.message;
}
