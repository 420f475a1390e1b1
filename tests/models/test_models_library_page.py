"""The code of docs/library.md runs as it stands there, from top to "Models that travel" (`test_readme_models.py`)."""

import re
from pathlib import Path

import matplotlib as mpl
from test_models_frames import candles

from cpbmodels import Series, train_fleet

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_the_page_runs(tmp_path, monkeypatch):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    frame = candles(1200)
    frame.write_parquet("candles.parquet")
    train_fleet([Series.from_frame(frame)], "robust-har", "smoke", seeds=[1], device="cpu")[0].save(
        "data/hub/BTCUSDT/1h"
    )
    names = {}
    for code in re.findall(
        r"```python\n(.*?)```", PAGE.read_text().partition("## Models that travel")[0], re.DOTALL
    ):
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["forecast"].to_frame().height == 10
    assert names["rows"]["issued_at"].min() == names["model"].known_until
    assert Path("mine", "model.safetensors").exists()
