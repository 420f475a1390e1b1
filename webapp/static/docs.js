// Shows /openapi.json: each operation with its parameters, its answer's fields, and a form that calls it.

import { answered, get, messageOf } from "./api.js";
import { h, marked, sentence } from "./dom.js";
import { table } from "./table.js";

// A table of texts, each row in the order of the headings.
function listed(caption, headings, rows) {
  const columns = headings.map((label, i) => ({ key: label, label, text: true, cell: (row) => row[i] || "–" }));
  return table({ caption, columns, rows, cards: true });
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
  const answer = h("pre", { hidden: true });
  let turn = 0;
  const inputs = parameters.map((parameter) => [parameter, h("input", { name: parameter.name, required: Boolean(parameter.required),
    placeholder: { symbol: "BTC", timeframe: "1h" }[parameter.name] || String(parameter.schema.default ?? "") })]);
  const call = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    let url = path;
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    if (query.size) url += `?${query}`;
    const mine = (turn += 1);
    answer.hidden = false;
    answer.textContent = `GET ${url}\nLoading …`;
    const told = await answered(url).then(({ status, body }) => `${status}\n${JSON.stringify(body, null, 2)}`, (error) => messageOf(error).replaceAll("`", ""));
    if (mine === turn) answer.textContent = `GET ${url}\n${told}`; // not of a call before
  };
  return [h("form", { onsubmit: call }, inputs.map(([{ name }, input]) => h("label", {}, `${name} `, input)), h("button", {}, "Call")), answer];
}

function operation(path, method, described, schemas) {
  const parameters = described.parameters || [];
  const schema = described.responses["200"].content["application/json"].schema;
  const problems = Object.entries(described.responses).filter(([status]) => status !== "200");
  return h("section", { class: "card operation" }, h("h2", {}, h("code", {}, `${method.toUpperCase()} ${path}`)),
    h("p", {}, marked(described.description || described.summary || "")),
    parameters.length > 0 && listed("Parameters", ["parameter", "in", "type", "default", "meaning"], parameters.map((p) => [
      p.name, p.in, typeOf(p.schema), String(p.schema.default ?? (p.required ? "required" : "")), p.description || p.schema.description || ""])),
    tryOut(path, parameters),
    h("details", {}, h("summary", {}, "The answer"), listed("Fields", ["field", "type", "meaning"], fieldsOf(schema, schemas)),
      listed("Errors", ["status", "meaning"], problems.map(([status, p]) => [status, marked(`${p.description}: one sentence in \`detail\``)]))));
}

async function start() {
  try {
    const api = await get("/openapi.json");
    const sections = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods)
      .map(([method, described]) => operation(path, method, described, api.components.schemas)));
    document.getElementById("operations").replaceChildren(h("p", { class: "card" }, api.info.description), ...sections);
  } catch (error) {
    document.getElementById("message").replaceChildren(...sentence(messageOf(error)));
  }
}

start();
