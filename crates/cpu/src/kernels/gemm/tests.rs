use super::*;
use crate::kernels::testing::{assert_near_sums, bits, isas, uniform, with_workspace};

/// A matrix with its own storage, in one of three layouts.
struct Owned {
    data: Vec<f32>,
    row_stride: usize,
    col_stride: usize,
}

impl Owned {
    fn new(seed: u64, rows: usize, cols: usize, layout: usize) -> Self {
        let (row_stride, col_stride) = [(cols, 1), (1, rows), (2 * cols + 3, 2)][layout];
        let len = rows.saturating_sub(1) * row_stride + cols.saturating_sub(1) * col_stride + 1;
        Self { data: uniform(seed, len), row_stride, col_stride }
    }

    fn mat(&self) -> Mat<'_> {
        self.rows_from(0)
    }

    fn rows_from(&self, row: usize) -> Mat<'_> {
        let data = &self.data[row * self.row_stride..];
        Mat { data, row_stride: self.row_stride, col_stride: self.col_stride }
    }

    fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.row_stride + j * self.col_stride]
    }
}

fn run(ctx: Context<'_>, spec: &GemmSpec, a: Mat<'_>, b: Mat<'_>, epilogue: Epilogue<'_>) -> Vec<f32> {
    let mut c = uniform(3, spec.m * spec.n);
    with_workspace(gemm_workspace(ctx.isa, ctx.pool.threads(), spec), |space| {
        gemm(ctx, spec, a, b, &mut c, epilogue, space);
    });
    c
}

fn naive(spec: &GemmSpec, a: &Owned, b: &Owned, epilogue: Epilogue<'_>) -> Vec<f64> {
    let mut c: Vec<f64> = uniform(3, spec.m * spec.n).into_iter().map(f64::from).collect();
    for i in 0..spec.m {
        for j in 0..spec.n {
            let c = &mut c[i * spec.n + j];
            let sum: f64 = (0..spec.k).map(|l| f64::from(a.at(i, l)) * f64::from(b.at(l, j))).sum();
            *c = if spec.accumulate { *c + sum } else { sum };
            *c += f64::from(epilogue.bias.map_or(0.0, |bias| bias[j]));
            if epilogue.activation == Activation::Relu {
                *c = c.max(0.0);
            }
        }
    }
    c
}

const SHAPES: [(usize, usize, usize); 19] = [
    (0, 5, 7),
    (5, 0, 7),
    (5, 4, 0),
    (1, 1, 1),
    (1, 70, 33),
    (14, 32, 16),
    (13, 31, 257),
    (15, 33, 300),
    (29, 17, 513),
    (3, 48, 40),
    (100, 10, 100),
    (70, 130, 90),
    (2, 1100, 20),
    (300, 65, 64),
    (61, 95, 255),
    (9, 6, 1000),
    (513, 40, 20),
    (40, 2100, 385),
    (33, 70, 1200),
];

#[test]
fn agrees_with_a_naive_product() {
    let pool = Pool::new(2).expect("threads start");
    for isa in isas() {
        for (case, (m, n, k)) in SHAPES.into_iter().enumerate() {
            for layout in 0..9 {
                let (a, b) = (Owned::new(1, m, k, layout % 3), Owned::new(2, k, n, layout / 3));
                let bias = uniform(4, n);
                let spec = GemmSpec { m, n, k, accumulate: (case + layout) % 2 == 1 };
                let activation = if layout % 4 < 2 { Activation::None } else { Activation::Relu };
                let epilogue = Epilogue { bias: (layout % 2 == 0).then_some(&bias), activation };
                let got = run(Context { pool: &pool, isa }, &spec, a.mat(), b.mat(), epilogue);
                assert_near_sums(
                    &got,
                    &naive(&spec, &a, &b, epilogue),
                    k,
                    &format!("{isa:?} {spec:?} {layout}"),
                );
            }
        }
    }
}

/// The definition in scalar code: one left fold from +0 by fused multiply-add.
#[test]
fn sums_in_the_stated_order() {
    let pool = Pool::new(2).expect("threads start");
    for isa in isas().into_iter().filter(|&isa| isa != Isa::Portable) {
        for (m, n, k) in SHAPES {
            let (a, b) = (Owned::new(1, m, k, 0), Owned::new(2, k, n, 1));
            let spec = GemmSpec { m, n, k, accumulate: false };
            let sum = |i, j| (0..k).fold(0.0f32, |sum, l| a.at(i, l).mul_add(b.at(l, j), sum));
            let expected: Vec<f32> = (0..m * n).map(|at| sum(at / n, at % n)).collect();
            let got = run(Context { pool: &pool, isa }, &spec, a.mat(), b.mat(), Epilogue::NONE);
            assert_eq!(bits(&got), bits(&expected), "{isa:?} {spec:?}");
        }
    }
}

#[test]
fn bits_depend_on_neither_threads_nor_other_rows() {
    let pools = [1, 2, 3, 7].map(|threads| Pool::new(threads).expect("threads start"));
    for isa in isas() {
        for (m, n, k) in SHAPES.into_iter().chain([(130, 200, 70)]) {
            for layout in 0..2 {
                let (a, b) = (Owned::new(1, m, k, layout), Owned::new(2, k, n, 1 - layout));
                let spec = GemmSpec { m, n, k, accumulate: false };
                let all = pools
                    .each_ref()
                    .map(|pool| bits(&run(Context { pool, isa }, &spec, a.mat(), b.mat(), Epilogue::NONE)));
                assert!(all.iter().all(|bits| *bits == all[0]), "{isa:?} {spec:?}");
                for row in (0..m).step_by(5) {
                    let spec = GemmSpec { m: 1, ..spec };
                    let ctx = Context { pool: &pools[1], isa };
                    let alone = run(ctx, &spec, a.rows_from(row), b.mat(), Epilogue::NONE);
                    assert_eq!(bits(&alone), all[0][row * n..(row + 1) * n], "{isa:?} {spec:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn a_serial_product_has_the_same_bits_and_respects_its_row_stride() {
    let pool = Pool::new(2).expect("threads start");
    for isa in isas() {
        let (m, n, k) = (31, 37, 70);
        let spec = GemmSpec { m, n, k, accumulate: false };
        let (a, b) = (Owned::new(1, m, k, 0), Owned::new(2, k, n, 0));
        let expected = run(Context { pool: &pool, isa }, &spec, a.mat(), b.mat(), Epilogue::NONE);
        let ldc = n + 3;
        let mut c = vec![7.0; m * ldc];
        with_workspace(gemm_serial_workspace(isa, &spec), |space| {
            gemm_serial(isa, &spec, a.mat(), b.mat(), &mut c, ldc, space);
        });
        for (row, expected) in c.chunks(ldc).zip(expected.chunks(n)) {
            assert_eq!(bits(&row[..n]), bits(expected));
            assert_eq!(row[n..], [7.0; 3], "the gap between rows is left alone");
        }
    }
}

#[test]
fn two_calls_over_parts_of_k_have_the_bits_of_one() {
    let pool = Pool::new(2).expect("threads start");
    for isa in isas() {
        let ctx = Context { pool: &pool, isa };
        let (m, n, k) = (20, 40, 900);
        let (a, b) = (Owned::new(1, m, k, 0), Owned::new(2, k, n, 0));
        let spec = GemmSpec { m, n, k, accumulate: false };
        let whole = run(ctx, &spec, a.mat(), b.mat(), Epilogue::NONE);
        let mut c = vec![0.0; m * n];
        for (start, k, accumulate) in [(0, 401, false), (401, 499, true)] {
            let spec = GemmSpec { k, accumulate, ..spec };
            let part = Mat { data: &a.data[start..], ..a.mat() };
            with_workspace(gemm_workspace(isa, 2, &spec), |space| {
                gemm(ctx, &spec, part, b.rows_from(start), &mut c, Epilogue::NONE, space);
            });
        }
        assert_eq!(bits(&whole), bits(&c));
    }
}

/// Operands that are read in place give the bits of packed ones.
#[test]
fn a_direct_product_has_the_bits_of_a_packed_one() {
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).expect("threads start"));
    for isa in isas() {
        for (case, (m, n, k)) in [
            (0, 16, 3),
            (3, 0, 3),
            (5, 16, 0),
            (1, 16, 1),
            (8, 1024, 256),
            (15, 48, 513),
            (33, 80, 300),
            (64, 32, 600),
        ]
        .into_iter()
        .enumerate()
        {
            let (a, b, bias) = (Owned::new(1, m, k, 0), Owned::new(2, k, n, 0), uniform(4, n));
            let spec = GemmSpec { m, n, k, accumulate: case % 2 == 1 };
            let activation = if case % 3 == 0 { Activation::None } else { Activation::Relu };
            let epilogue = Epilogue { bias: (case % 4 < 2).then_some(&bias), activation };
            assert!(is_direct(&spec));
            for pool in &pools {
                let ctx = Context { pool, isa };
                let expected = run(ctx, &spec, a.mat(), b.mat(), epilogue);
                let mut c = uniform(3, m * n);
                gemm_direct(ctx, &spec, &a.data[..m * k], &b.data[..k * n], &mut c, epilogue);
                assert_eq!(bits(&c), bits(&expected), "{isa:?} {spec:?}");
            }
        }
    }
}
