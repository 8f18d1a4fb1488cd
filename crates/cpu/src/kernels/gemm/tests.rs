use super::*;
use crate::kernels::testing::{assert_bits, assert_near_sums, bits, isas, uniform, with_workspace};
use plimsoll_tensor::bf16;
use plimsoll_testing::or_skip;

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
    with_workspace(gemm_workspace::<f32, f32, f32>(ctx.isa, ctx.pool.threads(), spec), |space| {
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
                let spec = GemmSpec { accumulate: (case + layout) % 2 == 1, ..GemmSpec::new(m, n, k) };
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
            let spec = GemmSpec::new(m, n, k);
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
                let spec = GemmSpec::new(m, n, k);
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
        let spec = GemmSpec::new(m, n, k);
        let (a, b) = (Owned::new(1, m, k, 0), Owned::new(2, k, n, 0));
        let expected = run(Context { pool: &pool, isa }, &spec, a.mat(), b.mat(), Epilogue::NONE);
        let ldc = n + 3;
        let mut c = vec![7.0; m * ldc];
        with_workspace(gemm_serial_workspace::<f32, f32, f32>(isa, &spec), |space| {
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
        let spec = GemmSpec::new(m, n, k);
        let whole = run(ctx, &spec, a.mat(), b.mat(), Epilogue::NONE);
        let mut c = vec![0.0; m * n];
        for (start, k, accumulate) in [(0, 401, false), (401, 499, true)] {
            let spec = GemmSpec { k, accumulate, ..spec };
            let part = Mat { data: &a.data[start..], ..a.mat() };
            with_workspace(gemm_workspace::<f32, f32, f32>(isa, 2, &spec), |space| {
                gemm(ctx, &spec, part, b.rows_from(start), &mut c, Epilogue::NONE, space);
            });
        }
        assert_eq!(bits(&whole), bits(&c));
    }
}

/// Relu leaves a NaN, which so shows, and -0, which is not below zero.
#[test]
fn relu_keeps_nan_and_negative_zero() {
    let pool = Pool::new(1).expect("threads start");
    // Whole vectors of every set, and columns beside them.
    let (n, sums) = (37, [-0.0, f32::NAN, -1.0, 2.0]);
    let spec = GemmSpec { accumulate: true, ..GemmSpec::new(1, n, 1) };
    let [a, b] = [[0.0], [-1.0]].map(|value: [f32; 1]| value.repeat(n));
    let [a, b] = [&a, &b].map(|data| Mat { data, row_stride: n, col_stride: 1 });
    let epilogue = Epilogue { bias: None, activation: Activation::Relu };
    for isa in isas() {
        let mut c: Vec<f32> = sums.into_iter().cycle().take(n).collect();
        with_workspace(gemm_workspace::<f32, f32, f32>(isa, 1, &spec), |space| {
            gemm(Context { pool: &pool, isa }, &spec, a, b, &mut c, epilogue, space);
        });
        let wanted: Vec<f32> = [-0.0, f32::NAN, 0.0, 2.0].into_iter().cycle().take(n).collect();
        assert_bits(&c, &wanted, &format!("{isa:?}"));
    }
}

/// So a plan for a machine of another architecture has that machine's workspaces.
#[test]
fn tiles_have_the_same_sizes_on_every_architecture() {
    let sizes = |isa| (Kernels::of(isa).mr, Kernels::of(isa).nr());
    let expected = [(4, 8), (6, 16), (14, 32), (14, 32), (14, 32), (12, 8)];
    assert_eq!(Isa::ALL.map(sizes), expected);
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
            let spec = GemmSpec { accumulate: case % 2 == 1, ..GemmSpec::new(m, n, k) };
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

/// Numbers in bf16 of very different magnitudes: some are subnormal, as are some of their products.
fn narrow(seed: u64, rows: usize, cols: usize, layout: usize) -> (Vec<bf16>, Owned) {
    let owned = Owned::new(seed, rows, cols, layout);
    let scales = [1.0, 1e-3, 1e-20, 300.0, 1e-38];
    let numbers = owned.data.iter().enumerate().map(|(i, x)| bf16::narrow(x * scales[i % scales.len()]));
    (numbers.collect(), owned)
}

/// A sum of products of bf16 as the instructions of a set define it, going on from `sum`.
fn defined(isa: Isa, k: usize, sum: f32, a: impl Fn(usize) -> bf16, b: impl Fn(usize) -> bf16) -> f32 {
    let flush = |x: f32| if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x };
    let widened = |x: bf16| flush(x.widen());
    let add = |sum: f32, at: usize| {
        let (a, b) = if at < k { (a(at), b(at)) } else { (bf16::ZERO, bf16::ZERO) };
        flush(widened(a).mul_add(widened(b), flush(sum)))
    };
    match isa {
        Isa::Avx512Bf16 => (0..k).step_by(2).fold(sum, |sum, at| add(add(sum, at + 1), at)),
        Isa::Amx => (0..k).step_by(32).fold(sum, |sum, start| {
            let chain = |first: usize| (start + first..start + 32).step_by(2).fold(0.0, add);
            flush(flush(sum) + flush(chain(0) + chain(1)))
        }),
        _ => (0..k).fold(sum, |sum, at| a(at).widen().mul_add(b(at).widen(), sum)),
    }
}

/// Every instruction set, those that differ in products of bf16 emulated where the machine lacks them.
fn sets_of_bf16() -> impl Iterator<Item = Isa> {
    let sets = [Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];
    sets.into_iter().filter(|_| or_skip(Isa::Avx512.available()).is_some())
}

#[test]
fn products_of_bf16_sum_as_their_instructions_define() {
    let pools = [1, 2, 3, 7].map(|threads| Pool::new(threads).expect("threads start"));
    for isa in sets_of_bf16() {
        for (case, (m, n, k)) in SHAPES.into_iter().enumerate() {
            for layout in [case % 3, 3 + (case + 1) % 3, 6 + (case + 2) % 3] {
                let ((a, a_at), (b, b_at)) = (narrow(1, m, k, layout % 3), narrow(2, k, n, layout / 3));
                let [a, b] = [(&a, &a_at), (&b, &b_at)].map(|(data, owned)| Mat {
                    data: &data[..],
                    row_stride: owned.row_stride,
                    col_stride: owned.col_stride,
                });
                let spec = GemmSpec { accumulate: layout < 3, ..GemmSpec::new(m, n, k) };
                let before = uniform(3, m * n);
                let wanted: Vec<f32> = (0..m * n)
                    .map(|at| {
                        let (i, j) = (at / n, at % n);
                        let start = if spec.accumulate { before[at] } else { 0.0 };
                        let a = |k: usize| a.data[i * a.row_stride + k * a.col_stride];
                        defined(isa, k, start, a, |k| b.data[k * b.row_stride + j * b.col_stride])
                    })
                    .collect();
                let pool = &pools[case % pools.len()];
                let (ctx, what) = (Context { pool, isa }, format!("{isa:?} {spec:?} {layout}"));
                let mut sums = before;
                let bytes = gemm_workspace::<bf16, bf16, f32>(isa, pool.threads(), &spec);
                with_workspace(bytes, |space| gemm(ctx, &spec, a, b, &mut sums, Epilogue::NONE, space));
                assert_bits(&sums, &wanted, &what);
                if !spec.accumulate {
                    // With an epilogue, and rounded.
                    let bias = uniform(4, n);
                    let epilogue = Epilogue { bias: Some(&bias), activation: Activation::Relu };
                    let mut rounded = vec![bf16::ONE; m * n];
                    let bytes = gemm_workspace::<bf16, bf16, bf16>(isa, pool.threads(), &spec);
                    with_workspace(bytes, |space| gemm(ctx, &spec, a, b, &mut rounded, epilogue, space));
                    let wanted = wanted.iter().enumerate().map(|(at, x)| {
                        let finished = x + bias[at % n];
                        bf16::narrow(if finished > 0.0 { finished } else { 0.0 })
                    });
                    assert_eq!(rounded, wanted.collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
}

/// Sums over a batch do not depend on where it is cut between blocks, of whatever length they are.
#[test]
fn products_of_bf16_over_parts_of_k_have_the_bits_of_one() {
    let pool = Pool::new(2).expect("threads start");
    for (isa, block) in sets_of_bf16().flat_map(|isa| [32, 64, 65, 197].map(|block| (isa, block))) {
        let (m, n, k) = (20, 40, 25 * block + 3);
        let ((a, at), (b, _)) = (narrow(1, m, k, 1), narrow(2, k, n, 0));
        let results = [&[0, k][..], &[0, block, 22 * block, k]].map(|cuts| {
            let mut c = vec![f32::NAN; m * n];
            for part in cuts.windows(2) {
                let spec = GemmSpec::new(m, n, part[1] - part[0]);
                let spec = GemmSpec { accumulate: part[0] > 0, block, ..spec };
                let a = Mat { data: &a[part[0] * at.col_stride..], row_stride: 1, col_stride: at.col_stride };
                let b = Mat { data: &b[part[0] * n..], row_stride: n, col_stride: 1 };
                with_workspace(gemm_workspace::<bf16, bf16, f32>(isa, 2, &spec), |space| {
                    gemm(Context { pool: &pool, isa }, &spec, a, b, &mut c, Epilogue::NONE, space);
                });
            }
            bits(&c)
        });
        assert_eq!(results[0], results[1], "{isa:?}, blocks of {block}");
    }
}
