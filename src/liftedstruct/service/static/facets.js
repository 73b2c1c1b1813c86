// Filters from the fields of the catalog, and their text, which is that of `--where`.

import { button, control, element, named } from "./cards.js";

const FEW = 8; // values of a field that are shown at once
const MOST = 24; // that a search shows
const LISTED = 50; // values that the service lists at most

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
const CLAUSE = /(?:^| and )([\p{L}_][\p{L}\p{N}_]*) (?:(>=|<=) (\S+)|(?:= |in \()((?:'(?:[^']|'')*'(?:, )?)+)\)?)/gu;
const TEXT = /'((?:[^']|'')*)'/g;

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
  const chosen = Object.create(null); // a name may be __proto__
  for (const [, name, sign, number, texts] of text.matchAll(CLAUSE)) {
    const field = (chosen[name] ??= {});
    if (sign) field[sign === ">=" ? "min" : "max"] = number;
    else field.values = new Set([...texts.matchAll(TEXT)].map((each) => each[1].replaceAll("''", "'")));
  }
  return compose(chosen) === text ? chosen : null;
}

export class Facets {
  // `onChange` is called with the text of the filter.
  constructor(fields, onChange) {
    Object.assign(this, { fields, onChange, chosen: {}, written: "" });
    const write = () => this.write(this.input.value.trim());
    const onkeydown = (event) => event.key === "Enter" && !event.shiftKey && (event.preventDefault(), write());
    const placeholder = "category = chair and price < 100";
    this.input = control("textarea", { id: "where", rows: 2, spellcheck: false, placeholder, onchange: write, onkeydown });
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
    this.input.ariaInvalid = Boolean(message);
  }

  draw(field) {
    const parts = field.kind === "number" ? ["min", "max"].map((end) => this.limit(end, field)) : this.chips(field);
    return element("fieldset", field.kind, element("legend", "", named("", field.name)), ...parts);
  }

  limit(end, { name, [end]: extreme }) {
    const onchange = (event) => this.change(name, { [end]: event.target.value });
    const label = `${name}, ${end === "min" ? "at least" : "at most"}`;
    const value = this.chosen[name]?.[end] ?? "";
    return control("input", { type: "number", step: "any", value, placeholder: extreme, label, onchange });
  }

  chips({ name, values }) {
    const texts = values.filter((value) => typeof value === "string");
    const chosen = new Set(this.chosen[name]?.values);
    const chip = (value) => {
      const onclick = () => {
        if (!chosen.delete(value)) chosen.add(value);
        made.ariaPressed = chosen.has(value);
        this.change(name, { values: chosen });
      };
      const made = button("chip", element("bdi", "", value || "(empty)"), onclick);
      return Object.assign(made, { ariaPressed: chosen.has(value), title: value });
    };
    const list = element("div", "chips");
    const draw = (typed) => {
      const found = texts.filter((value) => value.toLowerCase().includes(typed.toLowerCase())).slice(0, typed ? MOST : FEW);
      const unlisted = typed && values.length >= LISTED ? [typed] : [];
      list.replaceChildren(...[...new Set([...chosen, ...found, ...unlisted])].map(chip));
    };
    draw("");
    if (texts.length <= FEW) return [list];
    const search = { type: "search", placeholder: `Search ${texts.length} values`, label: `Search the values of ${name}` };
    return [control("input", { ...search, oninput: (event) => draw(event.target.value.trim()) }), list];
  }
}
