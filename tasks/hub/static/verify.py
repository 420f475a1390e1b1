"""Checks the record in this folder: `python verify.py [HASH ...]`; a HASH noted earlier must be in its chain."""
import gzip, hashlib, json, re, struct, sys  # noqa: E401, I001 - short, so that a stranger reads all of it first
from pathlib import Path
HERE, LEVELS = Path(__file__).resolve().parent, [f"q{percent:02}" for percent in range(5, 100, 5)]
KEY, CANDLE = ["symbol", "timeframe", "model_version", "issued_at", "step"], ["q50_open", "q50_high", "q50_low"]
FORECAST = [*KEY, "target_time", *LEVELS, *CANDLE, "last_close", "role", "made_at", *("ref_" + q for q in LEVELS)]
if {"-h", "--help"} & set(sys.argv):
    sys.exit(print(__doc__))
SCORE, chain, place, total = [*KEY, "realised_close", "scored_at"], ["0" * 64], "this folder", 0
sys.excepthook = lambda _, error, __: print(f"{place}: {error}", file=sys.stderr)  # a sentence instead of a traceback
files: "dict[str, list[tuple[int, dict]]]" = {}
for number, line in enumerate((data := (HERE / "chain.jsonl").read_bytes()).splitlines(keepends=True), 1):
    chain.append(hashlib.sha256(line[:-76] + b"}").hexdigest())  # the last 76 bytes hold the hash of the others
    if line[-76:] != f',"hash":"{chain[-1]}"}}\n'.encode() or (batch := json.loads(line))["previous"] != chain[-2]:
        sys.exit(f"line {number} of chain.jsonl does not fit")
    for entry in batch["entries"]:
        parts = files.setdefault(entry["file"].replace(".parquet", ".jsonl.gz"), [])
        parts.clear() if batch["kind"] == "lost" else parts.append((number, entry))
shown = re.findall(r"\b[0-9a-f]{64}\b", (page := (HERE / "index.html").read_bytes()).decode("utf-8"))[:1]
if shown != chain[-1:] or not set(sys.argv[1:]) <= set(chain):
    sys.exit(f"the chain ends with {chain[-1]}; the page shows {shown}, and it must hold {sys.argv[1:]}")
if f"{hashlib.sha256(page).hexdigest()}  index.html\n" not in (HERE / "SHA256SUMS").read_text("utf-8"):
    sys.exit("index.html is not the page that SHA256SUMS lists")
for file in sorted({p.relative_to(HERE).as_posix() for p in HERE.rglob("*.jsonl.gz")} | {f for f in files if files[f]}):
    place, done, names = f"{file}, row 1", 0, FORECAST if file.startswith("forecasts") else SCORE
    lines = gzip.decompress((HERE / file).read_bytes()).splitlines()
    for number, entry in files.get(file, []):
        rows = [json.loads(line, object_pairs_hook=list) for line in lines[done : done + entry["rows"]]]
        # Hashed as they were stored: the texts of each row, then every other value as little-endian float64.
        texts = "".join(",".join(v for _, v in row if isinstance(v, str)) + "\n" for row in rows)
        values = [float("nan") if v is None else v for row in rows for _, v in row if not isinstance(v, str)]
        sha = hashlib.sha256(texts.encode() + struct.pack(f"<{len(values)}d", *values)).hexdigest()
        fit = [(name, name in (*KEY[:3], "role")) for name in names]  # and which of them hold texts
        if sha != entry["rows_sha256"] or any(fit != [(n, type(v) in (str, bool)) for n, v in row] for row in rows):
            sys.exit(f"{file}, rows {done + 1} to {done + entry['rows']}: not those of line {number}")
        done, total, place = done + len(rows), total + len(rows), f"{file}, row {done + len(rows) + 1}"
    if lines[done:]:
        sys.exit(f"{file}, row {done + 1}: no line of the chain describes it")
lost = data.count(b'"kind":"lost"')
print(f"{len(chain) - 1} lines and {total} rows fit, {lost} files lost; the chain ends as on the page: {chain[-1]}")
