// Shows /openapi.json: each operation with its parameters, its answer's fields, and a form that calls it.

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function table(head, rows) {
  const made = document.createElement("table");
  for (const [cells, kind] of [[head, "th"], ...rows.map((row) => [row, "td"])]) {
    const line = document.createElement("tr");
    line.append(...cells.map((cell) => element(kind, cell)));
    made.append(line);
  }
  const scroll = element("div", "", "scroll");
  // What scrolls must be reachable by keyboard.
  for (const [name, value] of Object.entries({ role: "region", tabindex: "0", "aria-label": head.join(", ") })) scroll.setAttribute(name, value);
  scroll.append(made);
  return scroll;
}

// A schema's type in a few words: "number or null", "list of Step".
function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items || {})}`;
  if (schema.enum) return schema.enum.join(", ");
  const limits = [["minimum", "from"], ["maximum", "to"]].filter(([k]) => k in schema).map(([k, word]) => `${word} ${schema[k]}`);
  return [schema.const ?? schema.format ?? schema.type ?? "any", ...limits].join(" ");
}

function fieldsOf(schema, schemas, seen = new Set()) {
  const target = schema.items || schema;
  const name = target.$ref ? target.$ref.split("/").at(-1) : "";
  if (!name || seen.has(name)) return [];
  seen.add(name);
  const described = schemas[name];
  const own = Object.entries(described.properties || {}).map(([field, s]) => [`${name}.${field}`, typeOf(s), s.description || ""]);
  const inner = Object.values(described.properties || {}).flatMap((s) => fieldsOf(s, schemas, seen));
  return [...own, ...inner];
}

function tryOut(path, parameters) {
  const form = document.createElement("form");
  const inputs = parameters.map((parameter) => {
    const label = element("label", `${parameter.name} `);
    const input = document.createElement("input");
    input.name = parameter.name;
    input.required = Boolean(parameter.required);
    input.placeholder = { symbol: "BTC", timeframe: "1h" }[parameter.name] || String(parameter.schema.default ?? "");
    label.append(input);
    form.append(label);
    return [parameter, input];
  });
  const answer = element("pre");
  answer.hidden = true;
  form.append(element("button", "Call"));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    let url = path;
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    if ([...query].length) url += `?${query}`;
    answer.hidden = false;
    try {
      const got = await fetch(url);
      answer.textContent = `GET ${url}\n${got.status}\n${JSON.stringify(await got.json(), null, 2)}`;
    } catch (error) {
      answer.textContent = `GET ${url}\n${error.message}`;
    }
  };
  return [form, answer];
}

function operation(path, method, described, schemas) {
  const section = element("section", "", "card operation");
  const heading = document.createElement("h2");
  heading.append(element("code", `${method.toUpperCase()} ${path}`));
  section.append(heading, element("p", described.description || described.summary || ""));
  const parameters = described.parameters || [];
  if (parameters.length) {
    section.append(table(["parameter", "in", "type", "default", "meaning"], parameters.map((p) => [
      p.name, p.in, typeOf(p.schema), String(p.schema.default ?? (p.required ? "required" : "")), p.description || p.schema.description || ""])));
  }
  section.append(...tryOut(path, parameters));
  const details = document.createElement("details");
  details.append(element("summary", "The answer"));
  const schema = described.responses["200"].content["application/json"].schema;
  details.append(table(["field", "type", "meaning"], fieldsOf(schema, schemas)));
  const problems = Object.entries(described.responses).filter(([status]) => status !== "200");
  details.append(table(["status", "meaning"], problems.map(([status, p]) => [status, `${p.description}: one sentence in \`detail\``])));
  section.append(details);
  return section;
}

async function start() {
  try {
    const api = await (await fetch("/openapi.json")).json();
    const sections = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods)
      .map(([method, described]) => operation(path, method, described, api.components.schemas)));
    document.getElementById("operations").replaceChildren(element("p", api.info.description, "card"), ...sections);
  } catch (error) {
    document.getElementById("message").textContent = `The description cannot be loaded (${error.message}); is \`cpb serve\` still running?`;
  }
}

start();
