// The documentation of the service, drawn from its openapi.json.

import { get } from "./api.js";
import { control, element, named } from "./cards.js";

const LIMITS = { default: "default", minimum: "at least", maximum: "at most", minItems: "at least", maxItems: "at most" };

// Return a schema in a few words, such as "list of Match" or "number or null".
function typed(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typed).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${typed(schema.items ?? {})}`;
  return schema.format === "binary" ? "file" : schema.type ?? "any";
}

function described(schema, said) {
  const all = { ...(schema.anyOf ?? []).find((each) => each.type !== "null"), ...schema };
  const limits = Object.entries(LIMITS).filter(([name]) => (all[name] ?? "") !== "");
  return [said, ...limits.map(([name, word]) => `${word} ${JSON.stringify(all[name])}`)].filter(Boolean).join(", ");
}

// Return a table of [name, schema, whether it is required, description].
function table(caption, rows) {
  const lines = rows.map(([name, schema, required, said]) => {
    const type = element("td", "", element("code", "", typed(schema)), required ? "" : element("span", "soft", " optional"));
    return element("tr", "", control("th", { scope: "row" }, named("", name)), type, element("td", "", described(schema, said)));
  });
  return element("div", "scroll", element("table", "", element("caption", "", caption), element("tbody", "", ...lines)));
}

// Return a table for each form of a schema, or a line.
function tables(caption, schema) {
  const forms = (schema.anyOf ?? [schema]).filter((each) => each.properties);
  if (!forms.length) return [element("p", "soft", `${caption}: `, element("code", "", typed(schema)))];
  return forms.map(({ properties, required = [] }, at) => {
    const rows = Object.entries(properties).map(([name, each]) => [name, each, required.includes(name), each.description]);
    return table(at ? `or ${caption}` : caption, rows);
  });
}

function endpoint(path, method, { description, parameters = [], requestBody, responses }) {
  const title = element("h2", "", element("span", "method", method.toUpperCase()), " ", named("", path));
  const rows = parameters.map((each) => [each.name, each.schema ?? {}, each.required, `in the ${each.in}`]);
  const contents = Object.entries(requestBody?.content ?? {});
  const bodies = contents.flatMap(([type, { schema }]) => tables(`Body, ${type}`, schema ?? {}));
  const answer = Object.entries(responses[200]?.content ?? {}).map(([type, { schema }]) => `${type}: ${typed(schema ?? {})}`);
  const parts = [...(rows.length ? [table("Parameters", rows)] : []), ...bodies];
  const said = element("p", "soft", "Answer, ", element("code", "", answer.join(", ")));
  return element("section", "endpoint", title, element("p", "", description ?? ""), ...parts, said);
}

function draw({ info, paths, components }) {
  const operations = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map((each) => [path, ...each]));
  const errors = Object.entries(Object.assign({}, ...operations.map(([, , about]) => about.responses)));
  const failures = errors.filter(([code]) => code >= 400).map(([code, { description }]) => {
    return element("div", "", element("dt", "", code), element("dd", "", description));
  });
  const objects = Object.entries(components?.schemas ?? {}).flatMap(([name, each]) => tables(name, each));
  const text = "An error is a JSON object with a text, detail: the rule, the value and the remedy in a sentence.";
  document.querySelector("main").replaceChildren(
    element("header", "", element("h1", "", `${info.title} ${info.version}`), element("p", "soft", info.description ?? "")),
    ...operations.map((operation) => endpoint(...operation)),
    element("section", "endpoint", element("h2", "", "Objects"), ...objects),
    element("section", "endpoint", element("h2", "", "Errors"), element("p", "", text), element("dl", "", ...failures)),
  );
}

get("openapi.json").then(draw).catch((error) => {
  document.querySelector(".loading").textContent = error.message;
});
