// Filters from the fields of the catalog, and their text, which is that of `--where`.

import { button, control, element, named } from "./cards.js";

const FEW = 8; // values of a field that are shown at once
const MOST = 24; // that a search shows
const LISTED = 50; // values that the service lists at most

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
const CLAUSE = /(?:^|\s*and\s+)([\p{L}_][\p{L}\p{N}_]*) (in \(|=|>=|<=) ?/uy;
const VALUE = /'((?:[^']|'')*)'[,)]? ?|(-?[\d.]+(?:e[+-]?\d+)?)/iy;

// Return the text of {field: {values: Set, min, max}}, joined to a text that was written by hand.
function compose(chosen, written = "") {
  const parts = Object.entries(chosen).flatMap(([name, { values = [], min = "", max = "" }]) => {
    const texts = [...values].map(quoted);
    const equal = texts.length > 1 ? `${name} in (${texts.join(", ")})` : `${name} = ${texts[0]}`;
    return [texts.length ? equal : "", min === "" ? "" : `${name} >= ${min}`, max === "" ? "" : `${name} <= ${max}`];
  }).filter(Boolean);
  if (written) parts.unshift(parts.length ? `(${written})` : written);
  return parts.join(" and ");
}

// Return what `compose` was given, or null for another text.
function decompose(text) {
  const chosen = {};
  let at = 0;
  const next = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found;
  };
  for (let clause; at < text.length && (clause = next(CLAUSE)); ) {
    const field = (chosen[clause[1]] ??= {});
    for (let value; (value = next(VALUE)); ) {
      if (value[2]) field[clause[2] === ">=" ? "min" : "max"] = value[2];
      else (field.values ??= new Set()).add(value[1].replaceAll("''", "'"));
    }
  }
  return compose(chosen) === text ? chosen : null;
}

export class Facets {
  // `onChange` is called with the text of the filter.
  constructor(fields, onChange) {
    Object.assign(this, { fields, onChange, chosen: {}, written: "" });
    const write = () => this.write(this.input.value.trim());
    const keydown = (event) => event.key === "Enter" && !event.shiftKey && (event.preventDefault(), write());
    const placeholder = "category = chair and price < 100";
    this.input = control("textarea", { id: "where", rows: 2, spellcheck: false, placeholder, on: { change: write, keydown } });
    this.input.setAttribute("aria-describedby", "where-error");
    this.error = control("p", { id: "where-error", className: "error", hidden: true });
    this.list = element("div", "fields");
    this.clear = button("quiet", "Clear", () => this.write(""), "Clear the filter");
    const label = control("label", { htmlFor: "where" }, "Filter, as in ", element("code", "", "--where"));
    this.root = element("div", "facets", this.list, element("p", "where", label, this.clear), this.input, this.error);
    this.show("");
  }

  get text() {
    return compose(this.chosen, this.written);
  }

  write(text) {
    if (text === this.text) return;
    this.show(text);
    this.onChange(text);
  }

  // Show a filter without telling.
  show(text) {
    const chosen = decompose(text);
    Object.assign(this, chosen ? { chosen, written: "" } : { chosen: {}, written: text });
    this.list.replaceChildren(...this.fields.map((field) => this.draw(field)));
    this.input.value = text;
    this.clear.hidden = !text;
  }

  // Change what is chosen of a field.
  change(name, changed) {
    this.chosen = { ...this.chosen, [name]: { ...this.chosen[name], ...changed } };
    this.input.value = this.text;
    this.clear.hidden = !this.text;
    this.onChange(this.text);
  }

  fail(message) {
    this.error.hidden = !message;
    this.error.textContent = message;
    this.input.setAttribute("aria-invalid", String(Boolean(message)));
  }

  draw(field) {
    const parts = field.kind === "number" ? ["min", "max"].map((end) => this.limit(end, field)) : this.chips(field);
    return element("fieldset", field.kind, element("legend", "", named("", field.name)), ...parts);
  }

  limit(end, { name, [end]: extreme }) {
    const change = () => this.change(name, { [end]: input.value });
    const label = `${name}, ${end === "min" ? "at least" : "at most"}`;
    const value = this.chosen[name]?.[end] ?? "";
    const input = control("input", { type: "number", step: "any", value, placeholder: extreme, label, on: { change } });
    return input;
  }

  chips({ name, values }) {
    const texts = values.filter((value) => typeof value === "string");
    const chosen = new Set(this.chosen[name]?.values);
    const chip = (value) => {
      const made = button("chip", named("", value || "(empty)"), () => {
        if (!chosen.delete(value)) chosen.add(value);
        made.setAttribute("aria-pressed", chosen.has(value));
        this.change(name, { values: chosen });
      });
      made.setAttribute("aria-pressed", chosen.has(value));
      return made;
    };
    const list = element("div", "chips");
    const draw = (typed) => {
      const found = texts.filter((value) => value.toLowerCase().includes(typed.toLowerCase())).slice(0, typed ? MOST : FEW);
      const unlisted = typed && values.length >= LISTED ? [typed] : [];
      list.replaceChildren(...[...new Set([...chosen, ...found, ...unlisted])].map(chip));
    };
    draw("");
    const search = { type: "search", placeholder: `Search ${texts.length} values`, label: `Search the values of ${name}`, autocomplete: "off" };
    const input = control("input", { ...search, on: { input: () => draw(input.value.trim()) } });
    return texts.length > FEW ? [input, list] : [list];
  }
}
