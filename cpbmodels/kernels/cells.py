"""One step of a GRU or LSTM on an NVIDIA GPU: product and cell in one launch, forward and backward.

Shapes: K members, B windows, H hidden values, a power of 2 from 16 to 256. Tensors are [K, B, width] with any distance
between members and whole rows. A program computes all gates of `UNITS` units of one member's rows. B is free forward
(programs past the end repeat the last row and write the same values), a multiple of 16 backward, where the carried
gradient is added in place.

Precision: products of the compute dtype with float32 sums; functions, cell states and carried gradients in float32;
states, gates and their gradients are stored in the compute dtype. Gate order and equations: `cpbmodels.arch.decoder`.
"""

import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.kernels.support import launch

ROWS, UNITS, DEPTH = 32, 32, 64
"""Tile of a step: rows, hidden units, and columns of a product at a time; an H100's time hardly depends on it."""


@triton.jit
def _tanh(x):
    # triton.language has no tanh, and libdevice's does not run in the interpreter.
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _get4(at, H: tl.constexpr):
    """Four values H apart of each place in `at` [BM, BU], in float32."""
    a, b = tl.load(at).to(tl.float32), tl.load(at + H).to(tl.float32)
    return a, b, tl.load(at + 2 * H).to(tl.float32), tl.load(at + 3 * H).to(tl.float32)


@triton.jit
def _put3(at, H: tl.constexpr, a, b, c):
    """Store three values H apart, in the dtype there: blocks of gates in a row of 3H or 4H."""
    kind = at.dtype.element_ty
    tl.store(at, a.to(kind))
    tl.store(at + H, b.to(kind))
    tl.store(at + 2 * H, c.to(kind))


@triton.jit
def _gru_cell(a_r, a_z, a_n, g_n, h):
    """r, z, n and the next state from three sums of gates, the new gate's hidden part g_n apart, and the state."""
    r, z = tl.sigmoid(a_r), tl.sigmoid(a_z)
    n = _tanh(a_n + r * g_n)
    return r, z, n, n + z * (h - n)


@triton.jit
def _gru_cell_back(d_h, r, z, n, g_n, h):
    """d_r, d_z, d_n before their functions, and d_g of g_n, from dL/dh': as in `decoder._GruCell.backward`."""
    d_n = d_h * (1 - z) * (1 - n * n)
    return d_n * g_n * r * (1 - r), d_h * (h - n) * z * (1 - z), d_n, d_n * r


@triton.jit
def _gates(a, b, c, d, x, rows, w, u, G: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """a, b, c (and d with G = 4 gates) [BM, BU] += x [B, W] w^T, rows g H + u of w [G H, W].

    Up to 4 columns are added one by one."""
    if W > 4:
        for start in range(0, W, BK):
            columns = start + tl.arange(0, BK)
            # One tile of x [BM, BK] serves the weights [BK, BU] of all gates, which lie H rows of W apart.
            xs = tl.load(x + rows[:, None] * W + columns[None, :])
            wp = w + u[None, :] * W + columns[:, None]
            a += tl.dot(xs, tl.load(wp)).to(tl.float32)
            b += tl.dot(xs, tl.load(wp + H * W)).to(tl.float32)
            c += tl.dot(xs, tl.load(wp + 2 * H * W)).to(tl.float32)
            if G == 4:
                d += tl.dot(xs, tl.load(wp + 3 * H * W)).to(tl.float32)
    else:
        # Four columns of a fed-back candle: a tile of a product has at least 16. [BM, 1] times [1, BU] each.
        for i in tl.static_range(W):
            xi = tl.load(x + rows * W + i).to(tl.float32)[:, None]
            wp = w + u * W + i
            a += xi * tl.load(wp).to(tl.float32)[None, :]
            b += xi * tl.load(wp + H * W).to(tl.float32)[None, :]
            c += xi * tl.load(wp + 2 * H * W).to(tl.float32)[None, :]
            if G == 4:
                d += xi * tl.load(wp + 3 * H * W).to(tl.float32)[None, :]
    return a, b, c, d


@triton.jit
def _back(sums, grad, w, rows, u, W: tl.constexpr, H: tl.constexpr, BK: tl.constexpr):
    """sums [BM, BU] += grad [B, W] times columns u of w [W, H]."""
    for start in range(0, W, BK):
        columns = start + tl.arange(0, BK)
        part = tl.load(grad + rows[:, None] * W + columns[None, :])  # [BM, BK] times [BK, BU]
        sums += tl.dot(part, tl.load(w + columns[:, None] * H + u[None, :])).to(tl.float32)
    return sums


@triton.jit
def _d_state(
    k,
    rows,
    u,
    at,
    add,
    s_add,
    g_out,
    s_go,
    w_out,
    s_wo,
    factor,
    s_f,
    g_next,
    s_gn,
    w_hh,
    s_hh,
    W: tl.constexpr,
    G: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """dL/dh' [BM, BU] = (g_out w_out) factor + g_next w_hh + add.

    g_out [B, W]: gradient of what reads h' at this step, through w_out [W, H]; g_next [B, G H]: of the next gates."""
    d_h = tl.zeros([BM, BU], tl.float32)
    # The factor dropped what reads h' at this step; the next step's gates read h' whole.
    if g_out is not None:
        d_h = _back(d_h, g_out + k * s_go, w_out + k * s_wo, rows, u, W, H, BK)
        if factor is not None:
            d_h *= tl.load(factor + k * s_f + at).to(tl.float32)
    d_h = _back(d_h, g_next + k * s_gn, w_hh + k * s_hh, rows, u, G * H, H, BK)
    if add is not None:
        d_h += tl.load(add + k * s_add + at).to(tl.float32)
    return d_h


@triton.jit(do_not_specialize=["B", "s_x"])
def _lstm_step(
    x,
    s_x,
    w_ih,
    s_ih,
    h,
    s_h,
    w_hh,
    s_hh,
    bias,
    s_b,
    c,
    s_c,
    new_h,
    s_nh,
    new_c,
    s_nc,
    acts,
    s_a,
    factor,
    s_f,
    dropped,
    s_d,
    B,
    W: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """new_h, new_c [B, H] from x [B, W], h, c [B, H] and bias [4H]; acts [B, 4H]: i, f, g, o.

    With `factor` [B, H], dropped = new_h * factor, which the next layer reads."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.minimum(tl.program_id(2) * BM + tl.arange(0, BM), B - 1)
    # Four sums [BM, BU], one by gate: with all gates of a unit in one program, the cell needs no second launch.
    i = tl.zeros([BM, BU], tl.float32)
    f = tl.zeros([BM, BU], tl.float32)
    g = tl.zeros([BM, BU], tl.float32)
    o = tl.zeros([BM, BU], tl.float32)
    i, f, g, o = _gates(i, f, g, o, h + k * s_h, rows, w_hh + k * s_hh, u, 4, H, H, BK)
    if W == H:
        s_x = tl.multiple_of(s_x, 16)  # else its loads are not of whole vectors
    i, f, g, o = _gates(i, f, g, o, x + k * s_x, rows, w_ih + k * s_ih, u, 4, H, W, BK)
    bp = bias + k * s_b + u
    i = tl.sigmoid(i + tl.load(bp).to(tl.float32)[None, :])
    f = tl.sigmoid(f + tl.load(bp + H).to(tl.float32)[None, :])
    g = _tanh(g + tl.load(bp + 2 * H).to(tl.float32)[None, :])
    o = tl.sigmoid(o + tl.load(bp + 3 * H).to(tl.float32)[None, :])
    at = rows[:, None] * H + u[None, :]  # [BM, BU] in [B, H]
    next_c = i * g + f * tl.load(c + k * s_c + at)
    next_h = o * _tanh(next_c)
    tl.store(new_h + k * s_nh + at, next_h.to(new_h.dtype.element_ty))
    tl.store(new_c + k * s_nc + at, next_c)
    kept = acts + k * s_a + rows[:, None] * (4 * H) + u[None, :]
    _put3(kept, H, i, f, g)
    tl.store(kept + 3 * H, o.to(acts.dtype.element_ty))
    if factor is not None:
        next_h *= tl.load(factor + k * s_f + at).to(tl.float32)
        tl.store(dropped + k * s_d + at, next_h.to(dropped.dtype.element_ty))


@triton.jit(do_not_specialize=["B"])
def _lstm_step_back(
    add,
    s_add,
    g_out,
    s_go,
    w_out,
    s_wo,
    factor,
    s_f,
    g_next,
    s_gn,
    w_hh,
    s_hh,
    acts,
    s_a,
    c,
    s_c,
    new_c,
    s_nc,
    d_c,
    d_gates,
    s_d,
    B,
    W: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """d_gates [B, 4H] from dL/dh', see `_d_state`, and from d_c [B, H], carried in place."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.program_id(2) * BM + tl.arange(0, BM)
    at = rows[:, None] * H + u[None, :]
    d_h = _d_state(
        k,
        rows,
        u,
        at,
        add,
        s_add,
        g_out,
        s_go,
        w_out,
        s_wo,
        factor,
        s_f,
        g_next,
        s_gn,
        w_hh,
        s_hh,
        W,
        4,
        H,
        BM,
        BU,
        BK,
    )
    kept = acts + k * s_a + rows[:, None] * (4 * H) + u[None, :]
    i, f, g, o = _get4(kept, H)
    tanh_c = _tanh(tl.load(new_c + k * s_nc + at))
    carried = d_c + k * (B * H) + at  # read and written by the thread that holds the place: whole tiles only
    # dL/dc' [BM, BU]; the four gradients behind it are those of `decoder.lstm_gates_backward`.
    d = tl.load(carried) + d_h * o * (1 - tanh_c * tanh_c)
    out = d_gates + k * s_d + rows[:, None] * (4 * H) + u[None, :]
    # The cell state of the step before; `new_c` above is that of this step.
    before = tl.load(c + k * s_c + at)
    _put3(out, H, d * g * i * (1 - i), d * before * f * (1 - f), d * i * (1 - g * g))
    tl.store(out + 3 * H, (d_h * tanh_c * o * (1 - o)).to(d_gates.dtype.element_ty))
    # In place, in float32: over many steps a rounded carry would lose what early steps contribute.
    tl.store(carried, d * f)


@triton.jit(do_not_specialize=["B", "s_x"])
def _gru_step(
    gates,
    s_g,
    x,
    s_x,
    w_ih,
    s_ih,
    h,
    s_h,
    w_hh,
    s_hh,
    b_ih,
    s_bi,
    b_hh,
    s_bh,
    new_h,
    s_nh,
    acts,
    s_a,
    factor,
    s_f,
    dropped,
    s_d,
    B,
    W: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """new_h [B, H] from h [B, H] and x [B, W] or input gates [B, 3H] without bias; acts [B, 4H]: r, z, n, g_n.

    With `factor` [B, H], dropped = new_h * factor, which the next layer reads."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.minimum(tl.program_id(2) * BM + tl.arange(0, BM), B - 1)
    at = rows[:, None] * H + u[None, :]
    # The new gate has two sums: r multiplies the hidden part g_n alone, and the input part i_n is added after that.
    r = tl.zeros([BM, BU], tl.float32)
    z = tl.zeros([BM, BU], tl.float32)
    i_n = tl.zeros([BM, BU], tl.float32)
    g_n = tl.zeros([BM, BU], tl.float32)
    r, z, g_n, i_n = _gates(r, z, g_n, i_n, h + k * s_h, rows, w_hh + k * s_hh, u, 3, H, H, BK)
    if gates is None:
        if W == H:
            s_x = tl.multiple_of(s_x, 16)  # else its loads are not of whole vectors
        r, z, i_n, g_n = _gates(r, z, i_n, g_n, x + k * s_x, rows, w_ih + k * s_ih, u, 3, H, W, BK)
    else:
        # An encoder's input gates of all steps come from one product: blocks r, z, n in a row of 3H.
        gp = gates + k * s_g + rows[:, None] * (3 * H) + u[None, :]
        r += tl.load(gp).to(tl.float32)
        z += tl.load(gp + H).to(tl.float32)
        i_n += tl.load(gp + 2 * H).to(tl.float32)
    # [BU] of [3H]: both biases of r and z are added, those of n are not.
    bi, bh = b_ih + k * s_bi + u, b_hh + k * s_bh + u
    r += (tl.load(bi).to(tl.float32) + tl.load(bh).to(tl.float32))[None, :]
    z += (tl.load(bi + H).to(tl.float32) + tl.load(bh + H).to(tl.float32))[None, :]
    i_n += tl.load(bi + 2 * H).to(tl.float32)[None, :]
    g_n += tl.load(bh + 2 * H).to(tl.float32)[None, :]
    r, z, n, next_h = _gru_cell(r, z, i_n, g_n, tl.load(h + k * s_h + at).to(tl.float32))
    tl.store(new_h + k * s_nh + at, next_h.to(new_h.dtype.element_ty))
    kept = acts + k * s_a + rows[:, None] * (4 * H) + u[None, :]
    _put3(kept, H, r, z, n)
    tl.store(kept + 3 * H, g_n.to(acts.dtype.element_ty))
    if factor is not None:
        next_h *= tl.load(factor + k * s_f + at).to(tl.float32)
        tl.store(dropped + k * s_d + at, next_h.to(dropped.dtype.element_ty))


@triton.jit(do_not_specialize=["B"])
def _gru_step_back(
    add,
    s_add,
    g_out,
    s_go,
    w_out,
    s_wo,
    factor,
    s_f,
    g_next,
    s_gn,
    w_hh,
    s_hh,
    acts,
    s_a,
    h,
    s_h,
    carry,
    d_in,
    s_di,
    d_hid,
    s_dh,
    B,
    W: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradients of input and hidden gates, d_in and d_hid [B, 3H], from dL/dh': `_d_state` + carry.

    carry float32 [B, H] becomes dL/dh' z."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.program_id(2) * BM + tl.arange(0, BM)
    at = rows[:, None] * H + u[None, :]
    d_h = _d_state(
        k,
        rows,
        u,
        at,
        add,
        s_add,
        g_out,
        s_go,
        w_out,
        s_wo,
        factor,
        s_f,
        g_next,
        s_gn,
        w_hh,
        s_hh,
        W,
        3,
        H,
        BM,
        BU,
        BK,
    )
    carried = carry + k * (B * H) + at  # dL/dh z of the step after: the path around its gates
    d_h += tl.load(carried)
    kept = acts + k * s_a + rows[:, None] * (4 * H) + u[None, :]
    r, z, n, g_n = _get4(kept, H)
    d_r, d_z, d_n, d_g = _gru_cell_back(d_h, r, z, n, g_n, tl.load(h + k * s_h + at).to(tl.float32))
    # Both rows of 3H differ in the new gate alone, whose hidden part was multiplied by r.
    _put3(d_in + k * s_di + rows[:, None] * (3 * H) + u[None, :], H, d_r, d_z, d_n)
    _put3(d_hid + k * s_dh + rows[:, None] * (3 * H) + u[None, :], H, d_r, d_z, d_g)
    # What bypasses the gates; the path through them is `g_next` of the step before.
    tl.store(carried, d_h * z)


@triton.jit(do_not_specialize=["B"])
def _query(
    x,
    s_x,
    w,
    s_w,
    bias,
    s_b,
    out,
    s_o,
    B,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """out [B, H] = x [B, H] w^T + bias, w [H, H]."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.minimum(tl.program_id(2) * BM + tl.arange(0, BM), B - 1)
    sums = tl.zeros([BM, BU], tl.float32)
    for start in range(0, H, BK):
        columns = start + tl.arange(0, BK)
        part = tl.load(x + k * s_x + rows[:, None] * H + columns[None, :])  # [BM, BK] times [BK, BU]
        sums += tl.dot(part, tl.load(w + k * s_w + u[None, :] * H + columns[:, None])).to(tl.float32)
    sums += tl.load(bias + k * s_b + u).to(tl.float32)[None, :]
    tl.store(out + k * s_o + rows[:, None] * H + u[None, :], sums.to(out.dtype.element_ty))


def step_tiles(K: int, B: int, H: int, whole: bool = False) -> tuple[tuple[int, ...], dict[str, int]]:
    """Grid (member, block of units, block of rows) and sizes of a step's kernel; `whole`: no rows beyond B."""
    rows = 16 if B <= 16 or (whole and B % ROWS) else ROWS
    units = min(UNITS, H)
    sizes = {"H": H, "BM": rows, "BU": units, "BK": min(DEPTH, H), "num_warps": 4, "num_stages": 3}
    return (K, H // units, triton.cdiv(B, rows)), sizes


def parts(*tensors: Tensor | None) -> list[Tensor | int | None]:
    """Each tensor and the distance between its members; None and 0 if there is none."""
    return [value for tensor in tensors for value in (tensor, 0 if tensor is None else tensor.stride(0))]


def gru_step(
    gates: Tensor | None,
    x: Tensor | None,
    h: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    new_h: Tensor,
    acts: Tensor,
    factor: Tensor | None = None,
    dropped: Tensor | None = None,
) -> None:
    """One step into new_h and acts. weights: w_ih, w_hh, b_ih, b_hh; shapes: `_gru_step`, each behind [K]."""
    (w_ih, w_hh, b_ih, b_hh), (K, B, H) = weights, new_h.shape
    grid, sizes = step_tiles(K, B, H)
    width = 0 if x is None else x.shape[-1]
    given = parts(gates, x, None if x is None else w_ih, h, w_hh, b_ih, b_hh, new_h, acts, factor, dropped)
    launch(_gru_step, grid, *given, B, W=width, **sizes)


def gru_step_back(
    add: Tensor | None,
    out: tuple[Tensor, Tensor] | None,
    factor: Tensor | None,
    g_next: Tensor,
    w_hh: Tensor,
    acts: Tensor,
    h: Tensor,
    carry: Tensor,
    d_in: Tensor,
    d_hid: Tensor,
) -> None:
    """One step back into d_in, d_hid and carry. out: g_out and w_out; shapes: `_gru_step_back`, each behind [K]."""
    K, B, H = carry.shape
    grid, sizes = step_tiles(K, B, H, whole=True)
    g_out, w_out = out or (None, None)
    given = parts(add, g_out, w_out, factor, g_next, w_hh, acts, h)
    width = 0 if g_out is None else g_out.shape[-1]
    launch(_gru_step_back, grid, *given, carry, *parts(d_in, d_hid), B, W=width, **sizes)


def lstm_step(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    new_h: Tensor,
    new_c: Tensor,
    acts: Tensor,
    factor: Tensor | None,
    dropped: Tensor | None,
) -> None:
    """One step into new_h, new_c and acts. weights: w_ih, w_hh, bias; shapes: `_lstm_step`, each behind [K]."""
    (w_ih, w_hh, bias), (K, B, H) = weights, new_h.shape
    grid, sizes = step_tiles(K, B, H)
    given = parts(x, w_ih, h, w_hh, bias, c, new_h, new_c, acts, factor, dropped)
    launch(_lstm_step, grid, *given, B, W=x.shape[-1], **sizes)


def lstm_step_back(
    add: Tensor | None,
    out: tuple[Tensor, Tensor],
    factor: Tensor | None,
    g_next: Tensor,
    w_hh: Tensor,
    acts: Tensor,
    cells: tuple[Tensor, Tensor],
    d_c: Tensor,
    d_gates: Tensor,
) -> None:
    """One step back into d_gates and d_c. out: g_out and w_out; cells: c before, after; shapes: `_lstm_step_back`."""
    K, B, H = d_c.shape
    grid, sizes = step_tiles(K, B, H, whole=True)
    given = parts(add, *out, factor, g_next, w_hh, acts, *cells)
    launch(_lstm_step_back, grid, *given, d_c, *parts(d_gates), B, W=out[0].shape[-1], **sizes)


def query(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """out [K, B, H] = x weight^T + bias, weight [K, H, H]: an attention's query from a state."""
    grid, sizes = step_tiles(*out.shape)
    launch(_query, grid, *parts(x, weight, bias, out), out.shape[1], **sizes)


def row_sums(x: Tensor) -> Tensor:
    """[K, S, B, n] -> [K, 1, n]."""
    return x.flatten(1, 2).sum(1, keepdim=True)
