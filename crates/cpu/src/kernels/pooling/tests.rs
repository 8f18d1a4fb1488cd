use super::*;
use crate::isa::{Context, Isa};
use crate::kernels::testing::{Workspace, assert_bits, assert_near, isas, normal, on_all};
use crate::threads::Pool;

fn sliding(input: usize, window: usize, stride: usize, pad: usize, dilation: usize) -> Axis {
    let output = (input + 2 * pad - (window - 1) * dilation - 1) / stride + 1;
    Axis { input, output, places: window, spacing: Spacing::Sliding { stride, before: pad, dilation } }
}

fn adaptive(input: usize, output: usize) -> Axis {
    let span = |i: usize| ((i + 1) * input).div_ceil(output) - i * input / output;
    let places = (0..output).map(span).max().expect("a window");
    Axis { input, output, places, spacing: Spacing::Adaptive }
}

fn shape(examples: usize, height: Axis, width: Axis, channels: usize) -> PoolShape {
    PoolShape { examples, height, width, channels }
}

fn shapes() -> Vec<PoolShape> {
    vec![
        shape(3, sliding(28, 2, 2, 0, 1), sliding(28, 2, 2, 0, 1), 6),
        shape(2, sliding(9, 3, 2, 1, 1), sliding(7, 3, 2, 1, 1), 5),
        shape(2, sliding(8, 3, 1, 1, 1), sliding(8, 3, 1, 1, 1), 17),
        shape(1, sliding(20, 16, 1, 2, 1), sliding(20, 16, 1, 2, 1), 1),
        shape(0, sliding(4, 2, 2, 0, 1), sliding(4, 2, 2, 0, 1), 1),
        shape(2, sliding(4, 2, 2, 0, 1), sliding(4, 2, 2, 0, 1), 0),
        shape(2, sliding(5, 2, 1, 0, 1), sliding(6, 1, 3, 0, 1), 3),
        // Windows that lie wholly outside.
        shape(1, Axis { output: 5, ..sliding(3, 2, 2, 2, 1) }, sliding(3, 2, 2, 2, 1), 2),
        shape(2, sliding(9, 3, 1, 2, 2), sliding(11, 2, 2, 1, 3), 4),
        shape(1, sliding(1, 2, 1, 1, 2), sliding(1, 2, 1, 1, 2), 3),
        shape(2, adaptive(7, 3), adaptive(10, 4), 5),
        shape(2, adaptive(3, 7), adaptive(5, 5), 33),
        shape(1, adaptive(1, 1), adaptive(12, 1), 16),
    ]
}

fn inputs(s: &PoolShape) -> usize {
    s.examples * s.height.input * s.in_row()
}

fn outputs(s: &PoolShape) -> usize {
    s.examples * s.height.output * s.out_row()
}

/// Every place of a window in the image, and where, by plain loops.
fn places(axis: &Axis, window: usize) -> Vec<(usize, usize)> {
    let all = (0..axis.places).map(|place| match axis.spacing {
        Spacing::Sliding { stride, before, dilation } => {
            (place, (window * stride + place * dilation).wrapping_sub(before))
        }
        Spacing::Adaptive => {
            let (first, end) =
                (window * axis.input / axis.output, ((window + 1) * axis.input).div_ceil(axis.output));
            (place, if first + place < end { first + place } else { usize::MAX })
        }
    });
    all.filter(|&(_, element)| element < axis.input).collect()
}

/// Every output's inputs: the place in the window and the offset.
fn windows(s: &PoolShape) -> Vec<Vec<(u8, usize)>> {
    let window = |out: usize| {
        let (c, pixel) = (out % s.channels, out / s.channels);
        let (column, line) = (pixel % s.width.output, pixel / s.width.output);
        let (row, example) = (line % s.height.output, line / s.height.output);
        let mut all = vec![];
        for (kh, h) in places(&s.height, row) {
            for (kw, w) in places(&s.width, column) {
                let offset = ((example * s.height.input + h) * s.width.input + w) * s.channels + c;
                all.push(((kh * s.width.places + kw) as u8, offset));
            }
        }
        all
    };
    (0..outputs(s)).map(window).collect()
}

/// With ties, NaNs and infinities.
fn odd_input(s: &PoolShape) -> Vec<f32> {
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0, 0.0];
    let value = |(i, v): (usize, f32)| if i % 11 == 3 { odd[i / 11 % 5] } else { (v * 2.0).round() };
    normal(1, inputs(s)).into_iter().enumerate().map(value).collect()
}

fn winner(x: &[f32], window: &[(u8, usize)]) -> Option<(u8, usize)> {
    let mut best: Option<(u8, usize)> = None;
    for &(place, at) in window {
        if best.is_none_or(|(_, old)| !x[old].is_nan() && (x[at].is_nan() || x[at] > x[old])) {
            best = Some((place, at));
        }
    }
    best
}

fn run_max(ctx: Context<'_>, s: &PoolShape, x: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let (mut y, mut index) = (vec![7.0; outputs(s)], vec![255; outputs(s)]);
    max_pool(ctx, s, x, &mut y, &mut index);
    (y, index)
}

#[test]
fn maxima_and_their_gradients_agree_with_plain_loops_on_any_threads() {
    for threads in [1, 2, 3, 7] {
        let pool = Pool::new(threads).expect("threads start");
        for (isa, s) in isas().into_iter().flat_map(|isa| shapes().into_iter().map(move |s| (isa, s))) {
            let (ctx, what) = (Context { pool: &pool, isa }, format!("{s:?} on {isa:?}"));
            let x = odd_input(&s);
            let (y, index) = run_max(ctx, &s, &x);
            let winners: Vec<_> = windows(&s).iter().map(|window| winner(&x, window)).collect();
            let expected: Vec<f32> =
                winners.iter().map(|w| w.map_or(f32::NEG_INFINITY, |w| x[w.1])).collect();
            assert_bits(&y, &expected, &what);
            assert_eq!(index, winners.iter().map(|w| w.map_or(0, |w| w.0)).collect::<Vec<_>>(), "{what}");

            let dy = normal(2, y.len());
            let mut expected = vec![0.0; x.len()];
            winners.iter().zip(&dy).for_each(|(w, dy)| w.iter().for_each(|w| expected[w.1] += dy));
            let mut dx = vec![f32::NAN; x.len()];
            max_pool_grad(ctx, &s, &dy, &index, &mut dx);
            assert_bits(&dx, &expected, &what);
        }
    }
}

#[test]
fn means_and_their_gradients_are_near_plain_loops() {
    for (s, count_padding) in shapes().into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let (x, dy) = (normal(3, inputs(&s)), normal(4, outputs(&s)));
        let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        for (out, window) in windows(&s).iter().enumerate() {
            let places = match s.height.spacing {
                Spacing::Sliding { .. } if count_padding => s.height.places * s.width.places,
                _ => window.len(),
            };
            for &(_, at) in window {
                y[out] += f64::from(x[at]) / places as f64;
                dx[at] += f64::from(dy[out]) / places as f64;
            }
        }
        let found = on_all(|ctx| {
            let mut y = vec![f32::NAN; outputs(&s)];
            let mut workspace = Workspace::new(average_pool_workspace(ctx.threads(), &s));
            average_pool(ctx, &s, count_padding, &x, &mut y, workspace.get());
            y
        });
        found.iter().for_each(|f| assert_near(f, &y, 1.0, 1e-5, &format!("{s:?}, {count_padding}")));
        let found = on_all(|ctx| {
            let mut dx = vec![f32::NAN; inputs(&s)];
            let mut workspace = Workspace::new(average_pool_grad_workspace(ctx.threads(), &s));
            average_pool_grad(ctx, &s, count_padding, &dy, &mut dx, workspace.get());
            dx
        });
        found.iter().for_each(|f| assert_near(f, &dx, 1.0, 1e-5, &format!("{s:?}, {count_padding}")));
    }
}

#[test]
fn an_example_alone_has_the_same_bits() {
    let pool = Pool::new(2).expect("threads start");
    let ctx = Context { pool: &pool, isa: Isa::detect() };
    let s = shape(3, sliding(9, 3, 2, 1, 1), sliding(7, 3, 2, 1, 1), 5);
    let x = odd_input(&s);
    let (y, index) = run_max(ctx, &s, &x);
    let mean = |s: &PoolShape, x: &[f32]| {
        let mut y = vec![0.0; outputs(s)];
        let mut workspace = Workspace::new(average_pool_workspace(2, s));
        average_pool(ctx, s, false, x, &mut y, workspace.get());
        y
    };
    let means = mean(&s, &x);
    let one = PoolShape { examples: 1, ..s };
    for e in 0..s.examples {
        let x = &x[e * inputs(&one)..][..inputs(&one)];
        let (alone, alone_index) = run_max(ctx, &one, x);
        let range = e * outputs(&one)..(e + 1) * outputs(&one);
        assert_bits(&alone, &y[range.clone()], "maxima");
        assert_eq!(alone_index, index[range.clone()]);
        assert_bits(&mean(&one, x), &means[range], "means");
    }
}
