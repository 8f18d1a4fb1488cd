use super::*;
use crate::kernels::testing::{Workspace, assert_near, normal, on_all};

const MODES: [ResizeMode; 3] = [
    ResizeMode::Nearest,
    ResizeMode::Bilinear { align_corners: false },
    ResizeMode::Bilinear { align_corners: true },
];

fn shapes() -> Vec<ResizeShape> {
    let sizes = [
        (2, [4, 5], [8, 10], 3),
        (2, [7, 9], [3, 4], 17),
        (1, [1, 1], [5, 3], 2),
        (1, [6, 4], [1, 1], 1),
        (3, [5, 1], [5, 7], 33),
        (2, [10, 3], [3, 10], 4),
        (1, [40, 50], [60, 31], 16),
        (0, [4, 4], [2, 2], 3),
        (2, [3, 3], [2, 2], 0),
    ];
    let shape =
        |(examples, from, to, channels)| MODES.map(|mode| ResizeShape { mode, examples, from, to, channels });
    sizes.into_iter().flat_map(shape).collect()
}

/// The weights of an element along an axis, by the definitions.
fn weights(mode: ResizeMode, from: usize, to: usize, i: usize) -> Vec<f64> {
    let place = match mode {
        ResizeMode::Nearest => (i * from / to) as f64,
        ResizeMode::Bilinear { align_corners: false } => (i as f64 + 0.5) * from as f64 / to as f64 - 0.5,
        ResizeMode::Bilinear { align_corners: true } => (i * (from - 1)) as f64 / (to.max(2) - 1) as f64,
    };
    let place = place.clamp(0.0, (from - 1) as f64);
    (0..from).map(|j| (1.0 - (place - j as f64).abs()).max(0.0)).collect()
}

#[test]
fn resizing_and_its_gradient_are_near_their_definitions() {
    for s in shapes() {
        let [x, y] = s.floats();
        let (x, dy) = (normal(1, x), normal(2, y));
        let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        for out in 0..dy.len() {
            let (c, pixel) = (out % s.channels, out / s.channels);
            let (column, line) = (pixel % s.to[1], pixel / s.to[1]);
            let (row, example) = (line % s.to[0], line / s.to[0]);
            let across = weights(s.mode, s.from[1], s.to[1], column);
            for (h, down) in weights(s.mode, s.from[0], s.to[0], row).iter().enumerate() {
                for (w, across) in across.iter().enumerate() {
                    let at = ((example * s.from[0] + h) * s.from[1] + w) * s.channels + c;
                    y[out] += down * across * f64::from(x[at]);
                    dx[at] += down * across * f64::from(dy[out]);
                }
            }
        }
        let found = on_all(|ctx| {
            let mut y = vec![f32::NAN; dy.len()];
            let mut workspace = Workspace::new(resize_workspace(ctx.threads(), &s));
            resize(ctx, &s, &x, &mut y, workspace.get());
            y
        });
        found.iter().for_each(|f| assert_near(f, &y, 1.0, 1e-5, &format!("{s:?}")));
        let found = on_all(|ctx| {
            let mut dx = vec![f32::NAN; x.len()];
            let mut workspace = Workspace::new(resize_grad_workspace(ctx.threads(), &s));
            resize_grad(ctx, &s, &dy, &mut dx, workspace.get());
            dx
        });
        found.iter().for_each(|f| assert_near(f, &dx, 1.0, 1e-5, &format!("{s:?}")));
    }
}
