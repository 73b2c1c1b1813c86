// Filters from the fields of the catalog, and their text, which is that of `--where`.

import { button, element, named } from "./cards.js";

const FEW = 8; // values of a field that are shown at once

// Return a value as it is written in a filter.
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
const CLAUSE = /\s*(?:^|and\s+)([\p{L}_][\p{L}\p{N}_]*)\s*(in\s*\(|=|>=|<=)\s*/uy;
const TEXT = /'((?:[^']|'')*)'\s*([,)]?)\s*/y;
const NUMBER = /(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*/iy;

// Return the text of {field: {values: Set} or {min, max}}.
export function compose(chosen, rest = "") {
  const parts = rest ? [rest] : [];
  for (const [name, { values = new Set(), min = "", max = "" }] of Object.entries(chosen)) {
    const texts = [...values].map(quoted);
    if (texts.length) parts.push(texts.length > 1 ? `${name} in (${texts.join(", ")})` : `${name} = ${texts[0]}`);
    if (min !== "") parts.push(`${name} >= ${min}`);
    if (max !== "") parts.push(`${name} <= ${max}`);
  }
  return (parts.length > 1 && rest ? [`(${rest})`, ...parts.slice(1)] : parts).join(" and ");
}

// Return what `compose` was given, or null for a text that it does not write.
export function decompose(text) {
  const chosen = {};
  const next = (pattern, at) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };
  for (let at = 0; at < text.length; ) {
    const clause = next(CLAUSE, at);
    if (!clause) return null;
    at = CLAUSE.lastIndex;
    const field = (chosen[clause[1]] ??= {});
    for (let value; (value = next(TEXT, at)); at = TEXT.lastIndex) (field.values ??= new Set()).add(value[1].replaceAll("''", "'"));
    const number = next(NUMBER, at);
    if (number) {
      field[clause[2] === ">=" ? "min" : "max"] = number[1];
      at = NUMBER.lastIndex;
    }
  }
  return compose(chosen) === text ? chosen : null;
}

export class Facets {
  // `onChange` is called with the text of the filter.
  constructor(fields, onChange) {
    Object.assign(this, { fields, onChange, chosen: {}, rest: "" });
    this.input = element("textarea");
    Object.assign(this.input, { rows: 2, spellcheck: false, placeholder: "category = chair and price < 100", id: "where" });
    this.input.setAttribute("aria-describedby", "where-error");
    this.input.addEventListener("change", () => this.write(this.input.value.trim()));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      this.write(this.input.value.trim());
    });
    this.error = element("p", "error");
    Object.assign(this.error, { id: "where-error", hidden: true });
    this.list = element("div", "fields");
    const label = element("label", "", "Filter, as the text of --where");
    label.htmlFor = "where";
    this.clear = button("quiet", "Clear", () => this.write(""));
    this.root = element("div", "facets", this.list, element("p", "where", label, this.clear), this.input, this.error);
    this.show("");
  }

  get text() {
    return compose(this.chosen, this.rest);
  }

  write(text) {
    if (text === this.text) return;
    this.show(text);
    this.onChange(text);
  }

  // Show a filter without telling.
  show(text) {
    if (text !== this.text) [this.chosen, this.rest] = decompose(text) ? [decompose(text), ""] : [{}, text];
    this.input.value = text;
    this.clear.hidden = !text;
    this.list.replaceChildren(...this.fields.map((field) => this.draw(field)));
  }

  fail(message) {
    this.error.hidden = !message;
    this.error.textContent = message ?? "";
    this.input.setAttribute("aria-invalid", String(Boolean(message)));
  }

  change(name, changed, focus) {
    this.chosen = { ...this.chosen, [name]: { ...this.chosen[name], ...changed } };
    const text = this.text;
    this.show(text);
    this.list.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus(); // the fields are drawn again
    this.onChange(text);
  }

  draw(field) {
    const made = element("fieldset", field.kind, element("legend", "", named("", field.name)));
    made.append(...(field.kind === "number" ? this.range(field) : this.chips(field)));
    return made;
  }

  range({ name, min, max }) {
    return ["min", "max"].map((end) => {
      const input = element("input");
      Object.assign(input, { type: "number", step: "any", value: this.chosen[name]?.[end] ?? "", placeholder: end === "min" ? min : max });
      input.dataset.key = `${name} ${end}`;
      input.setAttribute("aria-label", `${name}, ${end === "min" ? "at least" : "at most"}`);
      input.addEventListener("change", () => this.change(name, { [end]: input.value }, input.dataset.key));
      return input;
    });
  }

  chips({ name, values }) {
    const chosen = this.chosen[name]?.values ?? new Set();
    const list = element("div", "chips");
    const draw = (typed) => {
      const key = typed.toLowerCase();
      const found = values.filter((value) => chosen.has(value) || (typed ? value.toLowerCase().includes(key) : false));
      const shown = typed ? found : [...new Set([...found, ...values.slice(0, FEW)])];
      const own = typed && !values.includes(typed) ? [typed] : [];
      list.replaceChildren(...[...new Set([...chosen, ...shown, ...own])].slice(0, 3 * FEW + chosen.size).map((value) => {
        const chip = button("chip", "", () => {
          const after = new Set(chosen);
          if (!after.delete(value)) after.add(value);
          this.change(name, { values: after }, chip.dataset.key);
        });
        chip.append(named("", value || "(empty)"));
        chip.dataset.key = `${name} = ${value}`;
        chip.setAttribute("aria-pressed", String(chosen.has(value)));
        return chip;
      }));
    };
    draw("");
    if (values.length <= FEW) return [list];
    const search = element("input");
    Object.assign(search, { type: "search", placeholder: `Search ${name}`, autocomplete: "off" });
    search.setAttribute("aria-label", `Search the values of ${name}`);
    search.addEventListener("input", () => draw(search.value.trim()));
    return [search, list];
  }
}
