"""Checks the record in this folder: every line of chain.jsonl, and every row of forecasts/ and ledger/ against it."""
import argparse, gzip, hashlib, json, struct, sys  # noqa: E401, I001 - short, so that a stranger reads all of it first
from pathlib import Path
HERE, LEVELS = Path(__file__).absolute().parent, [f"q{percent:02}" for percent in range(5, 100, 5)]
KEY, CANDLE = ["symbol", "timeframe", "model_version", "issued_at", "step"], ["q50_open", "q50_high", "q50_low"]
FORECAST = [*KEY, "target_time", *LEVELS, *CANDLE, "last_close", "role", "made_at", *("ref_" + q for q in LEVELS)]
ADDED = ["weights_sha256", "standing"]  # rows that were stored before these columns existed have neither
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--head", metavar="HASH", help="hash that was printed earlier: it must still be in the chain")
head = parser.parse_args().head
SCORE, chain, place, total = [*KEY, "realised_close", "scored_at"], ["0" * 64], "this folder", 0
latest = ""
sys.excepthook = lambda _, error, __: print(f"{place}: {error}", file=sys.stderr)  # a sentence instead of a traceback
files: "dict[str, list[tuple[int, dict]]]" = {}  # type: ignore[type-arg]
for number, line in enumerate((HERE / "chain.jsonl").read_bytes().splitlines(keepends=True), 1):
    chain.append(hashlib.sha256(line[:-76] + b"}").hexdigest())  # the last 76 bytes hold the hash of the others
    if line[-76:] != f',"hash":"{chain[-1]}"}}\n'.encode() or (batch := json.loads(line))["previous"] != chain[-2]:
        sys.exit(f"line {number} of chain.jsonl does not fit")
    if (time := batch["time"]) < latest:
        sys.exit(f"line {number} of chain.jsonl does not fit: its time, {time}, is before that of line {number - 1}")
    latest = time
    for entry in batch["entries"]:
        parts = files.setdefault(entry["file"].replace(".parquet", ".jsonl.gz"), [])
        parts.append((number, entry))
if head and head not in chain[1:]:
    sys.exit(f"{head} is not in the chain, which ends with {chain[-1]}: the record was made anew or cut off")
there = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*.jsonl.gz")}
for file in sorted(there | files.keys()):
    place, done = f"{file}, row 1", 0
    forms = [FORECAST, FORECAST + ADDED] if file.startswith("forecasts") else [SCORE]
    fits = [[(name, name in (*KEY[:3], "role", ADDED[0])) for name in form] for form in forms]  # True: holds a text
    lines = gzip.decompress((HERE / file).read_bytes()).splitlines()
    for number, entry in files.get(file, []):
        rows = [json.loads(line, object_pairs_hook=list) for line in lines[done : done + entry["rows"]]]
        # Hashed as they were stored: the texts of each row, then every other value as little-endian float64.
        texts = "".join(",".join(v for _, v in row if isinstance(v, str)) + "\n" for row in rows)
        values = [float("nan") if v is None else v for row in rows for _, v in row if not isinstance(v, str)]
        sha = hashlib.sha256(texts.encode() + struct.pack(f"<{len(values)}d", *values)).hexdigest()
        is_odd = any([(n, type(v) in (str, bool)) for n, v in row] not in fits for row in rows)
        if sha != entry["rows_sha256"] or is_odd:
            sys.exit(f"{file}, rows {done + 1} to {done + entry['rows']}: not those of line {number}")
        done, total, place = done + len(rows), total + len(rows), f"{file}, row {done + len(rows) + 1}"
    if lines[done:]:
        sys.exit(f"{file}, row {done + 1}: no line of the chain describes it")
where = f"; line {chain.index(head)} is the head that you noted" if head else ""
print(f"{len(chain) - 1} lines and {total} rows fit{where}; the chain ends with {chain[-1]}")
