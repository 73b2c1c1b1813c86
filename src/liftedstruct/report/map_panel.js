// Panel next to the map: the selected image with its neighbors, and the class search. Names are untrusted and only set as
// text.

const SUGGESTIONS = 8;

export function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

// Return text that can break after underscores, slashes, dots and hyphens.
export function broken(text) {
  const parts = text.match(/[^_/.-]+[_/.-]*|[_/.-]+/g) ?? [];
  return parts.flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part]));
}

// Return a name in a bdi element, so that right-to-left text does not affect the text around it.
export function named(className, text) {
  return element("bdi", className, ...broken(text));
}

export function counted(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function nearness(distance) {
  return distance === 0 ? "0" : distance < 0.001 || distance >= 100000 ? distance.toExponential(2) : distance.toPrecision(4);
}

// Return the outcome of an image as a query, as a kind and a text.
function verdict(rank, k) {
  if (rank === 0) return ["alone", "the only image of its class"];
  if (rank === 1) return ["right", "nearest neighbor is right"];
  const where = rank > k ? `not among these ${k}` : "";
  return ["wrong", `nearest positive: rank ${rank.toLocaleString("en")}${where && `, ${where}`}`];
}

export class Panel {
  constructor(root, atlas) {
    Object.assign(this, { atlas, nothing: root.querySelector(".nothing"), chosen: root.querySelector(".chosen") });
  }

  clear() {
    this.nothing.hidden = false;
    this.chosen.hidden = true;
    this.chosen.replaceChildren();
  }

  mark(kind) {
    const sign = element("span", `mark ${kind}`, { right: "✓", wrong: "✗", rest: "–", alone: "○" }[kind]);
    sign.setAttribute("aria-hidden", "true");
    return sign;
  }

  picture(i, width) {
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    this.atlas.sheets.show(canvas, i, width);
    return canvas;
  }

  show(i) {
    const { atlas } = this;
    const { view } = atlas;
    const [kind, said] = verdict(view.ranks[i], view.k);
    const text = element("div", "text", named("class", atlas.className(i)), named("caption", atlas.captions[i]));
    text.append(element("p", `verdict ${kind}`, this.mark(kind), ` ${said}`));
    const list = element("ol");
    const distances = view.distancesOf(i);
    const kinds = atlas.kindsOf(i);
    view.neighborsOf(i).forEach((j, place) => {
      const button = element("button", kinds[place], this.picture(j, 56));
      button.type = "button";
      button.dataset.image = j;
      const words = { right: " right", wrong: " wrong", rest: " other class, after all of the query's class" };
      const said = element("span", "said", this.mark(kinds[place]), words[kinds[place]]);
      const distance = element("span", "distance", `distance ${nearness(distances[place])}`);
      const line = element("span", "line", said, distance);
      const caption = element("bdi", "caption", atlas.captions[j]); // on one line, unless selected
      caption.title = atlas.captions[j];
      button.append(element("span", "text", line, named("class", atlas.className(j)), caption));
      button.addEventListener("click", () => atlas.choose(j, { go: true, focus: true }));
      for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => atlas.point(j));
      for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => atlas.point(null));
      list.append(element("li", "", button));
    });
    const title = view.k ? `Its ${counted(view.k, "nearest neighbor", "nearest neighbors")}` : "No neighbors";
    const close = element("button", "close", "×");
    close.type = "button";
    close.setAttribute("aria-label", "Deselect the image");
    close.addEventListener("click", () => atlas.choose(null));
    this.chosen.replaceChildren(element("div", "query", this.picture(i, 112), text, close), element("h3", "", title), list);
    this.nothing.hidden = true;
    this.chosen.hidden = false;
  }

  // Return the content of the panel in one line, for screen readers.
  spoken(i) {
    const { atlas } = this;
    const { view } = atlas;
    const kinds = atlas.kindsOf(i);
    const [, said] = verdict(view.ranks[i], view.k);
    const right = kinds.filter((kind) => kind === "right").length;
    const of = `${right} of ${counted(kinds.filter((kind) => kind !== "rest").length, "neighbor", "neighbors")} right`;
    return `Selected: ${atlas.captions[i]}, class ${atlas.className(i)}; ${said}; ${of}.`;
  }
}

// Return a function that finds the classes whose name holds a text, those with a word that starts with it first.
export function classesOf(names, sizes) {
  const keys = names.map(Search.plain);
  return (text, show) => {
    const typed = Search.plain(text);
    const starts = [], inside = [];
    if (typed) {
      keys.forEach((key, number) => {
        const at = key.indexOf(typed);
        if (at >= 0) (at === 0 || key[at - 1] === " " ? starts : inside).push(number);
      });
    }
    const found = [...starts, ...inside];
    show(found.slice(0, SUGGESTIONS).map((number) => ({ number, name: names[number], count: sizes[number] })), found.length);
  };
}

// Search field that suggests classes, with keyboard and mouse. `find` passes the first classes and their total to a function.
export class Search {
  constructor(root, find, onChoose) {
    Object.assign(this, { find, onChoose, found: [], active: -1, chosen: null });
    this.input = root.querySelector(".search input");
    this.list = root.querySelector(".search ul");
    this.clearer = root.querySelector(".search .clear");
    this.list.id = `${root.id}-classes`;
    this.input.setAttribute("aria-controls", this.list.id);
    this.input.addEventListener("input", () => {
      this.clearer.hidden = !this.input.value;
      if (!this.input.value.trim()) this.choose(null);
      this.suggest();
    });
    this.input.addEventListener("focus", () => this.chosen === null && this.suggest());
    this.input.addEventListener("blur", () => this.close());
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus in the field
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[data-class]");
      if (option) this.choose(this.found[[...this.list.children].indexOf(option)]);
    });
    this.clearer.addEventListener("click", () => {
      this.choose(null);
      this.input.focus();
    });
  }

  static plain(text) {
    return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[\s_.\-/]+/g, " ").trim();
  }

  suggest() {
    const typed = this.input.value;
    this.find(typed, (found, total) => typed === this.input.value && this.offer(found, total));
  }

  offer(found, total) {
    const typed = Search.plain(this.input.value);
    this.found = found;
    const options = found.map(({ number, name, count }, place) => {
      const option = element("li", "", named("", name), element("span", "count", String(count)));
      option.setAttribute("role", "option");
      option.id = `${this.list.id}-${place}`;
      option.dataset.class = number;
      return option;
    });
    const more = total - options.length;
    const said = more > 0 ? `and ${counted(more, "class", "classes")} more` : "No matching class";
    if (more > 0 || (typed && !options.length)) {
      const line = element("li", "more", said);
      line.setAttribute("role", "presentation");
      options.push(line);
    }
    this.list.replaceChildren(...options);
    this.list.hidden = !options.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.point(this.found.length ? 0 : -1);
  }

  point(place) {
    this.active = place;
    for (const [at, option] of [...this.list.children].entries()) option.setAttribute("aria-selected", String(at === place));
    if (place < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", this.list.children[place].id);
    this.list.children[place]?.scrollIntoView({ block: "nearest" });
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  choose(option) {
    const [before, number] = [this.chosen, option?.number ?? null];
    this.chosen = number;
    if (option) this.input.value = option.name;
    else if (this.input.value.trim()) this.input.value = "";
    this.clearer.hidden = !this.input.value;
    this.close();
    if (number !== before || number !== null) this.onChoose(number, option?.name);
  }

  onKey(event) {
    const options = this.found.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (this.list.hidden) this.suggest();
      else if (options) this.point((this.active + (event.key === "ArrowDown" ? 1 : options - 1)) % options);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!this.list.hidden && this.active >= 0) this.choose(this.found[this.active]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (this.list.hidden) this.choose(null);
      else this.close();
    }
  }
}
