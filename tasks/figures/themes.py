"""The light and the dark theme: figures name the roles of their colours ("$model"), and a theme fills them in.

`themed` does it here, `static/report.js` in a browser. The colours are from Okabe and Ito's palette, which is safe for
colour-blind readers, darkened or brightened if their contrast with the background is below 3:1. Colour is never the
only distinction: lines differ in dash and marker, rising candles are hollow.
"""

from dataclasses import dataclass
from typing import Any

from tasks.figures.plot import SERIES, Figure

DATA_KEYS = frozenset(
    {"x", "y", "z", "open", "high", "low", "close", "text", "hovertext", "customdata", "meta"}
)
"""Keys of data, in which roles are not replaced (the data is long and may contain any text)."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Theme:
    """`roles`: the colour of each role. `template`: plotly's layout template in these colours."""

    roles: dict[str, str]
    template: dict[str, Any]


def _template(roles: dict[str, str]) -> dict[str, Any]:
    axis = {
        "gridcolor": roles["$line"],
        "linecolor": roles["$line"],
        "zerolinecolor": roles["$line"],
        "tickcolor": roles["$line"],
        "automargin": True,
        "spikecolor": roles["$soft"],
        "spikethickness": 1,
        "spikedash": "dot",
        "title": {"standoff": 8, "font": {"size": 12, "color": roles["$soft"]}},
    }
    font = {"family": FONT, "size": 12, "color": roles["$ink"]}
    return {
        "layout": {
            "paper_bgcolor": roles["$card"],
            "plot_bgcolor": roles["$card"],
            "font": font,
            "colorway": [roles[name] for name in SERIES],
            "hoverlabel": {
                "bgcolor": roles["$card"],
                "bordercolor": roles["$soft"],
                "font": font,
                "align": "left",
            },
            "xaxis": axis,
            "yaxis": axis,
        }
    }


def _theme(**colours: str) -> Theme:
    roles = {f"${name}": colour for name, colour in colours.items()}
    return Theme(roles, _template(roles))


LIGHT = _theme(
    card="#ffffff",
    ink="#1c2733",
    soft="#5b6b7a",
    line="#d9e0e6",
    model="#0072B2",
    band_50="rgba(0,114,178,.34)",
    band_80="rgba(0,114,178,.20)",
    band_90="rgba(0,114,178,.11)",
    earlier="#A8578A",
    earlier_band="rgba(168,87,138,.13)",
    real="#1c2733",
    up="#007A59",
    up_fill="#ffffff",
    down="#C24E00",
    down_fill="#C24E00",
    volume="rgba(91,107,122,.45)",
    good="#0072B2",
    bad="#C24E00",
    unsure="#5b6b7a",
    interval="rgba(0,114,178,.18)",
    heat_low="#0072B2",
    heat_middle="#f4f6f8",
    heat_high="#D55E00",
    series_0="#0072B2",
    series_1="#C24E00",
    series_2="#007A59",
    series_3="#A8578A",
    series_4="#9A6A00",
    series_5="#2482BC",
    series_6="#1c2733",
)

DARK = _theme(
    card="#18212a",
    ink="#e6edf3",
    soft="#9aa8b5",
    line="#2d3944",
    model="#56B4E9",
    band_50="rgba(86,180,233,.38)",
    band_80="rgba(86,180,233,.22)",
    band_90="rgba(86,180,233,.12)",
    earlier="#DD9CC0",
    earlier_band="rgba(221,156,192,.15)",
    real="#e6edf3",
    up="#3CC79B",
    up_fill="#18212a",
    down="#F08A3C",
    down_fill="#F08A3C",
    volume="rgba(154,168,181,.45)",
    good="#56B4E9",
    bad="#F08A3C",
    unsure="#9aa8b5",
    interval="rgba(86,180,233,.20)",
    heat_low="#2482BC",
    heat_middle="#18212a",
    heat_high="#C24E00",
    series_0="#56B4E9",
    series_1="#F08A3C",
    series_2="#3CC79B",
    series_3="#DD9CC0",
    series_4="#E69F00",
    series_5="#7FA8FF",
    series_6="#e6edf3",
)

THEMES = {"light": LIGHT, "dark": DARK}


def themed(figure: Figure, theme: Theme) -> Figure:
    """Return the figure in a theme's colours; the data is shared, not copied."""
    filled = _fill(figure, theme.roles)
    return {**filled, "layout": {"template": theme.template, **filled["layout"]}}


def _fill(value: Any, roles: dict[str, str]) -> Any:
    if isinstance(value, str):
        return roles.get(value, value)
    if isinstance(value, dict):
        return {
            # Arrays of data are shared, not walked: they are most of a figure.
            k: v if k in DATA_KEYS and not isinstance(v, dict) else _fill(v, roles)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_fill(item, roles) for item in value]
    return value
